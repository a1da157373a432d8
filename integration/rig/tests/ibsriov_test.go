//go:build rig

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/opensm"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// The GUIDs of the second virtual function: the administrator's, and the pod's.
const (
	adminGUID = "02:00:00:00:00:00:00:77"
	podGUID   = "02:00:00:00:00:00:0b:01"
)

// newHCAFunctions returns a node with virtual functions of an HCA, of which the second one has a GUID of the
// administrator, and the others none.
func newHCAFunctions(t *testing.T, mode rdma.Mode, partitions string) (*functionNode, *opensm.Manager) {
	t.Helper()
	n := &functionNode{node: newRDMANode(t, mode, "link_layer=ib slots=11,18,0")}
	n.makeFunctions(3)
	m := n.openSM(partitions)
	for i := range 3 {
		n.pci = append(n.pci, filepath.Base(readLink(t, fmt.Sprintf("%svirtfn%d", functionDir, i))))
	}
	n.pf = n.ipoibOf(filepath.Base(functionDir))
	n.IP("link", "set", n.pf, "up")
	n.carrier(n.pf)
	n.setGUID(1, adminGUID, adminGUID)
	return n, m
}

// setGUID sets the GUIDs of a virtual function as an administrator does, and binds its driver anew.
func (n *functionNode) setGUID(number int, node, port string) {
	n.t.Helper()
	name := n.ipoibOf(n.pci[number])
	n.Batch(nil, fmt.Sprintf("link set %s vf %d node_guid %s", n.pf, number, node), fmt.Sprintf("link set %s vf %d port_guid %s", n.pf, number, port))
	for _, file := range []string{"unbind", "bind"} {
		write(n.t, driver+file, n.pci[number])
	}
	n.IP("link", "set", n.ipoibOf(n.pci[number]), "name", name)
}

// guidOf returns the node and the port GUID of the RDMA device in ns of a virtual function.
func (n *functionNode) guidOf(ns *testnet.Netns, number int) string {
	n.t.Helper()
	text := ns.Exec("sh", "-euc", fmt.Sprintf("cd /sys/bus/pci/devices/%s/infiniband/*; cat node_guid ports/1/gids/0", n.pci[number]))
	return strings.Join(strings.Fields(text), " ")
}

// guidText returns what guidOf returns for a GUID.
func guidText(guid string) string {
	hex := strings.ReplaceAll(guid, ":", "")
	four := fmt.Sprintf("%s:%s:%s:%s", hex[:4], hex[4:8], hex[8:12], hex[12:])
	return four + " fe80:0000:0000:0000:" + four
}

// lendIB returns the call of ib-sriov that lends a virtual function to the pod.
func (n *functionNode) lendIB(p *pod, verb string, number int, more map[string]any) testnet.Call {
	conf := map[string]any{"type": "ib-sriov", "name": "ib", "device": nil, "deviceID": n.pci[number]}
	maps.Copy(conf, more)
	call := p.call(verb, "net1", n.config(0, conf))
	call.Plugin = "ib-sriov"
	return call
}

// asked returns the keys that Multus adds for a pod that ib-kubernetes has given a GUID by the annotation.
func asked(guid string) map[string]any {
	return map[string]any{"args": map[string]any{"cni": map[string]any{"guid": guid, "mellanox.infiniband.app": "configured"}}}
}

