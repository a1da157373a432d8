package block

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// plane is the control plane that the tests of this package share. Each test has an
// address space of its own on it.
var plane *controlplane.Plane

func TestMain(m *testing.M) {
	if text := os.Getenv(processVar); text != "" {
		os.Exit(runTask(text))
	}
	os.Exit(pooltest.Main(m, &plane))
}

const testSize = 4

// node is one simulated node: a name, and a state directory of its own. Its clock and its
// boot can be changed.
type node struct {
	*Store
	t      *testing.T
	state  string
	passed time.Duration // of the node's clock, beside the real one
}

func newNode(t *testing.T, name string) *node {
	t.Helper()
	return newNodeAt(t, name, plane.AdminKubeconfig(), t.TempDir())
}

func newNodeAt(t *testing.T, name, kubeconfig, state string) *node {
	t.Helper()
	n := &node{t: t, state: state}
	s, err := New(Options{
		Client: client(t, kubeconfig), Kubeconfig: kubeconfig, StateDir: state, Node: name, Size: testSize,
		Warn: func(err error) { t.Log("warning:", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.now = func() moment { return now() + moment(n.passed) }
	n.Store = s
	return n
}

func client(t *testing.T, kubeconfig string) *kube.Client {
	t.Helper()
	c, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, UserAgent: "test-" + t.Name(), RetryFor: RetryFor})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// reboot returns the node as it is after a reboot, with an empty state directory, as on
// tmpfs.
func (n *node) reboot(boot string) *node {
	n.t.Helper()
	m := newNodeAt(n.t, n.self.Node, n.kubeconfig, n.t.TempDir())
	m.self.Boot = boot
	return m
}

func (n *node) add(o ipam.Owner, c ipam.Claim) netip.Addr {
	n.t.Helper()
	got, err := n.Allocate(pooltest.Context(n.t), o, []ipam.Claim{c})
	if err != nil {
		n.t.Fatal(err)
	}
	if got[0].Bits() != c.Pool.Prefix.Bits() {
		n.t.Fatalf("%s has not the mask of %s", got[0], c.Pool.Prefix)
	}
	return got[0].Addr()
}

func (n *node) del(o ipam.Owner, c ipam.Claim) {
	n.t.Helper()
	if err := n.Release(pooltest.Context(n.t), o, []ipam.Pool{c.Pool}); err != nil {
		n.t.Fatal(err)
	}
}

// blocks returns the prefixes of the node's blocks in c's pool.
func (n *node) blocks(c ipam.Claim) []netip.Prefix {
	n.t.Helper()
	f, err := n.pool(c.Pool).peek(pooltest.Context(n.t))
	if err != nil {
		n.t.Fatal(err)
	}
	var all []netip.Prefix
	for _, e := range f.Blocks {
		all = append(all, e.Prefix)
	}
	return all
}

// onServer returns a block as the server has it, or nil if there is no such block.
func onServer(t *testing.T, c ipam.Claim, block netip.Prefix) *api.PoolState {
	t.Helper()
	p, err := api.ReadBlock(pooltest.Context(t), client(t, plane.AdminKubeconfig()), api.BlockName(c.Pool, block))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// requests returns how many requests do makes.
func requests(t *testing.T, do func()) int {
	t.Helper()
	began := time.Now()
	do()
	return len(pooltest.RequestsSince(t, plane, began))
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("error %v, want %q", err, part)
		}
	}
}

func soon(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
