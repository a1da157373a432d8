//go:build rig

package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// newRDMANode returns a node in an RDMA mode, with NICs as the kernel finds them.
func newRDMANode(t *testing.T, mode rdma.Mode, parameters string) *node {
	t.Helper()
	n := newNodeWith(t, parameters)
	n.setMode(mode)
	t.Cleanup(func() { n.setMode(rdma.Shared) })
	return n
}

func (n *node) setMode(mode rdma.Mode) {
	n.t.Helper()
	n.SetRDMAMode(n.t, mode)
}

func (n *node) core(ns *netns.Netns) *rdma.Core {
	n.t.Helper()
	core, err := rdma.Open(ns)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(core.Close)
	return core
}

// rdmaState returns the compared facts about the eight rails' RDMA devices in a
// namespace: name, GUID, parent and uverbs number of each.
func (n *node) rdmaState(ns *netns.Netns) map[string]string {
	n.t.Helper()
	return n.rdmaIn(ns, ofRail) // the machine has more NICs
}

// rdmaIn is rdmaState of all devices whose parent is wanted.
func (n *node) rdmaIn(ns *netns.Netns, wanted func(parent string) bool) map[string]string {
	n.t.Helper()
	core, err := rdma.Open(ns)
	if err != nil {
		n.t.Fatal(err)
	}
	defer core.Close()
	devices, err := core.Devices()
	if err != nil {
		n.t.Fatal(err)
	}
	state := map[string]string{}
	for _, d := range devices {
		if !wanted(d.ParentDev) {
			continue
		}
		uverbs, err := core.Uverbs(d)
		if err != nil {
			n.t.Fatal(err)
		}
		state[d.Name] = fmt.Sprintf("%s %s %s", d.NodeGUID, d.ParentDev, uverbs.Name)
	}
	return state
}

// ofRail reports whether the parent device is one of the eight rails' NICs.
func ofRail(parent string) bool {
	for rail := range rails {
		if parent == nicPCI(rail) {
			return true
		}
	}
	return false
}

// rdmaHome waits until the host has the RDMA devices it had before, with their
// uverbs numbers.
func (n *node) rdmaHome(before map[string]string) {
	n.t.Helper()
	var now map[string]string
	if !testnet.Within(10*time.Second, func() bool {
		now = n.rdmaState(n.Netns.Netns)
		return maps.Equal(now, before)
	}) {
		n.t.Errorf("RDMA devices on the host:\n%v\nbefore:\n%v", now, before)
	}
}

