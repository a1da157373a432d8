package link_test

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// detects makes a NIC in a pod netns on which duplicate address detection is on.
func detects(t *testing.T) (r *rail, index int) {
	t.Helper()
	r = newRail(t, "ens1")
	r.host.Sysctl("ipv6/conf/ens1/accept_dad", "1")
	return r, byName(t, r.host, "ens1").Index
}

// rail is a host netns with one NIC in it, its switch, and a pod netns.
type rail struct {
	host, wire, pod *testnet.Netns
	t               *testing.T
}

func newRail(t *testing.T, nic string) *rail {
	t.Helper()
	r := &rail{host: testnet.NewNetns(t, "host"), wire: testnet.NewNetns(t, "wire"), pod: testnet.NewNetns(t, "pod"), t: t}
	r.host.NIC(nic, r.wire)
	return r
}

// later calls do after a while, and before the test closes its namespaces.
func (r *rail) later(after time.Duration, do func()) {
	over := make(chan struct{})
	time.AfterFunc(after, func() {
		defer close(over)
		do()
	})
	r.t.Cleanup(func() { <-over })
}

func byName(t *testing.T, n *testnet.Netns, name string) *link.Link {
	t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func view(t *testing.T, n *testnet.Netns, l *link.Link) *link.View {
	t.Helper()
	v, err := link.ReadView(n.Netns, l.Index)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
