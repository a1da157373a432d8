//go:build rig

package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// nodeFile makes this text the node file of the plugins that the test runs, with any state
// directory permitted.
func (n *node) nodeFile(text string) {
	n.t.Helper()
	path := filepath.Join(n.t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte(text+"\npaths: [/**]\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.t.Setenv(nodefile.PathEnv, path)
}

// lends adds the interface and fails the test unless it is the NIC of the rail.
func (n *node) lends(p *pod, ifName, config string, rail int) {
	n.t.Helper()
	n.MustRun(p.call("ADD", ifName, config))
	if l, err := link.ByName(p.Netns.Netns, ifName); err != nil || l.ParentDev != nicPCI(rail) {
		n.t.Errorf("%s is %+v, %v, and not the NIC of rail %d, %s", ifName, l, err, rail, nicPCI(rail))
	}
}

// A device plugin has allocated a NIC, and Multus has added its id to the configuration, as
// runtimeConfig or as keys.
func TestDeviceIDChoosesTheNIC(t *testing.T) {
	n := newNode(t)
	n.up(3)
	n.nodeFile("rails: {auto: pciOrder}")
	before := n.State()
	id := func(rail int) map[string]any {
		return map[string]any{"device": nil, "deviceID": nicPCI(rail), "pciBusID": nicPCI(rail)}
	}
	with := func(conf, more map[string]any) map[string]any {
		maps.Copy(conf, more)
		return conf
	}
	for name, c := range map[string]struct {
		more  map[string]any // beside the selector device of rail 0
		rail  int            // of the NIC that is lent
		code  uint           // or of the error
		texts []string
	}{
		"an id alone":             {more: id(1), rail: 1},
		"the runtime's id alone":  {more: map[string]any{"device": nil, "runtimeConfig": map[string]any{"deviceID": nicPCI(2)}}, rail: 2},
		"a selector and its id":   {more: with(id(0), map[string]any{"device": nicName(0)}), rail: 0},
		"a selector and another":  {more: with(id(1), map[string]any{"device": nicName(0)}), code: cnierr.InvalidConfig, texts: []string{nicName(0), nicPCI(0), nicPCI(1), "resourceName"}},
		"a selector and a number": {more: map[string]any{"deviceID": "3", "pciBusID": "3"}, rail: 0},
		"no id":                   {more: map[string]any{"device": nil}, code: cnierr.InvalidConfig, texts: []string{"no device plugin has allocated one", "resourceName"}},
		"its rail":                {more: with(id(1), map[string]any{"rail": 1}), rail: 1},
		"the wrong rail":          {more: with(id(1), map[string]any{"rail": 2}), code: cnierr.InvalidConfig, texts: []string{"for rail 2", nicName(1), nicPCI(1), "has rail 1"}},
		"a rail alone":            {more: map[string]any{"device": nil, "rail": 2}, rail: 2},
		"a rail and a number":     {more: map[string]any{"device": nil, "rail": 1, "deviceID": "0"}, rail: 1},
		"a rail that no NIC has":  {more: map[string]any{"device": nil, "rail": 99}, code: cnierr.NICNotFound, texts: []string{"rail 99", "railctl rails discover"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			p, config := n.pod("pod1"), n.config(0, c.more)
			if c.code != 0 {
				_, err := n.Run(p.call("ADD", "net1", config))
				refused(t, err, c.code, c.texts...)
				n.untouched(before)
				return
			}
			n.lends(p, "net1", config, c.rail)
			n.MustRun(p.call("DEL", "net1", config))
			n.untouched(before)
		})
	}
}

// A rail is the same NIC, in each way to name it, while others are lent with their RDMA
// devices, which the host then does not show.
func TestRailsOfLentNICsStay(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(rails)
	before, devices := n.State(), n.allRDMA()
	listed := "rails:"
	for rail := range rails {
		switch rail % 3 {
		case 0:
			listed += fmt.Sprintf("\n- {id: %d, pci: %q}", rail, nicPCI(rail))
		case 1:
			listed += fmt.Sprintf("\n- {id: %d, name: %s}", rail, altName(rail))
		default:
			listed += fmt.Sprintf("\n- {id: %d, rdma: %s}", rail, n.rdmaName(rail))
		}
	}
	for _, file := range []string{"rails: {auto: pciOrder}", listed} {
		n.nodeFile(file)
		p := n.pod("pod1")
		config := func(rail int) string {
			return n.config(rail, map[string]any{"device": nil, "rail": rail, "rdma": "required", "linkTimeout": "0s"})
		}
		for _, rail := range []int{3, 0, 7, 1, 2, 6, 5, 4} {
			n.lends(p, podName(rail), config(rail), rail)
		}
		other := n.pod("pod2")
		for rail := range rails {
			_, err := n.Run(other.call("ADD", "net1", config(rail)))
			refused(t, err, cnierr.NICLent, nicName(rail)+" is lent to", podName(rail))
		}
		// A proposal has the lent NICs too.
		out := n.Exec(filepath.Join(testnet.Bin(t), "railctl"), "rails", "discover", "--state-dir", n.state)
		file, err := nodefile.Parse([]byte(out))
		if err != nil {
			t.Fatal(err)
		}
		for rail := range rails {
			if r := file.Rails.List[rail]; r.ID != rail || r.PCI != nicPCI(rail) {
				t.Errorf("proposed as rail %d: %+v", rail, r)
			}
		}
		for rail := range rails {
			n.MustRun(p.call("DEL", podName(rail), config(rail)))
		}
		n.untouched(before)
		if now := n.allRDMA(); !maps.Equal(now, devices) {
			t.Errorf("RDMA devices: %v, before: %v", now, devices)
		}
	}
}

// rdmaName returns the name of the RDMA device of a rail's NIC.
func (n *node) rdmaName(rail int) string {
	n.t.Helper()
	for name := range n.rdmaIn(n.Netns.Netns, func(parent string) bool { return parent == nicPCI(rail) }) {
		return name
	}
	n.t.Fatalf("%s has no RDMA device", nicPCI(rail))
	return ""
}

// Pods with a macvlan get the NIC of the rail as the master.
func TestMasterOfAMacvlanIsThatOfTheRail(t *testing.T) {
	n := newNode(t)
	n.up(2)
	n.nodeFile("rails: {auto: pciOrder}")
	before := n.State()
	config := n.config(0, map[string]any{"type": "macvlan", "name": "shared-rail", "device": nil, "rail": 1})
	p := n.pod("pod1")
	call := p.call("ADD", "net1", config)
	call.Plugin = "macvlan"
	n.MustRun(call)
	child, err := link.ByName(p.Netns.Netns, "net1")
	if err != nil {
		t.Fatal(err)
	}
	master, err := link.ByName(n.Netns.Netns, nicName(1))
	if err != nil || child.Kind != "macvlan" || child.Lower != master.Index {
		t.Errorf("net1 is %+v, on %+v, %v", child, master, err)
	}
	call.Verb = "DEL"
	n.MustRun(call)
	n.untouched(before)
}
