package reconcile

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// plane is the control plane that the tests of this package share. Each test
// has a namespace of its own on it.
var plane *controlplane.Plane

func TestMain(m *testing.M) { os.Exit(pooltest.Main(m, &plane)) }

// node is one simulated node, whose store assigns addresses.
type node struct {
	*store.Store
	t     *testing.T
	state string
}

func newNode(t *testing.T, kubeconfig string) *node {
	t.Helper()
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, UserAgent: "test-" + t.Name(), RetryFor: store.RetryFor})
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	s, err := store.New(store.Options{
		Client: client, Kubeconfig: kubeconfig, StateDir: state + "/run", JournalDir: state + "/journal",
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
