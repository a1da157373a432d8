package plans_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// del is one change of the environment between ADD and DEL.
type del struct {
	change func(*testing.T, *bench, *testnet.Call)
	code   uint // of the DEL's error, 0 for success
	// after, if set, replaces the check that the host is as before.
	after func(*testing.T, *bench, string)
}

func dels() map[string]del {
	return map[string]del{
		"nothing changed": {},
		"netns empty":     {change: func(_ *testing.T, _ *bench, c *testnet.Call) { c.Netns = "" }},
		"netns path gone, a process holds it": {change: func(t *testing.T, b *bench, _ *testnet.Call) {
			hold(t, b.pod)
			b.pod.Unname()
		}},
		"netns path leads to another netns": {change: func(t *testing.T, b *bench, c *testnet.Call) {
			c.Netns = "/run/netns/" + testnet.NewNetns(t, "other").Name
		}},
		"netns path replaced by another netns": {change: func(t *testing.T, b *bench, c *testnet.Call) {
			hold(t, b.pod)
			b.pod.Unname()
			testnet.Rename(t, testnet.NewNetns(t, "other"), b.pod.Name)
		}},
		"netns path is a plain file": {change: func(t *testing.T, b *bench, c *testnet.Call) {
			hold(t, b.pod)
			b.pod.Unname()
			c.Netns = filepath.Join(t.TempDir(), "plain")
			if err := os.WriteFile(c.Netns, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		"link renamed in the pod": {change: func(_ *testing.T, b *bench, _ *testnet.Call) {
			b.pod.IP("link", "set", "net1", "down")
			b.pod.IP("link", "set", "net1", "name", "rdma0")
		}},
		"another link has its name in the pod": {change: func(_ *testing.T, b *bench, _ *testnet.Call) {
			b.pod.IP("link", "set", "net1", "down")
			b.pod.IP("link", "set", "net1", "name", "rdma0")
			b.pod.IP("link", "add", "net1", "type", "ifb")
		}, after: func(t *testing.T, b *bench, before string) {
			b.untouched(before)
			if _, err := link.ByName(b.pod.Netns, "net1"); err != nil {
				t.Error("DEL took an interface that it never gave:", err)
			}
		}},
		"link deleted in the pod": {
			change: func(_ *testing.T, b *bench, _ *testnet.Call) { b.pod.IP("link", "del", "net1") },
			after:  func(t *testing.T, b *bench, _ string) { b.nothingHeld() },
		},
		"netns gone, the virtual link with it": {
			change: func(_ *testing.T, b *bench, _ *testnet.Call) { b.pod.Delete() },
			after:  func(t *testing.T, b *bench, _ string) { b.nothingHeld() },
		},
		"link home already": {change: func(_ *testing.T, b *bench, _ *testnet.Call) {
			b.pod.IP("link", "set", "net1", "netns", b.node.Name)
		}},
		"config without selectors": {change: func(_ *testing.T, b *bench, c *testnet.Call) {
			c.Config = b.config(map[string]any{"device": nil, "ipam": localIPAM("172.31.1.0/24")})
		}},
		"config with mistakes": {change: func(_ *testing.T, b *bench, c *testnet.Call) {
			c.Config = b.config(map[string]any{"device": 7, "mtu": "huge", "allow": "all"})
		}},
		"another network name": {change: func(_ *testing.T, b *bench, c *testnet.Call) {
			c.Config = b.config(map[string]any{"name": "renamed", "ipam": localIPAM("172.31.1.0/24")})
		}},
		"older cniVersion": {change: func(_ *testing.T, b *bench, c *testnet.Call) {
			c.Config = b.config(map[string]any{"cniVersion": "0.3.1", "ipam": localIPAM("172.31.1.0/24")})
		}},
		"record missing":              {change: func(t *testing.T, b *bench, _ *testnet.Call) { b.removeRecord(t) }, after: leftInPod},
		"record corrupt":              {change: func(t *testing.T, b *bench, _ *testnet.Call) { b.overwriteRecord(t, "{") }, after: leftInPod},
		"record of a newer version":   {change: newerRecord, code: cnierr.BadRecord, after: stillInPod},
		"host name occupied":          {change: occupy, code: cnierr.NotReturned, after: stillInPod},
		"host altname occupied":       {change: occupyAltname, code: cnierr.NotReturned, after: stillInPod},
		"IPAM plugin missing":         {change: func(t *testing.T, b *bench, c *testnet.Call) { b.hideIPAM(t) }, after: freedLater},
		"state of the record removed": {change: func(t *testing.T, b *bench, _ *testnet.Call) { os.RemoveAll(b.state) }, after: leftInPod},
	}
}

func TestDelBringsTheNICHome(t *testing.T) {
	t.Parallel()
	for name, d := range dels() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			before := b.node.State()
			// The plugins are in a directory of the test, so that it can remove
			// one.
			path := pluginDir(t)
			c := b.call("ADD", b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")}))
			c.Path, b.path = path, path
			b.node.MustRun(c)
			if d.change != nil {
				d.change(t, b, &c)
			}
			_, err := b.node.Run(c.With("DEL"))
			if d.code != 0 {
				fails(t, err, d.code)
			} else if err != nil {
				t.Fatal(err)
			}
			if d.after != nil {
				d.after(t, b, before)
				return
			}
			b.untouched(before)
			// DEL may be repeated.
			b.node.MustRun(c.With("DEL"))
			b.untouched(before)
		})
	}
}

// pluginDir returns a directory of the test with the project's plugins.
func pluginDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []string{"host-device", "macvlan", "whereabouts"} {
		if err := os.Symlink(filepath.Join(testnet.Bin(t), p), filepath.Join(dir, p)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// hold keeps the namespace alive by a process in it.
func hold(t *testing.T, n *testnet.Netns) {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", n.Name, "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for { // until it has entered the namespace
		link, _ := os.Readlink("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/net")
		if link == n.ID.String() {
			return
		}
	}
}

func (b *bench) recordFile(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(b.state, "attachments", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("records: %v, %v", files, err)
	}
	return files[0]
}

func (b *bench) removeRecord(t *testing.T) {
	if err := os.Remove(b.recordFile(t)); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) overwriteRecord(t *testing.T, text string) {
	if err := os.WriteFile(b.recordFile(t), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) nothingHeld() {
	b.t.Helper()
	if r := b.records(); len(r) > 0 {
		b.t.Errorf("a record is left: %+v", r[0])
	}
	if h := b.held(); len(h) > 0 {
		b.t.Errorf("addresses are still held: %v", h)
	}
}

// leftInPod: without a record a virtual link may be the pod's own, and stays.
// (A NIC of the rig is returned: it has a device of the host.)
func leftInPod(t *testing.T, b *bench, before string) {
	if l, err := link.ByName(b.pod.Netns, "net1"); err != nil || l.Alias != nicName {
		t.Fatalf("net1 of the pod: %+v, %v", l, err)
	}
	b.fetch()
	b.untouched(before)
}

// fetch does what a person would do about a virtual link whose record is lost.
func (b *bench) fetch() {
	b.t.Helper()
	if l, err := link.ByName(b.pod.Netns, "net1"); err == nil && l.Alias == nicName {
		b.pod.Batch(nil, "link set net1 down", "link set net1 alias \"\"", "addr flush dev net1", "link set net1 netns "+b.node.Name+" name "+nicName)
		b.node.IP("link", "set", nicName, "up")
	}
}

func newerRecord(t *testing.T, b *bench, _ *testnet.Call) {
	text := strings.Replace(string(readFile(t, b.recordFile(t))), `"version":1`, `"version":99`, 1)
	b.overwriteRecord(t, text)
}

func occupy(_ *testing.T, b *bench, _ *testnet.Call) {
	b.node.IP("link", "add", nicName, "type", "ifb")
}

func occupyAltname(_ *testing.T, b *bench, _ *testnet.Call) {
	b.node.IP("link", "add", "enp4s0np0", "type", "ifb")
}

// stillInPod: the NIC stays in the pod, up and with its address, and is
// returned once the obstacle is gone.
func stillInPod(t *testing.T, b *bench, before string) {
	l, err := link.ByName(b.pod.Netns, "net1")
	if err != nil || !l.IsUp() {
		t.Fatalf("the NIC is not in the pod and up: %+v, %v", l, err)
	}
	if len(b.held()) == 0 {
		t.Error("its address is free, and the pod has it")
	}
	if text, err := os.ReadFile(b.recordFile(t)); err == nil && strings.Contains(string(text), `"version":99`) {
		b.overwriteRecord(t, strings.Replace(string(text), `"version":99`, `"version":1`, 1))
	}
	for _, name := range []string{nicName, "enp4s0np0"} {
		if l, err := link.ByName(b.node.Netns, name); err == nil {
			b.node.IP("link", "del", l.Name)
		}
	}
	c := b.call("DEL", b.config(nil))
	c.Path = b.path
	b.node.MustRun(c)
	b.untouched(before)
}

func (b *bench) hideIPAM(t *testing.T) {
	if err := os.Rename(filepath.Join(b.path, "whereabouts"), filepath.Join(b.path, "hidden")); err != nil {
		t.Fatal(err)
	}
}

// freedLater: the NIC is on the host, and the next sweep that finds the plugin
// frees the address.
func freedLater(t *testing.T, b *bench, before string) {
	if d := b.node.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
	if r := b.records(); len(r) != 1 || r[0].Phase != ledger.Freeing {
		t.Fatalf("records: %+v", r)
	}
	// The NIC itself is free: another pod can have it.
	other := testnet.NewNetns(t, "pod2")
	c := b.call("ADD", b.config(nil))
	c.ContainerID, c.Netns, c.Path = "c2", "/run/netns/"+other.Name, b.path
	b.node.MustRun(c)
	b.node.MustRun(c.With("DEL"))
	if err := os.Rename(filepath.Join(b.path, "hidden"), filepath.Join(b.path, "whereabouts")); err != nil {
		t.Fatal(err)
	}
	for _, s := range b.open().Sweep(context.Background()) {
		if s.Err != nil {
			t.Error(s.Err)
		}
	}
	b.untouched(before)
}

func TestDelBeforeAddDoesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	for _, config := range []string{b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")}), b.macvlanConfig(nil)} {
		b.node.MustRun(b.call("DEL", config))
		b.untouched(before)
	}
}

// A runtime calls DEL after a failed ADD. If the ADD failed because the pod already has an
// interface with that name, DEL must not change that interface.
func TestDelLeavesAnInterfaceThatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.pod.IP("link", "add", "net1", "type", "ifb")
	b.pod.IP("link", "set", "net1", "alias", "a text with blanks")
	before, pod := b.node.State(), b.pod.State()
	for _, config := range []string{b.config(nil), b.macvlanConfig(nil)} {
		if _, err := b.node.Run(b.call("ADD", config)); err == nil {
			t.Fatal("ADD over an existing interface succeeded")
		}
		b.node.MustRun(b.call("DEL", config))
	}
	b.untouched(before)
	if d := b.pod.Settled(pod); d != "" {
		t.Errorf("the pod is not as it was:\n%s", d)
	}
}

func TestDelOfAnotherContainerLeavesALivingAttachmentAlone(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		b := newBench(t)
		before := b.node.State()
		config := b.config(nil)
		if plugin == "macvlan" {
			config = b.macvlanConfig(nil)
		}
		b.node.MustRun(b.call("ADD", config))
		pod := b.pod.State()
		stray := b.call("DEL", config)
		stray.ContainerID = "stray"
		b.node.MustRun(stray)
		if d := testnet.Diff(pod, b.pod.State()); d != "" {
			t.Errorf("%s: DEL of another container changed the pod:\n%s", plugin, d)
		}
		b.node.MustRun(b.call("DEL", config))
		b.untouched(before)
	}
}

// TestRecordOfAnotherBootKeepsNoInterface has a macvlan without a record in a pod netns that has
// the numbers of one of an earlier boot. The record of that time must not keep the macvlan.
func TestRecordOfAnotherBootKeepsNoInterface(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.state = filepath.Join(testnet.OnDisk(t), "state")
	b.node.MustRun(b.call("ADD", b.macvlanConfig(nil)))
	b.changeRecord(0, func(r *ledger.Record) { r.BootID = "11111111-2222-3333-4444-555555555555" })
	stray := b.call("DEL", b.macvlanConfig(nil))
	stray.ContainerID = "stray"
	b.node.MustRun(stray)
	if _, err := link.ByName(b.pod.Netns, "net1"); !errors.Is(err, link.ErrNotFound) {
		t.Errorf("the macvlan is still in the pod: %v", err)
	}
}

func TestSweepEndsWhatDeadPodsLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.NIC("ens13np0", b.wire)
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	b.node.MustRun(b.call("ADD", config))
	parent, err := link.ByName(b.node.Netns, nicName)
	if err != nil {
		t.Fatal(err)
	}
	mac, err := net.ParseMAC(b.records()[0].MAC)
	if err != nil {
		t.Fatal(err)
	}
	b.pod.Delete()
	if len(b.held()) == 0 {
		t.Fatal("no address is held")
	}
	// The kernel deletes the links of a dead netns a moment later.
	err = wait.Until(t.Context(), 10*time.Millisecond, func() (bool, error) {
		hears, err := link.Accepts(b.node.Netns, parent.Index, mac)
		return !hears, err
	})
	if err != nil {
		t.Fatal(err)
	}
	// The next ADD, of another pod and another plugin, sweeps.
	other := testnet.NewNetns(t, "pod2")
	c := b.call("ADD", b.config(map[string]any{"device": "ens13np0"}))
	c.ContainerID, c.Netns = "c2", "/run/netns/"+other.Name
	b.node.MustRun(c)
	if r := b.records(); len(r) != 1 || r[0].ContainerID != "c2" {
		t.Errorf("records: %+v", r)
	}
	if len(b.held()) != 0 {
		t.Errorf("still held: %v", b.held())
	}
	b.node.MustRun(c.With("DEL"))
}

