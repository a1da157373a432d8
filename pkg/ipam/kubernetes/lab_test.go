package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// plane is the control plane that the tests of this package share. Each test
// has an address space of its own on it.
var plane *controlplane.Plane

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "rail-cni-kubernetes")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		plane, err = controlplane.New(context.Background(), dir, controlplane.Options{Audit: true})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer plane.Close()
		return m.Run()
	}())
}

const testNamespace = "kube-system"

// node is one simulated node: state directories of its own.
type node struct {
	*Store
	t     *testing.T
	state string
}

func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeAt(t, plane.AdminKubeconfig(), t.TempDir())
}

func newNodeAt(t *testing.T, kubeconfig, state string) *node {
	t.Helper()
	return newNodeFor(t, kubeconfig, state, "")
}

// newNodeFor is a node whose store is for a pod with the network namespace at a
// path.
func newNodeFor(t *testing.T, kubeconfig, state, netns string) *node {
	t.Helper()
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, UserAgent: "test-" + t.Name(), RetryFor: RetryFor})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{
		Client: client, Kubeconfig: kubeconfig, StateDir: state + "/run", JournalDir: state + "/journal", Netns: netns,
		Warn: func(err error) { t.Log("warning:", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &node{Store: s, t: t, state: state}
}

// claim is of a pool of the test's own.
func claim(t testing.TB, space, prefix string) ipam.Claim {
	t.Helper()
	p := netip.MustParsePrefix(prefix)
	rng, err := ipam.NewRange(ipam.RangeSpec{Prefix: p})
	if err != nil {
		t.Fatal(err)
	}
	return ipam.Claim{Pool: ipam.Pool{Space: space, Prefix: p}, Range: rng, Exclusive: true}
}

func pod(i int) ipam.Owner {
	return ipam.Owner{ContainerID: fmt.Sprintf("%064x", i+1), IfName: "net1", PodRef: fmt.Sprintf("default/pod-%d", i), Network: "net"}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (n *node) add(o ipam.Owner, c ...ipam.Claim) []netip.Prefix {
	n.t.Helper()
	ctx := testContext(n.t)
	for {
		got, err := n.Allocate(ctx, o, c)
		switch {
		case err == nil:
			return got
		case strings.Contains(err.Error(), "is too late") && ctx.Err() == nil:
			// On a machine so busy that the container may be the older one. What a
			// runtime tries next is a newer one.
			time.Sleep(time.Second)
		default:
			n.t.Fatal(err)
		}
	}
}

func (n *node) wantAdd(o ipam.Owner, want string, c ipam.Claim) {
	n.t.Helper()
	if got := n.add(o, c); got[0].String() != want {
		n.t.Fatalf("%s got %s, want %s", o.PodRef, got[0], want)
	}
}

func (n *node) del(o ipam.Owner, pools ...ipam.Pool) {
	n.t.Helper()
	if err := n.Release(testContext(n.t), o, pools); err != nil {
		n.t.Fatal(err)
	}
}

// holdTurn takes the turn in a pool. It returns what waits until so many asks are
// posted, and a function that ends the turn.
func (n *node) holdTurn(pool ipam.Pool) (waiting func(int), unlock func()) {
	n.t.Helper()
	pools, err := n.dir.Sub(queuesDir)
	if err != nil {
		n.t.Fatal(err)
	}
	defer pools.Close()
	dir, err := pools.Sub(statefile.Name(pool.Name()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = dir.Close() })
	lock, err := dir.Lock(testContext(n.t), queueLock)
	if err != nil {
		n.t.Fatal(err)
	}
	waiting = func(want int) {
		n.t.Helper()
		eventually(n.t, "the asks are posted", func() bool {
			names, err := dir.List(askSuffix)
			return err == nil && len(names) == want
		})
	}
	return waiting, func() { _ = lock.Unlock() }
}

// entries gives the pool's allocations, nil if there is no such pool.
func entries(t testing.TB, pool ipam.Pool) map[string]Entry {
	t.Helper()
	code, data, err := plane.Admin().Get(context.Background(), poolPath(pool.Name()))
	if err != nil {
		t.Fatal(err)
	}
	if code == 404 {
		return nil
	}
	state, err := ParsePool(data)
	if err != nil {
		t.Fatal(err)
	}
	return state.Entries
}

func crPath(plural, name string) string {
	path := "/apis/" + Group + "/" + Version + "/namespaces/" + testNamespace + "/" + plural
	if name != "" {
		path += "/" + name
	}
	return path
}

func poolPath(name string) string        { return crPath("ippools", name) }
func reservationPath(name string) string { return crPath("overlappingrangeipreservations", name) }

// reservations gives those of an address space, by name.
func reservations(t testing.TB, space string) map[string]reservationSpec {
	t.Helper()
	_, data, err := plane.Admin().Get(context.Background(), reservationPath(""))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []reservation }
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	found := map[string]reservationSpec{}
	for _, r := range list.Items {
		if _, ok := reservedAddr(space, r.Metadata.Name); ok {
			found[r.Metadata.Name] = r.Spec
		}
	}
	return found
}

func create(t testing.TB, path string, object any) {
	t.Helper()
	code, data, err := plane.Admin().Create(context.Background(), path, object)
	if err != nil || code != 201 {
		t.Fatal(code, string(data), err)
	}
}

func createPool(t testing.TB, pool ipam.Pool, allocations map[string]Entry) {
	t.Helper()
	create(t, poolPath(""), ippool{
		typeMeta: typed("IPPool"), Metadata: poolMeta{objectMeta: objectMeta{Name: pool.Name(), Namespace: testNamespace}},
		Spec: poolSpec{Range: pool.Prefix.String(), Allocations: allocations},
	})
}

func createReservation(t testing.TB, name string, spec reservationSpec) {
	t.Helper()
	create(t, reservationPath(""), reservation{
		typeMeta: typed("OverlappingRangeIPReservation"), Metadata: objectMeta{Name: name, Namespace: testNamespace}, Spec: spec,
	})
}

// wantEmpty wants neither entries nor reservations.
func wantEmpty(t testing.TB, pools ...ipam.Pool) {
	t.Helper()
	for _, p := range pools {
		if e := entries(t, p); len(e) > 0 {
			t.Errorf("pool %s: %v", p.Name(), e)
		}
		if r := reservations(t, p.Space); len(r) > 0 {
			t.Errorf("reservations of %q: %v", p.Space, r)
		}
	}
}
