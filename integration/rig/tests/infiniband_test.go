//go:build rig

package tests

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// ipoib returns the name of the InfiniBand interface of a rail.
func (n *node) ipoib(rail int) string {
	n.t.Helper()
	links, err := n.Links()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, l := range links {
		if l.Encap == "infiniband" && l.ParentDev == nicPCI(rail) {
			return l.Name
		}
	}
	n.t.Fatalf("no InfiniBand interface of %s:\n%s", nicPCI(rail), n.IP("-d", "link"))
	return ""
}

// The move of its RDMA device would destroy the interface: it is refused before
// anything moves. Without RDMA it is lent like others.
func TestInfiniBandInExclusiveModeIsRefused(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "link_layer=ib ")
	ib := n.ipoib(0)
	before, devices := n.State(), n.allRDMA()
	for _, mode := range []string{"auto", "required"} {
		config := n.config(0, map[string]any{"device": ib, "rdma": mode, "allow": netconf.Overrides})
		_, err := n.Run(n.pod("pod1").call("ADD", "net1", config))
		refused(t, err, cnierr.NICProtected, ib, "exclusive mode", "InfiniBand interface", `"rdma": "off"`)
		n.untouched(before)
		if now := n.allRDMA(); !maps.Equal(now, devices) {
			t.Errorf("RDMA devices: %v, before: %v", now, devices)
		}
	}
	p, config := n.pod("pod2"), n.config(0, map[string]any{"device": ib, "rdma": "off"})
	result := n.MustRun(p.call("ADD", "net1", config))
	chained := p.call("ADD", "net1", n.config(0, map[string]any{"type": "rdma", "device": nil, "prevResult": json.RawMessage(result)}))
	chained.Plugin = "rdma"
	_, err := n.Run(chained)
	refused(t, err, cnierr.NotAvailable, "InfiniBand interface", "netns_mode=1")
	if strings.Contains(err.Error(), "host-device") {
		t.Errorf("the advice is what is refused: %v", err)
	}
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
}

// What the pod did to the mode of its interface is undone before the MTU, which depends on it.
func TestModeOfInfiniBandThatAPodSetIsUndone(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib ")
	ib := n.ipoib(0)
	config := n.config(0, map[string]any{"device": ib})
	for name, c := range need.SampleMap(t, 2, map[string]struct{ before, pod []string }{
		"connected in the pod": {nil, []string{"mode", "connected"}},
		"datagram in the pod":  {[]string{"mode", "connected"}, []string{"mode", "datagram"}},
		"umcast in the pod":    {nil, []string{"umcast", "1"}},
		"umcast on the host":   {[]string{"umcast", "1"}, []string{"umcast", "0"}},
	}) {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			set := func(ns *testnet.Netns, name string, what []string) {
				if what != nil {
					ns.IP(append([]string{"link", "set", name, "type", "ipoib"}, what...)...)
				}
			}
			set(n.Netns, ib, c.before)
			defer set(n.Netns, ib, []string{"mode", "datagram", "umcast", "0"})
			before, wanted := n.State(), n.IP("-d", "link", "show", ib)
			p := n.pod("pod1")
			n.MustRun(p.call("ADD", "net1", config))
			set(p.Netns, "net1", c.pod)
			n.MustRun(p.call("DEL", "net1", config))
			n.untouched(before)
			if now := n.IP("-d", "link", "show", ib); now != wanted {
				t.Errorf("%s, before: %s", now, wanted)
			}
		})
	}
}

// A child that a pod made of its interface would send through the NIC of the next pod, and the
// kernel would bring it to the host when the pod's netns ends.
func TestInfiniBandChildrenOfAPodEndWithItsAttachment(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib ")
	ib := n.ipoib(0)
	config := n.config(0, map[string]any{"device": ib})
	children := func(ns *testnet.Netns) (found []string) {
		links, err := ns.Links()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			if l.Kind == "ipoib" && !l.HasParent() {
				found = append(found, l.Name)
			}
		}
		return found
	}
	for name, end := range need.SampleMap(t, 2, map[string]func(n *node, p *pod){
		"DEL": func(n *node, p *pod) { n.MustRun(p.call("DEL", "net1", config)) },
		"the netns ends, then DEL": func(n *node, p *pod) {
			p.Kill()
			n.MustRun(p.call("DEL", "net1", config))
		},
		"the netns ends, then railctl gc": func(n *node, p *pod) {
			p.Kill()
			n.gc()
		},
	}) {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			before := n.State()
			p := n.pod("pod1") // it gets the NIC also after another pod
			n.MustRun(p.call("ADD", "net1", config))
			p.IP("link", "add", "child", "link", "net1", "type", "ipoib", "pkey", "0xffff")
			end(n, p)
			n.untouched(before)
			if left := children(n.Netns); left != nil {
				t.Errorf("on the host: %q", left)
			}
		})
	}
}
