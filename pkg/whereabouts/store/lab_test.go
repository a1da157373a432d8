package store

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// plane is the control plane that the tests of this package share. Each test
// has an address space of its own on it.
var plane *controlplane.Plane

func TestMain(m *testing.M) { os.Exit(pooltest.Main(m, &plane)) }

const testNamespace = "kube-system"

// node is one simulated node, with its own state directories.
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

// newNodeFor returns a node whose store is for a pod with the network namespace
// at a path.
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

func (n *node) add(o ipam.Owner, c ...ipam.Claim) []netip.Prefix {
	n.t.Helper()
	ctx := pooltest.Context(n.t)
	for {
		got, err := n.Allocate(ctx, o, c)
		switch {
		case err == nil:
			return got
		case strings.Contains(err.Error(), "is too late") && ctx.Err() == nil:
			// On a very busy machine the container may be the older one. A
			// runtime's next try has a newer one.
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
	if err := n.Release(pooltest.Context(n.t), o, pools); err != nil {
		n.t.Fatal(err)
	}
}

// holdTurn takes the turn in a pool. It returns a function that waits until so
// many asks are posted, and one that ends the turn.
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
	lock, err := dir.Lock(pooltest.Context(n.t), queueLock)
	if err != nil {
		n.t.Fatal(err)
	}
	waiting = func(want int) {
		n.t.Helper()
		pooltest.Eventually(n.t, "the asks are posted", func() bool {
			names, err := dir.List(askSuffix)
			return err == nil && len(names) == want
		})
	}
	return waiting, func() { _ = lock.Unlock() }
}

// entries returns the pool's allocations, or nil if there is no such pool.
func entries(t testing.TB, pool ipam.Pool) map[string]api.Entry {
	t.Helper()
	code, data, err := plane.Admin().Get(context.Background(), poolPath(pool.Name()))
	if err != nil {
		t.Fatal(err)
	}
	if code == 404 {
		return nil
	}
	state, err := api.ParsePool(data)
	if err != nil {
		t.Fatal(err)
	}
	return state.Entries
}

func crPath(plural, name string) string {
	path := "/apis/" + api.Group + "/" + api.Version + "/namespaces/" + testNamespace + "/" + plural
	if name != "" {
		path += "/" + name
	}
	return path
}

func poolPath(name string) string        { return crPath("ippools", name) }
func reservationPath(name string) string { return crPath("overlappingrangeipreservations", name) }

// reservations returns the reservations of an address space, by name.
func reservations(t testing.TB, space string) map[string]api.ReservationSpec {
	t.Helper()
	_, data, err := plane.Admin().Get(context.Background(), reservationPath(""))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []api.Reservation }
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	found := map[string]api.ReservationSpec{}
	for _, r := range list.Items {
		if _, ok := api.ReservedAddr(space, r.Metadata.Name); ok {
			found[r.Metadata.Name] = r.Spec
		}
	}
	return found
}

func createPool(t testing.TB, pool ipam.Pool, allocations map[string]api.Entry) {
	t.Helper()
	pooltest.Create(t, plane, poolPath(""), api.NewIPPool(pool.Name(), testNamespace, pool.Prefix.String(), allocations))
}

func createReservation(t testing.TB, name string, o ipam.Owner) {
	t.Helper()
	pooltest.Create(t, plane, reservationPath(""), api.NewReservation(name, testNamespace, o))
}

// wantEmpty fails the test if there are entries or reservations.
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
