//go:build rig

package crash

import (
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/opensm"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// rail is a host in the rig: its NICs return to the host when their pod dies,
// and have RDMA devices.
type rail struct {
	*host
	infiniband bool            // its NICs are HCAs
	igb        bool            // the virtual functions are those of igb, without RDMA
	manager    *opensm.Manager // of the fabric; nil on Ethernet
	devices    string          // of RDMA, before
}

// nicPCI is the PCI address of the NIC nicName in the rig, and managerPCI that of the HCA whose port has the
// subnet manager.
const (
	nicPCI     = "0000:00:0c.0"
	managerPCI = "0000:00:12.0"
)

// sriov and ibSRIOV are the plugins whose two NICs are virtual functions of physical.
const (
	sriov    = "sriov"
	ibSRIOV  = "ib-sriov"
	physical = "enp1s0np0"

	physicalPCI = "0000:01:00.0"
	driverOfPCI = "/sys/bus/pci/drivers/mlx5_core/"
)

// functions reports whether the NICs are virtual functions.
func (r *rail) functions() bool { return r.plugin == sriov || r.plugin == ibSRIOV }

// newRail returns the machine's own netns with two NICs, in an RDMA mode. It
// lives until the end of t.
func newRail(t *testing.T, plugin string, m rdma.Mode, infiniband bool) *rail {
	t.Helper()
	if os.Getenv(rig.Mark) == "" {
		t.Fatal("this test unloads drivers, and runs in the rig's virtual machine only: make test-rig")
	}
	h := &host{t: t, node: testnet.Here(t), plugin: plugin, bin: testnet.Bin(t), inside: true}
	h.settings = map[string]any{"link_state": "enable", "max_tx_rate": 2000}
	r := &rail{host: h, infiniband: infiniband, igb: os.Getenv("RIG_IGB") == "yes"}
	if r.igb {
		h.settings = map[string]any{"max_tx_rate": 200}
	}
	r.load()
	t.Cleanup(func() {
		r.t = t
		r.stopManager()
	})
	h.node.SetRDMAMode(t, m)
	t.Cleanup(func() { h.node.SetRDMAMode(t, rdma.Shared) })
	h.wire = testnet.NewNetns(t, "wire")
	r.cable()
	h.settle, h.renew = r.settled, r.again
	if plugin == chained {
		h.prepare = r.lend
	}
	return r
}

// load reloads the NICs' driver, which makes them again in any case.
func (r *rail) load() {
	r.t.Helper()
	for key, value := range map[string]string{"accept_dad": "0", "router_solicitations": "0"} {
		r.node.Sysctl("ipv6/conf/default/"+key, value)
	}
	parameters := "slots=12,13"
	switch {
	case r.plugin == sriov:
		parameters = "slots=0"
	case r.plugin == ibSRIOV:
		parameters = "slots=0,18 link_layer=ib"
	case r.infiniband:
		parameters += ",18 link_layer=ib"
	}
	r.stopManager()
	err := kmod.ReloadNICs(parameters)
	switch {
	case err == nil && r.igb:
		err = r.loadIGB()
	case err == nil && r.functions():
		err = os.WriteFile("/sys/bus/pci/devices/"+physicalPCI+"/sriov_numvfs", []byte("2"), 0)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if !r.infiniband {
		return
	}
	dir, err := os.MkdirTemp("", "opensm") // of the machine, as the manager outlives a subtest
	if err == nil {
		r.manager, err = opensm.StartOn(r.t.Context(), dir, managerPCI, opensm.OpenFabric)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// loadIGB makes igb's virtual functions again, under the names that those of the other driver have.
func (r *rail) loadIGB() error {
	r.t.Helper()
	const dir = "/sys/bus/pci/devices/0000:01:00.0/"
	if err := kmod.LoadAll(wire.Functions); err != nil {
		return err
	}
	rename := func(dir, name string) {
		found, _ := filepath.Glob(dir + "net/*")
		if len(found) != 1 {
			r.t.Fatalf("%s has the interfaces %q", dir, found)
		}
		r.node.Batch(nil, "link set "+filepath.Base(found[0])+" down", "link set "+filepath.Base(found[0])+" name "+name)
	}
	rename(dir, physical)
	r.node.IP("link", "set", physical, "up") // a function that is made while its NIC is down has no link
	for _, count := range []string{"0", "2"} {
		if err := os.WriteFile(dir+"sriov_numvfs", []byte(count), 0); err != nil {
			return err
		}
	}
	for i := range 2 {
		rename(fmt.Sprintf("%svirtfn%d/", dir, i), fmt.Sprintf("enp1s0v%d", i))
	}
	return nil
}

// stopManager stops the subnet manager, if there is one, after the interfaces have left its groups: the kernel
// waits for its answers when a driver is unloaded.
func (r *rail) stopManager() {
	r.t.Helper()
	if r.manager == nil {
		return
	}
	for _, name := range []string{nicName, spareName} {
		_ = exec.Command("ip", "link", "set", name, "down").Run() // a NIC may be lost
	}
	r.manager.Kill()
	r.manager = nil
}

// cable sets the NICs up and records the state.
func (r *rail) cable() {
	r.t.Helper()
	if r.plugin == sriov { // both NICs are virtual functions, and the administrator has set something of each
		r.node.Batch(nil, "link set "+physical+" up", "link set "+physical+" vf 0 vlan 7 spoofchk on", "link set "+physical+" vf 1 vlan 8 qos 2")
	}
	if r.plugin == ibSRIOV { // each has a GUID of the administrator
		r.node.IP("link", "set", r.interfaceOf(physicalPCI), "name", physical)
		for i := range 2 {
			guid := fmt.Sprintf("02:00:00:00:00:00:00:7%d", i)
			r.node.Batch(nil, fmt.Sprintf("link set %s vf %d node_guid %s", physical, i, guid), fmt.Sprintf("link set %s vf %d port_guid %s", physical, i, guid))
			for _, file := range []string{"unbind", "bind"} {
				if err := os.WriteFile(driverOfPCI+file, []byte(r.function(i)), 0); err != nil {
					r.t.Fatal(err)
				}
			}
		}
		r.node.IP("link", "set", physical, "up")
	}
	for i, name := range []string{nicName, spareName} {
		if r.plugin == sriov {
			r.node.IP("link", "set", fmt.Sprintf("enp1s0v%d", i), "name", name)
		}
		if r.infiniband {
			own := fmt.Sprintf("ib%d", i)
			if r.plugin == ibSRIOV {
				own = r.interfaceOf(r.function(i))
			}
			r.node.IP("link", "set", own, "name", name)
			r.node.Exec("sh", "-euc", fmt.Sprintf("cd /sys/class/net/%s; echo connected >mode; echo 1 >umcast", name)) // by netlink two tasks may then have the RTNL
		}
		r.node.Batch(nil, "link set "+name+" mtu 9000 up")
	}
	if r.plugin != chained { // the plugin that lends the NIC in a chain does not restore it
		r.furnish()
	}
	r.carrier()
	r.before = r.node.State()
	r.devices = r.state()
}

// function returns the PCI address of a virtual function.
func (r *rail) function(number int) string {
	r.t.Helper()
	target, err := os.Readlink(fmt.Sprintf("/sys/bus/pci/devices/%s/virtfn%d", physicalPCI, number))
	if err != nil {
		r.t.Fatal(err)
	}
	return filepath.Base(target)
}

// interfaceOf returns the name of the InfiniBand interface of a PCI function.
func (r *rail) interfaceOf(pci string) string {
	r.t.Helper()
	links, err := link.Links(r.node.Netns)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range links {
		if l.IsIPoIB() && l.ParentDev == pci {
			return l.Name
		}
	}
	r.t.Fatalf("no InfiniBand interface of %s", pci)
	return ""
}

// carrier waits until both NICs have one; the kernel reports it late when it is
// busy (linkwatch). A NIC that does not come back is found by the comparison.
func (r *rail) carrier() {
	r.t.Helper()
	for deadline := time.Now().Add(45 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) { // a subnet manager may need its next sweep
		links, err := link.Links(r.node.Netns)
		if err != nil {
			r.t.Fatal(err)
		}
		links = slices.DeleteFunc(links, func(l *link.Link) bool { return l.ParentDev == managerPCI || l.Name == physical })
		down := func(l *link.Link) bool { return l.HasParent() && !l.OperUp }
		if len(links) == 3 && !slices.ContainsFunc(links, down) {
			return
		}
	}
}

// again makes the NICs again after a loss.
func (r *rail) again() {
	r.t.Helper()
	r.load()
	r.cable()
}

// state returns the mode, and of each RDMA device of the host the name, GUID,
// parent, uverbs number and GIDs.
func (r *rail) state() string {
	r.t.Helper()
	core, err := rdma.Open(r.node.Netns)
	if err != nil {
		r.t.Fatal(err)
	}
	defer core.Close()
	m, err := core.Mode()
	if err != nil {
		r.t.Fatal(err)
	}
	lines := []string{string(m)}
	devices, err := core.Devices()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, d := range devices {
		uverbs, err := core.Uverbs(d)
		// During a move the text is another one.
		lines = append(lines, fmt.Sprintf("%s %s %s %s %v", d.Name, d.NodeGUID, d.ParentDev, uverbs.Name, err))
		gids, err := core.GIDs(d, 1)
		if err != nil {
			lines = append(lines, err.Error())
		}
		for _, g := range gids.Entries {
			lines = append(lines, fmt.Sprint(d.Name, " ", g.GID, " ", g.Type, " ", g.Netdev))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// lend moves the NIC to the pod, as a plugin does that does not handle RDMA.
func (r *rail) lend() {
	r.t.Helper()
	r.node.Batch(nil, "link set "+nicName+" down", "link set "+nicName+" alias "+nicName+" netns "+r.pod.Name+" name net1")
	r.pod.Batch(nil, "addr add 10.55.0.9/24 dev net1", "link set net1 up")
}

// settled returns the NIC of the chain, if the plugin does not do so itself,
// and compares the RDMA devices.
func (r *rail) settled() (lost []string) {
	r.t.Helper()
	if r.plugin == chained {
		r.takeHome()
	}
	r.carrier()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		now := r.state()
		if now == r.devices {
			return nil
		}
		if time.Now().After(deadline) {
			return []string{"RDMA is not as it was:\n" + testnet.Diff(r.devices, now)}
		}
	}
}

// takeHome undoes lend, for a living or a dead pod.
func (r *rail) takeHome() {
	r.t.Helper()
	if netns.Exists(r.pod.ID, r.pod.Path) {
		r.pod.Batch(nil, "link set net1 down", "link set net1 netns "+r.node.Name+" name "+nicName)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		links, err := link.Links(r.node.Netns)
		if err != nil {
			r.t.Fatal(err)
		}
		at := slices.IndexFunc(links, func(l *link.Link) bool { return l.ParentDev == nicPCI })
		switch {
		case at >= 0:
			r.node.Batch(nil, "link set "+links[at].Name+" down", "link set "+links[at].Name+" name "+nicName+" alias ''",
				"link set "+nicName+" up")
			return
		case time.Now().After(deadline):
			r.t.Fatalf("%s has not returned", nicName)
		}
	}
}

// TestNoRDMADeviceIsLostWherePluginsAreKilled is the sweep of host-device,
// including devices that return by themselves when a pod dies.
func TestNoRDMADeviceIsLostWherePluginsAreKilled(t *testing.T) {
	sweepRail(t, "host-device", false)
}

// TestNoHCAIsLostWherePluginsAreKilled is the sweep of host-device with InfiniBand interfaces,
// which the kernel makes anew with each move of their RDMA device in exclusive mode.
func TestNoHCAIsLostWherePluginsAreKilled(t *testing.T) {
	sweepRail(t, "host-device", true)
}

// TestNoIPoIBChildIsLostWherePluginsAreKilled is the sweep of ipoib: a child that outlives its pod is on the
// host, where its queue pair goes on receiving.
func TestNoIPoIBChildIsLostWherePluginsAreKilled(t *testing.T) {
	sweepRail(t, "ipoib", true)
}

// TestNoSettingOfAVirtualFunctionIsLostWherePluginsAreKilled is the sweep of sriov: the next pod would have
// the VLAN and the trust of a dead one.
func TestNoSettingOfAVirtualFunctionIsLostWherePluginsAreKilled(t *testing.T) {
	sweepRail(t, sriov, false)
}

// TestNoGUIDIsLostWherePluginsAreKilled is the sweep of ib-sriov: the driver of a virtual function is bound anew twice, and a
// kill in between leaves a function without a driver.
func TestNoGUIDIsLostWherePluginsAreKilled(t *testing.T) {
	sweepRail(t, ibSRIOV, true)
}

// sweepRail sweeps ADD and DEL of a plugin in both modes, in "make test" in exclusive mode, in
// which more is moved.
func sweepRail(t *testing.T, plugin string, infiniband bool) {
	modes := []rdma.Mode{rdma.Exclusive, rdma.Shared}
	if !need.Full() {
		modes = modes[:1]
	}
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) {
			r := newRail(t, plugin, m, infiniband)
			name := fmt.Sprintf("%s, %s", plugin, m)
			if infiniband {
				name += ", InfiniBand"
			}
			r.sweep(t, name, m, 1)
		})
	}
}

// sweep sweeps ADD and DEL, some points of each way if not all are tried.
func (r *rail) sweep(t *testing.T, name string, m rdma.Mode, sample int) {
	for _, verb := range []string{"ADD", "DEL"} {
		for _, how := range railModes(name+verb, m) {
			t.Run(verb+"/"+how.String(), func(t *testing.T) {
				r.t, r.verb = t, verb
				sweep(t, r.host, name, verb, how, sample, enough).report(t)
			})
		}
	}
}

// railModes returns the ways to treat a call. Everything is slow in the rig:
// each point has one recovery from a kill, which the seed chooses, and fails with
// one of the errors only. A sample has one of these errors and, of shared mode,
// where less is moved, one recovery. Outside of the rig every point has every
// recovery.
func railModes(what string, m rdma.Mode) (modes []mode) {
	hash := fnv.New64()
	fmt.Fprint(hash, seed, what) // never fails
	one := int(hash.Sum64() % 1000)
	recoveries := []string{byDEL, byLateDEL, byADD, byAgent}
	for i, recovery := range recoveries {
		modes = append(modes, mode{whole: true, recovery: recovery, nth: len(recoveries), first: (i + one) % len(recoveries)})
	}
	if !full && m == rdma.Shared {
		modes = modes[one%len(modes):][:1]
	}
	for i, e := range injected {
		if full || i == one%len(injected) {
			modes = append(modes, mode{errno: e, recovery: byDEL, nth: len(injected), first: i})
		}
	}
	return modes
}