func TestSweepOfOneNodeLeavesTheOthersRecordsAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.macvlanConfig(nil)))
	b.pod.Delete()
	second := &bench{t: t, node: testnet.NewNetns(t, "node2"), state: b.state}
	if swept := second.open().Sweep(context.Background()); len(swept) != 0 {
		t.Errorf("the second node swept %+v", swept)
	}
	if swept := b.open().Sweep(context.Background()); len(swept) != 1 || swept[0].Err != nil {
		t.Errorf("the first node swept %+v", swept)
	}
}

// A driver may make its netdev anew (devlink reload, firmware activation), which takes
// seconds. The two seconds of a sweep do not prove that the NIC no longer exists.
func TestSweepKeepsTheRecordOfANICWithoutANetdev(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")})))
	forge(t, b, func(r *ledger.Record) { r.Loan.Identity.ParentDev, r.Loan.Identity.ParentBus = "0000:77:00.0", "pci" })
	b.pod.Delete()
	n := b.open()
	n.Sys = t.TempDir()
	if err := os.MkdirAll(filepath.Join(n.Sys, "bus/pci/devices/0000:77:00.0/driver"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, s := range n.Sweep(t.Context()) {
		if s.Err == nil {
			t.Error("the sweep ended it")
		}
	}
	if len(b.records()) != 1 || len(b.held()) == 0 {
		t.Errorf("records %v, addresses %v", b.records(), b.held())
	}
}