func TestRDMADevicesGoWithTheirNICsInExclusiveMode(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.furnish(rails)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	p := n.pod("trainer")
	var results [rails][]byte
	for rail := range rails {
		results[rail] = n.MustRun(p.call("ADD", podName(rail), n.config(rail, map[string]any{"rdma": "required"})))
	}
	if left := n.rdmaState(n.Netns.Netns); len(left) != 0 {
		t.Errorf("still on the host: %v", left)
	}
	if got := n.rdmaState(p.Netns.Netns); !maps.Equal(got, devices) {
		t.Errorf("in the pod:\n%v\nwant\n%v", got, devices)
	}
	core := n.core(p.Netns.Netns)
	for rail := range rails {
		l, err := link.ByName(p.Netns.Netns, podName(rail))
		if err != nil {
			t.Fatal(err)
		}
		d, port, err := core.ByNetdev(l.Index)
		if err != nil {
			t.Fatal(err)
		}
		if d.Name != fmt.Sprintf("mlx5_%d", rail) || port.State != rdma.PortActive {
			t.Errorf("%s belongs to %s port %d (%s)", l.Name, d.Name, port.Number, port.State)
		}
		conf := n.config(rail, map[string]any{"prevResult": json.RawMessage(results[rail])})
		n.MustRun(p.call("CHECK", podName(rail), conf))
		uverbs, err := core.Uverbs(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := openIn(p.Netns.Netns, uverbs.Path()); err != nil {
			t.Errorf("the pod opens its own %s: %v", uverbs.Name, err)
		}
		if err := openIn(n.Netns.Netns, uverbs.Path()); !errors.Is(err, unix.EPERM) {
			t.Errorf("the host opens the pod's %s: %v, want EPERM", uverbs.Name, err)
		}
	}
	n.endRails(p, rails)
	n.untouched(before)
	n.rdmaHome(devices)
}

func openIn(ns *netns.Netns, path string) error {
	return ns.Do(func() error {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

func TestGIDsOfAPodAreFoundInSharedMode(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	n.up(rails)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	p := n.pod("trainer")
	for rail := range rails {
		conf := n.config(rail, map[string]any{"rdma": "required", "ipam": map[string]any{
			"type": "whereabouts", "range": fmt.Sprintf("172.31.%d.0/24", rail+1), "gateway": fmt.Sprintf("172.31.%d.1", rail+1),
		}})
		out := n.MustRun(p.call("ADD", podName(rail), conf))
		n.MustRun(p.call("CHECK", podName(rail), n.config(rail, map[string]any{"prevResult": json.RawMessage(out)})))
	}
	if got := n.rdmaState(n.Netns.Netns); !maps.Equal(got, devices) {
		t.Errorf("shared mode moved something: %v", got)
	}
	for _, r := range n.records() {
		n.gidsRight(r, 1)
	}
	n.endRails(p, rails)
	n.untouched(before)
}

// gidsRight compares the recorded GIDs with sysfs.
func (n *node) gidsRight(r *ledger.Record, count int) {
	n.t.Helper()
	if r.RDMA == nil || len(r.RDMA.GIDs) != count {
		n.t.Errorf("%s: GIDs recorded: %+v, want %d", r.Key, r.RDMA, count)
		return
	}
	for _, g := range r.RDMA.GIDs {
		dir := fmt.Sprintf("/sys/class/infiniband/%s/ports/%d", g.Device, g.Port)
		value, kind := readText(n.t, fmt.Sprintf("%s/gids/%d", dir, g.Index)), readText(n.t, fmt.Sprintf("%s/gid_attrs/types/%d", dir, g.Index))
		if value != g.Value || kind != "RoCE v2" || value != ibaddr.GIDOf(netip.MustParseAddr(g.Address)).String() {
			n.t.Errorf("%s: GID %d of %s is %s (%s), recorded %s for %s", r.Key, g.Index, g.Device, value, kind, g.Value, g.Address)
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestMacvlanPodsOfOneNICHaveTheirGIDs(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	n.up(1)
	before := n.State()
	var calls []testnet.Call
	for i := range 3 {
		p := n.pod(fmt.Sprintf("pod%d", i))
		conf := n.config(0, map[string]any{
			"type": "macvlan", "device": nil, "master": nicName(0), "rdma": "required",
			"ipam": map[string]any{"type": "whereabouts", "range": "192.168.111.0/24"},
		})
		c := p.call("ADD", "net1", conf)
		c.Plugin = "macvlan"
		n.MustRun(c)
		calls = append(calls, c)
	}
	for _, r := range n.records() {
		n.gidsRight(r, 1)
	}
	for _, c := range calls {
		n.MustRun(c.With("DEL"))
	}
	n.untouched(before)
}

// TestEachMacvlanTakesItsEntriesOfTheGIDTable holds ibaddr.EntriesOf to the kernel: in both modes,
// and also where the pod has no RDMA.
func TestEachMacvlanTakesItsEntriesOfTheGIDTable(t *testing.T) {
	for _, c := range []struct {
		mode   rdma.Mode
		policy string
	}{{rdma.Shared, "required"}, {rdma.Shared, "off"}, {rdma.Exclusive, "off"}} {
		t.Run(fmt.Sprintf("%s, rdma %s", c.mode, c.policy), func(t *testing.T) {
			n := newRDMANode(t, c.mode, "")
			n.up(1)
			core, err := rdma.Open(n.Netns.Netns)
			if err != nil {
				t.Fatal(err)
			}
			defer core.Close()
			name, _ := n.RDMADevice(nicName(0))
			used := func() int {
				d, err := core.ByName(name)
				if err != nil {
					t.Fatal(err)
				}
				table, err := core.GIDs(d, 1)
				if err != nil {
					t.Fatal(err)
				}
				return len(table.Entries)
			}
			want := used()
			for i, ranges := range [][]map[string]any{{{"range": "192.168.111.0/24"}}, {{"range": "192.168.111.0/24"}, {"range": "fd00:111::/64"}}} {
				p := n.pod(fmt.Sprintf("pod%d", i))
				call := p.call("ADD", "net1", n.config(0, map[string]any{
					"type": "macvlan", "device": nil, "master": nicName(0), "rdma": c.policy, "ipam": map[string]any{"type": "whereabouts", "ipRanges": ranges},
				}))
				call.Plugin = "macvlan"
				n.MustRun(call)
				want += ibaddr.EntriesOf(len(ranges))
				if !testnet.Within(30*time.Second, func() bool { return used() == want }) {
					t.Fatalf("with %d pods %d entries are used, not %d", i+1, used(), want)
				}
			}
		})
	}
}

// TestEntriesOfEveryLinkAboveTheNICAreCounted has addresses of other kinds of link above the NIC,
// which rail-cni did not make. The kernel gives them GIDs too: a pod has only what they leave.
func TestEntriesOfEveryLinkAboveTheNICAreCounted(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "gids=16")
	n.up(1)
	core := n.core(n.Netns.Netns)
	name, _ := n.RDMADevice(nicName(0))
	table := func() ibaddr.GIDTable {
		d, err := core.ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		found, err := core.GIDs(d, 1)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	add := func() error {
		call := n.pod("pod").call("ADD", "net1", n.config(0, map[string]any{
			"type": "macvlan", "device": nil, "master": nicName(0), "rdma": "required", "ipam": map[string]any{"type": "whereabouts", "range": "192.168.111.0/24"},
		}))
		call.Plugin = "macvlan"
		_, err := n.Run(call)
		return err
	}
	awaited := func(what string, is func() bool) {
		if !testnet.Within(30*time.Second, is) {
			t.Fatalf("%s: %+v", what, table())
		}
	}
	// An ipvlan and a bridge leave no room for a macvlan on the NIC, so they come after the ADD.
	for _, above := range []struct {
		name, ip string
		commands []string
	}{
		{"a VLAN", "10.7.1.1", []string{"link add vl0 link NIC type vlan id 7", "addr add 10.7.1.1/24 dev vl0", "link set vl0 up"}},
		{"a VRF", "10.7.2.1", []string{"link add vrf0 type vrf table 77", "link set vrf0 up", "link set vl0 master vrf0", "addr add 10.7.2.1/24 dev vrf0"}},
		{"ADD", "", nil},
		{"an ipvlan", "10.7.3.1", []string{"link del vrf0", "link del vl0", "link add iv0 link NIC type ipvlan mode l2", "addr add 10.7.3.1/24 dev iv0", "link set iv0 up"}},
		{"a bridge", "10.7.4.1", []string{"link del iv0", "link add br0 type bridge", "link set br0 up", "link set NIC master br0", "addr add 10.7.4.1/24 dev br0"}},
	} {
		if above.name == "ADD" {
			for i := 2; table().Free() >= ibaddr.EntriesOf(1); i++ {
				free := table().Free()
				n.Batch(nil, fmt.Sprintf("addr add 10.7.2.%d/24 dev vrf0", i))
				awaited("no entries of another address", func() bool { return table().Free() < free })
			}
			mustFail(t, add(), cnierr.TryAgain, "GID table")
			continue
		}
		for i := range above.commands {
			above.commands[i] = strings.ReplaceAll(above.commands[i], "NIC", nicName(0))
		}
		n.Batch(nil, above.commands...)
		awaited("no GID of "+above.name, func() bool {
			return slices.ContainsFunc(table().Entries, func(e ibaddr.GIDEntry) bool { return e.GID == ibaddr.GIDOf(netip.MustParseAddr(above.ip)) })
		})
	}
	n.Batch(nil, "link del br0")
}

func TestMacvlanInExclusiveModeSaysThatThereIsNoRDMA(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	p := n.pod("pod")
	conf := func(policy string) string {
		return n.config(0, map[string]any{"type": "macvlan", "device": nil, "master": nicName(0), "rdma": policy})
	}
	call := func(verb, policy string) testnet.Call {
		c := p.call(verb, "net1", conf(policy))
		c.Plugin = "macvlan"
		return c
	}
	_, err := n.Run(call("ADD", "required"))
	mustFail(t, err, cnierr.NotAvailable, "exclusive mode", "netns_mode=1")
	_, err = n.Run(call("STATUS", "required"))
	mustFail(t, err, cnierr.NotAvailable, "exclusive mode")
	n.MustRun(call("STATUS", "auto"))
	n.MustRun(call("ADD", "auto"))
	n.MustRun(call("DEL", "auto"))
}

func mustFail(t *testing.T, err error, code uint, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("it succeeded")
	}
	if cnierr.Code(err) != code {
		t.Errorf("code %d, want %d: %v", cnierr.Code(err), code, err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
}

func TestDriverThatCannotMoveItsDeviceIsRefusedAsAWhole(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "movable=0")
	n.furnish(1)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	p := n.pod("pod")
	_, err := n.Run(p.call("ADD", "net1", n.config(0, nil)))
	mustFail(t, err, cnierr.Kernel, "mlx5_0", "does not support moving", `"rdma": "off"`)
	n.untouched(before)
	n.rdmaHome(devices)
	conf := n.config(0, map[string]any{"rdma": "off"})
	n.MustRun(p.call("ADD", "net1", conf))
	n.MustRun(p.call("DEL", "net1", conf))
	n.untouched(before)
}

func TestNICWithoutRDMA(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "rdma=0")
	n.up(1)
	before := n.State()
	p := n.pod("pod")
	_, err := n.Run(p.call("ADD", "net1", n.config(0, map[string]any{"rdma": "required"})))
	mustFail(t, err, cnierr.NotAvailable, "has no RDMA device")
	n.untouched(before)
	n.MustRun(p.call("ADD", "net1", n.config(0, nil)))
	n.MustRun(p.call("DEL", "net1", n.config(0, nil)))
	n.untouched(before)
}

func TestUverbsNumbersStayThroughParallelAddsAndDels(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(rails)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	n.MkdirState()
	var adds, dels times
	for range rounds(t, 4) {
		var pods [rails]*pod
		for rail := range rails {
			pods[rail] = n.pod(fmt.Sprintf("p%d", rail))
		}
		adds = append(adds, n.allAtOnce("ADD", pods[:]))
		for rail, p := range pods {
			name := fmt.Sprintf("mlx5_%d", rail)
			if got := n.rdmaState(p.Netns.Netns); len(got) != 1 || got[name] != devices[name] {
				t.Fatalf("the pod of rail %d has %v, want %s %s", rail, got, name, devices[name])
			}
		}
		dels = append(dels, n.allAtOnce("DEL", pods[:]))
		if now := n.rdmaState(n.Netns.Netns); !maps.Equal(now, devices) {
			t.Fatalf("after DEL:\n%v\nbefore:\n%v", now, devices)
		}
		for _, p := range pods {
			p.Delete()
		}
	}
	n.untouched(before)
	t.Logf("8 parallel ADDs: %s; 8 parallel DELs: %s", adds, dels)
}

// MkdirState makes the state directory before concurrent calls need it.
func (n *node) MkdirState() {
	n.t.Helper()
	l, err := ledger.Open(n.state)
	if err != nil {
		n.t.Fatal(err)
	}
	l.Close()
}

// allAtOnce makes a call for the NIC of each rail to the pod of that rail, all
// concurrently.
func (n *node) allAtOnce(verb string, pods []*pod) time.Duration {
	n.t.Helper()
	began := time.Now()
	var all sync.WaitGroup
	for rail, p := range pods {
		all.Go(func() {
			if _, err := n.Run(p.call(verb, "net1", n.config(rail, nil))); err != nil {
				n.t.Errorf("%s of rail %d: %v", verb, rail, err)
			}
		})
	}
	all.Wait()
	return time.Since(began)
}

func TestRDMADevicesComeHomeFromADeadPod(t *testing.T) {
	for name, home := range need.SampleMap(t, 2, map[string]func(*node, *pod){
		"DEL":        func(n *node, p *pod) { n.endRails(p, rails) },
		"sweep":      func(n *node, p *pod) { n.sweepBy("other") },
		"railctl gc": func(n *node, _ *pod) { n.gc() },
	}) {
		t.Run(name, func(t *testing.T) {
			n := newRDMANode(t, rdma.Exclusive, "")
			n.furnish(rails)
			before, devices := n.State(), n.rdmaState(n.Netns.Netns)
			var took times
			for range rounds(t, 1) {
				p := n.pod("trainer")
				n.lendRails(p, rails)
				// The pod renames its devices to names of the host's others.
				core := n.core(p.Netns.Netns)
				d, err := core.ByName("mlx5_3")
				if err != nil {
					t.Fatal(err)
				}
				if err := core.Rename(d, "mine"); err != nil {
					t.Fatal(err)
				}
				core.Close()
				began := time.Now()
				p.Delete()
				if name != "DEL" {
					n.railsAreHome()
				}
				home(n, p)
				took = append(took, time.Since(began))
				n.untouched(before)
				n.rdmaHome(devices)
			}
			t.Logf("eight NICs and RDMA devices, from the death of their pod: %s", took)
		})
	}
}

// lendRails attaches the first NICs to the pod, as net1, net2, ….
func (n *node) lendRails(p *pod, count int) {
	n.t.Helper()
	for rail := range count {
		n.MustRun(p.call("ADD", podName(rail), n.config(rail, nil)))
	}
}

// endRails ends the attachments of the pod's first NICs.
func (n *node) endRails(p *pod, count int) {
	n.t.Helper()
	for rail := range count {
		n.MustRun(p.call("DEL", podName(rail), n.config(rail, nil)))
	}
}

// railsAreHome waits until the netdevs and RDMA devices of all rails are in
// init_net, under any name.
func (n *node) railsAreHome() {
	n.t.Helper()
	core := n.core(n.Netns.Netns)
	var devices []rdma.Device
	var links []*link.Link
	if !testnet.Within(10*time.Second, func() bool {
		var err error
		if devices, err = core.Devices(); err != nil {
			n.t.Fatal(err)
		}
		if links, err = link.Links(n.Netns.Netns); err != nil {
			n.t.Fatal(err)
		}
		devices = slices.DeleteFunc(devices, func(d rdma.Device) bool { return !ofRail(d.ParentDev) })
		links = slices.DeleteFunc(links, func(l *link.Link) bool { return !ofRail(l.ParentDev) })
		return len(devices) == rails && len(links) == rails
	}) {
		n.t.Fatalf("%d RDMA devices and %d netdevs of %d NICs have returned", len(devices), len(links), rails)
	}
}

// sweepBy makes another attachment, whose ADD sweeps, and ends it.
func (n *node) sweepBy(container string) {
	n.t.Helper()
	p := n.pod(container)
	conf := n.config(0, map[string]any{"type": "macvlan", "device": nil, "master": "lo0", "rdma": "off"})
	c := p.call("ADD", "net9", conf)
	c.Plugin = "macvlan"
	// Its master does not exist, so it fails after its sweep.
	if _, err := n.Run(c); err == nil {
		n.t.Error("an ADD on a master that does not exist succeeded")
	}
	p.Delete()
}

func TestDelAfterTheModeChangedBringsEverythingHome(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.furnish(1)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	p := n.pod("pod")
	n.lendRails(p, 1)
	p.Delete()
	n.setMode(rdma.Shared)
	n.endRails(p, 1)
	n.untouched(before)
	n.rdmaHome(devices)
}

func TestCheckNoticesWhatHappenedToRDMA(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	p := n.pod("pod")
	out := n.MustRun(p.call("ADD", "net1", n.config(0, nil)))
	check := p.call("CHECK", "net1", n.config(0, map[string]any{"prevResult": json.RawMessage(out)}))
	n.MustRun(check)
	// Take the RDMA device away from the pod.
	core, host := n.core(p.Netns.Netns), n.core(n.Netns.Netns)
	d, err := core.ByName("mlx5_0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := core.Move(t.Context(), d, host); err != nil {
		t.Fatal(err)
	}
	_, err = n.Run(check)
	mustFail(t, err, cnierr.Mismatch, "mlx5_0", "is not in its netns")
	n.endRails(p, 1)
}

// The chained plugin sbr moves the interface's routes to a table of its own.
func TestCheckOfANICWithRDMAAcceptsRoutesMovedBySBR(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	p := n.pod("pod")
	keys := map[string]any{"rdma": "required", "ipam": map[string]any{
		"type": "static", "addresses": []map[string]any{{"address": "10.1.1.2/24", "gateway": "10.1.1.1"}},
		"routes": []map[string]any{{"dst": "10.0.0.0/8"}, {"dst": "0.0.0.0/0", "gw": "10.1.1.1"}},
	}}
	config := n.config(0, keys)
	keys["prevResult"] = json.RawMessage(n.MustRun(p.call("ADD", "net1", config)))
	check := p.call("CHECK", "net1", n.config(0, keys))
	n.MustRun(check)
	sbr := maps.Clone(keys)
	sbr["type"], sbr["ipam"], sbr["device"] = "sbr", nil, nil
	chained := upstream(t, p.call("ADD", "net1", n.config(0, sbr)))
	chained.Plugin = filepath.Join(chained.Path, "sbr")
	n.MustRun(chained)
	if main := p.IP("route", "show", "10.0.0.0/8"); main != "" {
		t.Fatalf("sbr left %s in the main table", main)
	}
	n.MustRun(check)
	p.IP("route", "del", "10.0.0.0/8", "table", "100")
	_, err := n.Run(check)
	mustFail(t, err, cnierr.Mismatch, "the route to 10.0.0.0/8")
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
	n.rdmaHome(devices)
}

// A flap of the link is not the pod's fault.
func TestCheckOfAPodWhoseCableIsOut(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	n.up(1)
	p := n.pod("pod")
	more := func(policy string) map[string]any {
		return map[string]any{"type": "macvlan", "device": nil, "master": nicName(0), "rdma": policy, "ipam": map[string]any{
			"type": "whereabouts", "range": "172.31.1.0/24",
		}}
	}
	call := func(verb, policy string, prev []byte) testnet.Call {
		conf := more(policy)
		if prev != nil {
			conf["prevResult"] = json.RawMessage(prev)
		}
		c := p.call(verb, "net1", n.config(0, conf))
		c.Plugin = "macvlan"
		return c
	}
	out := n.MustRun(call("ADD", "required", nil))
	n.MustRun(call("CHECK", "required", out))
	n.IP("link", "set", nicName(0), "down") // the port, and with it the carrier of all links on it
	n.MustRun(call("CHECK", "auto", out))
	_, err := n.Run(call("CHECK", "required", out))
	mustFail(t, err, cnierr.Mismatch, "port 1 of mlx5_0 is DOWN", "cable")
	n.IP("link", "set", nicName(0), "up")
	n.carrier(nicName(0))
	n.MustRun(call("CHECK", "required", out))
	n.MustRun(call("DEL", "required", nil))
}

func TestUnpluggedWhileLentRDMA(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(2)
	p := n.pod("pod")
	n.lendRails(p, 2)
	remove := "/sys/bus/pci/devices/" + nicPCI(0) + "/remove"
	if err := os.WriteFile(remove, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0) })
	n.endRails(p, 2)
	if r := n.records(); len(r) != 0 {
		t.Errorf("a record is left: %+v", r)
	}
	if got := slices.Sorted(maps.Keys(n.rdmaState(n.Netns.Netns))); len(got) != rails-1 || slices.Contains(got, "mlx5_0") {
		t.Errorf("RDMA devices on the host: %v", got)
	}
}

func TestDriverReloadedWhileLent(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	devices := n.rdmaState(n.Netns.Netns)
	p := n.pod("pod")
	n.lendRails(p, 1)
	reload(t, "")
	n.endRails(p, 1)
	if r := n.records(); len(r) != 0 {
		t.Errorf("a record is left: %+v", r)
	}
	n.rdmaHome(devices)
	if _, err := link.ByName(n.Netns.Netns, nicName(0)); err != nil {
		t.Error(err)
	}
}
