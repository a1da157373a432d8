//go:build rig

package tests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/opensm"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// kindsTable is what docs/reference/kinds.md has, as a test of package docs sees to.
const kindsTable = "testdata/kinds.md"

// kind is a kind of device, a row of the table.
type kind struct {
	name       string
	parameters string // of the NICs' driver
	fabric     bool   // with a subnet manager
	// ready makes the device and returns its interface, "" if it has none.
	ready func(n *node) (name string)
}

func kinds() []kind {
	first := func(n *node) string { return nicName(0) }
	port := func(n *node) string { return n.ipoib(0) }
	functions := func(n *node, interfaceOf string) string {
		n.makeFunctions(2)
		names, err := filepath.Glob(functionDir + interfaceOf)
		if err != nil || len(names) != 1 {
			n.t.Fatalf("%s: %v, %v", interfaceOf, names, err)
		}
		return filepath.Base(names[0])
	}
	child := func(n *node) string {
		n.Batch(nil, "link add link "+n.ipoib(0)+" name child0 type ipoib", "link set "+n.ipoib(0)+" up")
		n.t.Cleanup(func() { n.remove("child0") })
		return "child0"
	}
	const few = "slots=11,12,18,0 "
	return []kind{
		{"RoCE NIC", few, false, first},
		{"Ethernet NIC without RDMA", few + "rdma=0", false, first},
		{"RoCE virtual function", few, false, func(n *node) string { return functions(n, "virtfn1/net/*") }},
		{"RoCE NIC that has virtual functions", few, false, func(n *node) string { return functions(n, "net/*") }},
		{"VLAN interface on a RoCE NIC", few, false, func(n *node) string {
			n.Batch(nil, "link set "+nicName(0)+" up", "link add link "+nicName(0)+" name vlan100 type vlan id 100", "link set vlan100 up")
			n.t.Cleanup(func() { n.remove("vlan100") })
			return "vlan100"
		}},
		{"bond of two RoCE NICs", few, false, func(n *node) string {
			n.bond(0, 1)
			return "bond0"
		}},
		{"RoCE NIC in a bond", few, false, func(n *node) string {
			n.bond(0, 1)
			return nicName(0)
		}},
		{"InfiniBand HCA", "link_layer=ib " + few, true, port},
		{"InfiniBand HCA with two ports", "link_layer=ib two_ports=11 " + few, true, port},
		{"InfiniBand HCA that has an IPoIB child", "link_layer=ib " + few, true, func(n *node) string {
			child(n)
			return n.ipoib(0)
		}},
		{"IPoIB child", "link_layer=ib " + few, true, child},
		{"InfiniBand HCA with the subnet manager", "link_layer=ib " + few, true, func(n *node) string { return n.ipoib(managerRail) }},
		{"RDMA device without an interface", "link_layer=ib " + few, false, func(n *node) string {
			if err := unix.DeleteModule("ib_ipoib", 0); err != nil {
				n.t.Fatal(err)
			}
			n.t.Cleanup(func() {
				if err := kmod.LoadAll(wire.LoadOrder); err != nil {
					n.t.Error(err)
				}
			})
			return ""
		}},
	}
}

// TestWhatHappensToEachKindOfDevice compares the table with what the plugins do, in both RDMA modes.
func TestWhatHappensToEachKindOfDevice(t *testing.T) {
	want, err := os.ReadFile(kindsTable)
	if err != nil {
		t.Fatal(err)
	}
	table := &strings.Builder{}
	table.WriteString("| device | `host-device`, exclusive mode | `host-device`, shared mode | `macvlan` | `ipoib` |\n|---|---|---|---|---|\n")
	for _, k := range kinds() {
		cells := map[string]string{}
		for _, mode := range []rdma.Mode{rdma.Exclusive, rdma.Shared} {
			t.Run(k.name+", "+string(mode), func(t *testing.T) {
				n := newRDMANode(t, mode, k.parameters)
				if k.fabric {
					n.openSM(opensm.OpenFabric)
				}
				name := k.ready(n)
				if name != "" {
					n.IP("link", "set", name, "up")
					n.carrier(name)
				}
				before := n.State()
				for _, plugin := range []string{"host-device", "macvlan", "ipoib"} {
					cells[plugin+string(mode)] = n.attach(plugin, name)
				}
				n.untouched(before)
			})
		}
		row := []string{k.name, cells["host-device"+string(rdma.Exclusive)], cells["host-device"+string(rdma.Shared)]}
		for _, plugin := range []string{"macvlan", "ipoib"} {
			cell := cells[plugin+string(rdma.Exclusive)]
			if shared := cells[plugin+string(rdma.Shared)]; shared != cell {
				cell += "; in shared mode " + shared
			}
			row = append(row, cell)
		}
		fmt.Fprintf(table, "| %s |\n", strings.Join(row, " | "))
	}
	if table.String() != string(want) {
		t.Errorf("%s has another table than\n%s", kindsTable, table)
	}
}

// attach attaches the device to a pod by a plugin, and ends that. It returns what the pod got.
func (n *node) attach(plugin, name string) string {
	n.t.Helper()
	conf := map[string]any{"type": plugin, "device": nil, "linkTimeout": "0s"}
	switch {
	case plugin != "host-device":
		conf["master"] = name
		if name == "" {
			return "–" // they need an interface
		}
	case name == "":
		conf["deviceID"], conf["linkTimeout"] = nicPCI(0), nil
	default:
		conf["device"] = name
	}
	p := n.pod("pod")
	call := p.call("ADD", "net1", n.config(0, conf))
	call.Plugin = plugin
	_, err := n.Run(call)
	var said *types.Error
	if errors.As(err, &said) {
		return refusal(said)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	got := n.contents(p, name)
	n.MustRun(call.With("DEL"))
	return got
}

// contents returns what the pod has of the device with this interface on the host.
func (n *node) contents(p *pod, name string) string {
	n.t.Helper()
	l, err := link.ByName(p.Netns.Netns, "net1")
	var parts []string
	switch {
	case errors.Is(err, link.ErrNotFound):
	case err != nil:
		n.t.Fatal(err)
	default:
		if _, err := link.ByName(n.Netns.Netns, name); err == nil {
			parts = append(parts, "a child ("+l.Kind+")")
		} else {
			parts = append(parts, "the interface")
		}
	}
	if mode, err := n.core(n.Netns.Netns).Mode(); err != nil {
		n.t.Fatal(err)
	} else if mode == rdma.Exclusive && len(n.rdmaIn(p.Netns.Netns, func(string) bool { return true })) > 0 {
		parts = append(parts, "the RDMA device")
	}
	if len(parts) == 0 {
		return "the RDMA device, shared with all"
	}
	return strings.Join(parts, " and ")
}

// refusal returns how the table says an error: by the key that would allow it, else by its code.
func refusal(said *types.Error) string {
	for _, key := range netconf.Overrides {
		if strings.Contains(said.Error(), fmt.Sprintf(`"allow": [%q]`, key)) {
			return "refused: `" + key + "`"
		}
	}
	return fmt.Sprintf("refused: code %d", said.Code)
}
