package nicstate_test

import (
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

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
