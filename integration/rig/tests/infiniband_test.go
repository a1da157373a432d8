//go:build rig

package tests

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

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