// chars returns the char devices of a virtual function.
func (n *functionNode) chars(number int) string {
	n.t.Helper()
	found, err := filepath.Glob("/sys/bus/pci/devices/" + n.pci[number] + "/infiniband_*/*")
	if err != nil || len(found) == 0 {
		n.t.Fatalf("char devices of %s: %v, %v", n.pci[number], found, err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return strings.Join(found, " ")
}

// TestGUIDOfAVirtualFunctionComesHome: the driver is bound anew for the pod's GUID, and again for the administrator's. That
// makes the interface and the RDMA device anew, and they are to be as they were.
func TestGUIDOfAVirtualFunctionComesHome(t *testing.T) {
	for _, mode := range []rdma.Mode{rdma.Shared, rdma.Exclusive} {
		t.Run(string(mode), func(t *testing.T) { guidComesHome(t, mode) })
	}
}

func guidComesHome(t *testing.T, mode rdma.Mode) {
	n, _ := newHCAFunctions(t, mode, opensm.OpenFabric)
	name := "ibs1v1"
	n.IP("link", "set", n.ipoibOf(n.pci[1]), "name", name)
	setIPoIB(n.Netns, name, "datagram", 1)
	n.Batch(nil, "link property add dev "+name+" altname ib-altname", "link set "+name+" mtu 2000 alias vf-1 txqueuelen 4321 up", "addr add 10.9.0.1/24 dev "+name)
	n.carrier(name)
	before, devices, chars, table := n.State(), n.allRDMA(), n.chars(1), n.table()
	untouched := func(n *functionNode) {
		n.t.Helper()
		n.untouched(before)
		if now := n.table(); now != table {
			n.t.Errorf("the functions are\n%s\nbefore:\n%s", now, table)
		}
		if now := n.allRDMA(); !maps.Equal(now, devices) {
			n.t.Errorf("RDMA devices: %v, before: %v", now, devices)
		}
		if now, guid := n.chars(1), n.guidOf(n.Netns, 1); now != chars || guid != guidText(adminGUID) {
			n.t.Errorf("%s with the GUIDs %s, before: %s", now, guid, chars)
		}
	}
	ends := endings((*functionNode).lendIB, nil, func(n *functionNode, next *pod) {
		if now := n.guidOf(next.Netns, 1); now != guidText(adminGUID) {
			n.t.Errorf("the next pod has the GUIDs %s", now)
		}
	})
	for name, end := range need.SampleMap(t, 1, ends) {
		t.Run(name, func(t *testing.T) {
			n := &functionNode{n.in(t), n.pci, n.pf}
			p := n.pod("pod")
			more := asked(podGUID)
			maps.Copy(more, map[string]any{"link_state": "enable", "linkTimeout": "30s", "ibKubernetesEnabled": true, "pkey": "0xffff"})
			call := n.lendIB(p, "ADD", 1, more)
			result := n.MustRun(call)
			l, err := link.ByName(p.Netns.Netns, "net1")
			if err != nil || !l.IsUp() || l.MTU != 2000 || l.TxQueueLen != 4321 || l.IPoIB.Umcast != 1 || !strings.HasSuffix(l.MAC.String(), podGUID) ||
				!strings.Contains(string(result), podGUID) {
				t.Errorf("net1 is %+v, %v, the result %s", l, err, result)
			}
			if now, guid := n.chars(1), n.guidOf(p.Netns, 1); now != chars || guid != guidText(podGUID) {
				t.Errorf("the pod has %s with the GUIDs %s, want %s", now, guid, chars)
			}
			if now := n.table(); !regexp.MustCompile(`vf 1 .*NODE_GUID ` + podGUID + `, PORT_GUID ` + podGUID + `, link-state enable`).MatchString(now) {
				t.Errorf("the functions are\n%s", now)
			}
			more["prevResult"] = json.RawMessage(result)
			n.MustRun(n.lendIB(p, "CHECK", 1, more))
			// What the pod does to the interface ends with it.
			p.Batch(nil, "link set net1 down", "link set net1 name other", "link set other mtu 1500 up", "link add link other name stray type ipoib pkey 0x8001")
			end(n, p, call)
			untouched(n)
		})
	}
	t.Run("an ADD that fails", func(t *testing.T) {
		n := &functionNode{n.in(t), n.pci, n.pf}
		more := asked(podGUID)
		more["mtu"] = 65521
		_, err := n.Run(n.lendIB(n.pod("pod"), "ADD", 1, more))
		refused(t, err, cnierr.InvalidConfig, "65521")
		untouched(n)
	})
	t.Run("the function's own GUID", func(t *testing.T) {
		n := &functionNode{n.in(t), n.pci, n.pf}
		index := func() int {
			l, err := link.ByName(n.node.Netns.Netns, name)
			if err != nil {
				t.Fatal(err)
			}
			return l.Index
		}
		was := index()
		call := n.lendIB(n.pod("pod"), "ADD", 1, map[string]any{"runtimeConfig": map[string]any{"infinibandGUID": adminGUID}})
		n.MustRun(call)
		n.MustRun(call.With("DEL"))
		if now := index(); mode == rdma.Shared && now != was {
			t.Errorf("the driver was rebound: the interface's index is %d, not %d", now, was)
		}
		untouched(n)
	})
}

// TestVirtualFunctionWithoutAGUIDIsRefused: a subnet manager refuses the GUID 0, and many functions have all ones.
func TestVirtualFunctionWithoutAGUIDIsRefused(t *testing.T) {
	n, _ := newHCAFunctions(t, rdma.Shared, opensm.OpenFabric)
	before := n.State()
	for plugin, config := range map[string]string{
		"host-device": n.config(0, map[string]any{"device": nil, "deviceID": n.pci[0]}),
		"ib-sriov":    n.config(0, map[string]any{"type": "ib-sriov", "device": nil, "deviceID": n.pci[0]}),
	} {
		call := n.pod(plugin).call("ADD", "net1", config)
		call.Plugin = plugin
		_, err := n.Run(call)
		refused(t, err, cnierr.NotAvailable, "has no GUID of its own (0000000000000000)", "ib-kubernetes")
	}
	n.untouched(before)
	// A pod with a GUID of its own may have it. It then has all ones, because 0 is no GUID that can be set.
	call := n.lendIB(n.pod("pod"), "ADD", 0, asked(podGUID))
	n.MustRun(call)
	n.MustRun(call.With("DEL"))
	if now := n.guidOf(n.Netns, 0); now != guidText("ff:ff:ff:ff:ff:ff:ff:ff") {
		t.Errorf("the function has the GUIDs %s", now)
	}
	_, err := n.Run(n.lendIB(n.pod("pod2"), "ADD", 0, nil))
	refused(t, err, cnierr.NotAvailable, "has no GUID of its own (ffffffffffffffff)")
}

// TestAnnotationOfIBKubernetes: it comes after the first ADD, before it, or with another GUID at the second one. The
// registries refuse ib-kubernetes, so the test writes what Multus makes of its annotation.
func TestAnnotationOfIBKubernetes(t *testing.T) {
	n, m := newHCAFunctions(t, rdma.Shared, opensm.OpenFabric)
	before := n.State()
	partition := map[string]any{"ibKubernetesEnabled": true, "pkey": "0x6", "linkTimeout": "5s"}
	with := func(more map[string]any) map[string]any {
		all := maps.Clone(partition)
		maps.Copy(all, more)
		return all
	}
	p := n.pod("pod")
	// Late.
	written := func(key, value string) map[string]any {
		return map[string]any{"args": map[string]any{"cni": map[string]any{key: value}}}
	}
	for _, more := range []map[string]any{nil, written("guid", podGUID), written("mellanox.infiniband.app", "configured")} {
		_, err := n.Run(n.lendIB(p, "ADD", 1, with(more)))
		refused(t, err, cnierr.TryAgain, "ib-kubernetes has not given the pod a GUID yet")
		n.untouched(before)
	}
	// Early: the fabric manager does not have the GUID in the partition yet.
	_, err := n.Run(n.lendIB(p, "ADD", 1, with(asked(podGUID))))
	refused(t, err, cnierr.TryAgain, "not a member of partition 0x0006")
	n.untouched(before)
	// Changed.
	const other = "02:00:00:00:00:00:0b:02"
	if err := m.SetPartitions(t.Context(), opensm.OpenFabric+"red=0x6, ipoib : 0x"+strings.ReplaceAll(other, ":", "")+"=full ;\n"); err != nil {
		t.Fatal(err)
	}
	call := n.lendIB(p, "ADD", 1, with(asked(other)))
	n.MustRun(call)
	if now := n.guidOf(p.Netns, 1); now != guidText(other) {
		t.Errorf("the pod has the GUIDs %s", now)
	}
	n.MustRun(n.lendIB(p, "DEL", 1, with(asked(podGUID))))
	n.untouched(before)
	// Without ib-kubernetes the partition is not required.
	call = n.lendIB(p, "ADD", 1, map[string]any{"pkey": "0x6"})
	n.MustRun(call)
	n.MustRun(call.With("DEL"))
	n.untouched(before)
}

// TestNumbersOfCharDevicesStay: the kernel takes the lowest free number, and a device plugin has promised the pod the
// function's own.
func TestNumbersOfCharDevicesStay(t *testing.T) {
	n, _ := newHCAFunctions(t, rdma.Shared, opensm.OpenFabric)
	_, err := n.Run(n.lendIB(n.pod("pod"), "ADD", 1, map[string]any{"rdmaIsolation": true}))
	refused(t, err, cnierr.NotAvailable, `"rdmaIsolation"`, "shared mode")
	write(t, driver+"unbind", n.pci[0])
	t.Cleanup(func() { write(t, driver+"bind", n.pci[0]) })
	before, chars := n.State(), n.chars(2)
	_, err = n.Run(n.lendIB(n.pod("pod"), "ADD", 2, asked(podGUID)))
	refused(t, err, cnierr.NotAvailable, "would get other numbers", "is free")
	n.untouched(before)
	if now := n.chars(2); now != chars {
		t.Errorf("the function has %s, and had %s", now, chars)
	}
}

// TestGUIDThatAFunctionHasHalfOfAlready: node and port GUID are set and restored together, and the RDMA device, in shared mode
// too, has the name that the administrator gave it.
func TestGUIDThatAFunctionHasHalfOfAlready(t *testing.T) {
	n, _ := newHCAFunctions(t, rdma.Shared, opensm.OpenFabric)
	n.setGUID(1, podGUID, adminGUID)
	devices, err := filepath.Glob("/sys/bus/pci/devices/" + n.pci[1] + "/infiniband/*")
	if err != nil || len(devices) != 1 {
		t.Fatal(devices, err)
	}
	n.Exec("rdma", "dev", "set", filepath.Base(devices[0]), "name", "ib-admin")
	before, table, guid, all := n.State(), n.table(), n.guidOf(n.Netns, 1), n.allRDMA()
	call := n.lendIB(n.pod("pod"), "ADD", 1, asked(podGUID))
	n.MustRun(call)
	if now := n.guidOf(n.Netns, 1); now != guidText(podGUID) {
		t.Errorf("the pod has the GUIDs %s", now)
	}
	n.MustRun(call.With("DEL"))
	n.untouched(before)
	if now := n.table(); now != table {
		t.Errorf("the functions are\n%s\nbefore:\n%s", now, table)
	}
	if now := n.guidOf(n.Netns, 1); now != guid {
		t.Errorf("the function has the GUIDs %s, and had %s", now, guid)
	}
	if now := n.allRDMA(); !maps.Equal(now, all) {
		t.Errorf("RDMA devices: %v, before: %v", now, all)
	}
}

// TestGUIDThatTheDriverRefuses: of the two it takes the first one, or none.
func TestGUIDThatTheDriverRefuses(t *testing.T) {
	n, _ := newHCAFunctions(t, rdma.Shared, opensm.OpenFabric)
	before, table, chars := n.State(), n.table(), n.chars(1)
	for bits, setting := range map[string]string{"2048": "port GUID", "3072": "node GUID"} { // IFLA_VF_IB_NODE_GUID is 10
		for number := range 2 { // without a GUID, and with the administrator's
			knob(t, "vf_lacks", bits, func() {
				_, err := n.Run(n.lendIB(n.pod(fmt.Sprint("pod", number)), "ADD", number, asked(podGUID)))
				refused(t, err, cnierr.NotAvailable, setting)
			})
			if bits == "2048" && number == 0 { // it took the node GUID, and 0 is no GUID that can be set
				n.Batch(nil, "link set "+n.pf+" vf 0 node_guid 00:00:00:00:00:00:00:00", "link set "+n.pf+" vf 0 port_guid 00:00:00:00:00:00:00:00")
			}
			n.untouched(before)
			if now := n.table(); now != table {
				t.Errorf("%s of function %d: the functions are\n%s\nbefore:\n%s", setting, number, now, table)
			}
		}
	}
	if now := n.chars(1); now != chars {
		t.Errorf("the function has %s, and had %s", now, chars)
	}
}

// TestAttachmentsOfIBSRIOVCNIEnd: ib-sriov-cni's module is refused by the registries, so the test leaves what its ADD leaves.
func TestAttachmentsOfIBSRIOVCNIEnd(t *testing.T) {
	n, _ := newHCAFunctions(t, rdma.Shared, opensm.OpenFabric)
	before := n.State()
	const dir = "/var/lib/cni/ib-sriov"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(p *pod, call testnet.Call){
		"living pod": func(_ *pod, call testnet.Call) { n.MustRun(call.With("DEL")) },
		"dead pod":   func(p *pod, call testnet.Call) { p.Kill(); n.MustRun(call.With("DEL")) },
		"a DEL that was killed": func(_ *pod, call testnet.Call) {
			write(t, driver+"unbind", n.pci[1])
			n.MustRun(call.With("DEL"))
		},
	} {
		t.Log(name)
		p := n.pod("theirs")
		call := n.lendIB(p, "ADD", 1, asked(podGUID))
		own := n.ipoibOf(n.pci[1])
		n.IP("link", "set", n.pf, "vf", "1", "state", "enable")
		n.setGUID(1, podGUID, podGUID)
		n.Batch(nil, "link set "+own+" netns "+p.Name+" name net1")
		file := filepath.Join(dir, "theirs-net1")
		write(t, file, fmt.Sprintf(`{"Master": %q, "VFID": 1, "HostIFNames": %q, "HostIFGUID": %q, "ContIFNames": "net1", "pkey": "", "link_state": "enable",
			"deviceID": %q, "name": "ib", "type": "ib-sriov", "RdmaNetState": {"Version": "", "DeviceID": "", "SandboxRdmaDevName": "", "ContainerRdmaDevName": ""}}`,
			n.pf, own, adminGUID, n.pci[1]))
		end(p, call)
		n.untouched(before)
		if now := n.guidOf(n.Netns, 1); now != guidText(adminGUID) {
			t.Errorf("the function has the GUIDs %s", now)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
	}
}

// TestDriverThatCannotBeBoundAnew: a failed ADD binds it once more. If that fails too, a later DEL does.
func TestDriverThatCannotBeBoundAnew(t *testing.T) {
	n, _ := newHCAFunctions(t, rdma.Shared, opensm.OpenFabric)
	before, table, chars := n.State(), n.table(), n.chars(1)
	for fails, later := range map[string]bool{"1": false, "2": true} {
		call := n.lendIB(n.pod("pod"+fails), "ADD", 1, asked(podGUID))
		knob(t, "vf_probes_fail", fails, func() {
			_, err := n.Run(call)
			refused(t, err, cnierr.Kernel, "bind "+n.pci[1])
		})
		if _, err := os.Stat("/sys/bus/pci/devices/" + n.pci[1] + "/driver"); (err != nil) != later {
			t.Errorf("after %s failures: %v", fails, err)
		}
		n.MustRun(call.With("DEL"))
		n.untouched(before)
		if now, guid := n.chars(1), n.guidOf(n.Netns, 1); now != chars || guid != guidText(adminGUID) || n.table() != table {
			t.Errorf("the function has %s and the GUIDs %s\n%s", now, guid, n.table())
		}
	}
}

// TestGUIDOfAFunctionOfAUserspaceDriver: the function is reset when the pod's program begins, so no driver is bound.
func TestGUIDOfAFunctionOfAUserspaceDriver(t *testing.T) {
	if err := kmod.LoadAll(wire.Functions); err != nil {
		t.Fatal(err)
	}
	n, _ := newHCAFunctions(t, rdma.Shared, opensm.OpenFabric)
	vfio := map[string]any{"vfioPciMode": true, "link_state": "enable"}
	maps.Copy(vfio, asked(podGUID))
	before := n.State()
	_, err := n.Run(n.lendIB(n.pod("early"), "ADD", 1, vfio))
	refused(t, err, cnierr.NotAvailable, `"vfioPciMode" is set, but no userspace driver holds`)
	n.untouched(before)
	n.bind(1, "uio_pci_generic")
	before, table := n.State(), n.table()
	for name, end := range map[string]func(p *pod, call testnet.Call){
		"DEL":          func(_ *pod, call testnet.Call) { n.MustRun(call.With("DEL")) },
		"dead pod, gc": func(p *pod, _ testnet.Call) { p.Kill(); n.gc() },
	} {
		p := n.pod("pod")
		call := n.lendIB(p, "ADD", 1, vfio)
		n.MustRun(call)
		if now := n.table(); strings.Count(now, podGUID) != 2 || !strings.Contains(now, "link-state enable") {
			t.Errorf("%s: the functions are\n%s", name, now)
		}
		if links, err := link.Links(p.Netns.Netns); err != nil || len(links) != 1 {
			t.Errorf("%s: the pod has the links %+v, %v", name, links, err)
		}
		end(p, call)
		n.untouched(before)
		if now := n.table(); now != table {
			t.Errorf("%s: the functions are\n%s\nbefore:\n%s", name, now, table)
		}
	}
	n.bind(1, "mlx5_core")
}

// expectWarning hides the kernel's warnings from the console until the test ends: a run of the rig takes them for trouble.
func expectWarning(t *testing.T) {
	t.Helper()
	const levels = "/proc/sys/kernel/printk"
	before, err := os.ReadFile(levels)
	if err != nil {
		t.Fatal(err)
	}
	write(t, levels, "1")
	t.Cleanup(func() { write(t, levels, string(before)) })
	write(t, wire.Warned, "")
}

// TestTableThatDoesNotFitOneAnswer: older kernels refuse a question for many functions, that of iproute2 too. The table is
// then read in another way.
func TestTableThatDoesNotFitOneAnswer(t *testing.T) {
	n := &functionNode{node: newRDMANode(t, rdma.Shared, "link_layer=ib slots=11,18,0 vf_guids_uncounted=1")}
	n.makeFunctions(24)
	n.pf = n.ipoibOf(filepath.Base(functionDir))
	l, err := link.ByName(n.node.Netns.Netns, n.pf)
	if err != nil {
		t.Fatal(err)
	}
	expectWarning(t) // the kernel warns of its own fault (rtnl_getlink)
	if out, err := exec.Command("ip", "-n", n.Name, "link", "show", n.pf).CombinedOutput(); err == nil || !strings.Contains(string(out), "Message too long") {
		t.Fatalf("the table fits: %v, %s", err, out)
	}
	n.Batch(nil, "link set "+n.pf+" vf 23 node_guid "+adminGUID)
	for range 2 {
		settings, err := sriov.Function(n.node.Netns.Netns, l.Index, 23)
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(sriov.Text(settings)); !strings.Contains(text, adminGUID) {
			t.Errorf("function 23 has %s", text)
		}
	}
}
