//go:build kernels

package kernels

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/mutate"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// either returns yes or no, as the kernel has it.
func either(has bool, yes, no string) string {
	if has {
		return yes
	}
	return no
}

func TestNICAndNamespaceAreIdentified(t *testing.T) {
	n := newNode(t)
	before := n.State()
	const parentDevName = "\n56 " // IFLA_PARENT_DEV_NAME
	reported := strings.Contains(n.Attributes(nic(first)), parentDevName)
	l, err := link.ByName(n.Netns.Netns, nic(first))
	if err != nil || l.ParentDev != pci(first) || l.ParentBus != "pci" {
		t.Fatalf("the device of %s: %+v, %v", nic(first), l, err)
	}
	n.fact("parent", either(reported, "the kernel", "sysfs"))

	p, config := n.pod("pod1"), n.config(first, nil)
	n.MustRun(p.call("ADD", "net1", config))
	records := n.records()
	if len(records) != 1 || records[0].Netns.Inode == 0 {
		t.Fatalf("records: %+v", records)
	}
	n.fact("netns", either(records[0].Netns.Cookie != 0, "a number that is never used again", "its inode number, which the kernel uses again"))
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
}

func TestNICInANamespaceThatOnlyASocketKeepsAliveComesHome(t *testing.T) {
	n := newNode(t)
	before := n.State()
	p, config := n.pod("pod1"), n.config(first, nil)
	n.MustRun(p.call("ADD", "net1", config))
	socket := -1
	p.Inside(func() {
		var err error
		if socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	})
	p.Kill()
	_, err := n.Run(p.call("DEL", "net1", config))
	home := onHost(first) != ""
	if home != (err == nil) {
		t.Errorf("DEL: %v; the NIC is on the host: %v", err, home)
	}
	if err := unix.Close(socket); err != nil {
		t.Fatal(err)
	}
	n.await("the NIC", func() bool { return onHost(first) != "" })
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
	n.fact("hidden", either(home, "by a DEL", "when the socket is closed"))
}

func TestLinkThatTheKernelDoesNotMoveIsRefused(t *testing.T) {
	n := newNode(t)
	n.IP("link", "add", "br0", "type", "bridge")
	t.Cleanup(func() { n.IP("link", "del", "br0") })
	before := n.State()
	_, err := n.Run(n.pod("pod1").call("ADD", "net1", n.config(first, map[string]any{"device": "br0"})))
	refused(t, err, cnierr.NICProtected, "br0", "netns-local")
	n.untouched(before)
	n.fact("immovable", "yes")
}

func refused(t *testing.T, err error, code uint, texts ...string) {
	t.Helper()
	if cnierr.Code(err) != code {
		t.Errorf("it is to be refused with code %d: %v", code, err)
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
}

// apart are settings that change what the others can set, or take minutes.
var apart = []string{"name", "down", "a link on it", "bridge port", "very many flow rules"}

// All at once, because an ADD takes a second here. What a driver or kernel does not
// have is not set.
func TestWhatAPodSetIsUndone(t *testing.T) {
	n := newNode(t)
	everything := func() string { return n.Attributes(nic(first)) + n.Kept(nic(first)) }
	state, before := n.State(), everything()
	p, config := n.pod("pod1"), n.config(first, nil)
	n.MustRun(p.call("ADD", "net1", config))
	done := map[string]bool{}
	for _, m := range mutate.Table {
		by, _, _ := strings.Cut(m.By, " net1")
		ours := strings.HasPrefix(by, "ip link") || strings.HasPrefix(by, "ethtool") || strings.HasPrefix(by, "/sys") || strings.HasPrefix(by, "netdev")
		if m.Fate != mutate.Restored || !ours || strings.HasPrefix(m.Name, "RDMA") || slices.Contains(apart, m.Name) {
			continue
		}
		if err := m.Set(p.Netns, "net1"); err != nil {
			t.Logf("not here: %s: %v", m.Name, err)
			continue
		}
		done[m.Name] = true
	}
	if len(done) < 20 {
		t.Errorf("only %d settings can be set: %v", len(done), done)
	}
	hasTCX := p.TCX("net1") >= 0
	p.Attach("net1", "xdp generic")
	if hasTCX {
		p.Attach("net1", "tcx ingress")
	}
	n.MustRun(p.call("DEL", "net1", config))
	d := ""
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if d = testnet.Diff(before, everything()); d == "" {
			break
		}
	}
	if d != "" {
		t.Errorf("the NIC is not as it was:\n%s", d)
	}
	n.untouched(state)
	n.fact("settings", "restored")
	n.fact("napi", either(done["settings of one NAPI instance"], "restored", "not settable"))
	n.fact("xdp", "detached")
	n.fact("tcx", either(hasTCX, "detached", "not there"))
}

// rdmaDevice returns the RDMA device of the NIC in a slot. Where the NIC has none it gets
// one of Soft-RoCE, until the test ends.
func (n *node) rdmaDevice(slot int) (core *rdma.Core, device rdma.Device) {
	n.t.Helper()
	if _, err := os.Stat("/sys/bus/pci/devices/" + pci(slot) + "/infiniband"); errors.Is(err, os.ErrNotExist) {
		if err := kmod.SoftRoCE(); err != nil {
			n.t.Fatal(err)
		}
		name := fmt.Sprintf("rxe%d", slot)
		n.Exec("rdma", "link", "add", name, "type", "rxe", "netdev", nic(slot))
		n.t.Cleanup(func() { n.Exec("rdma", "link", "delete", name) })
	}
	core, err := rdma.Open(n.Netns.Netns)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(core.Close)
	devices, err := core.Devices()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, d := range devices {
		ports, err := core.Ports(d)
		if err != nil {
			n.t.Fatal(err)
		}
		if slices.ContainsFunc(ports, func(p rdma.Port) bool { return p.NetdevName == nic(slot) }) {
			return core, d
		}
	}
	n.t.Fatalf("no RDMA device is on %s: %+v", nic(slot), devices)
	return nil, rdma.Device{}
}

func TestMacvlanHasItsGIDInSharedMode(t *testing.T) {
	n := newNode(t)
	n.SetRDMAMode(t, rdma.Shared)
	if _, device := n.rdmaDevice(first); device.ParentDev != pci(first) {
		return // Soft-RoCE's belongs to no PCI function, and is not found
	}
	before := n.State()
	config := n.addressed(first, map[string]any{"type": "macvlan", "device": nil, "master": nic(first), "rdma": "required"})
	p := n.pod("pod1")
	result := n.MustRun(p.call("ADD", "net1", config))
	n.MustRun(p.checked("net1", config, result))
	if shown := n.railctl("show", "-o", "json"); !strings.Contains(shown, "172.31.1.1") {
		t.Errorf("railctl show:\n%s", shown)
	}
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
	n.fact("shared", "yes")
}

func TestRDMADeviceMovesInExclusiveMode(t *testing.T) {
	n := newNode(t)
	core, device := n.rdmaDevice(first)
	before := n.State()
	n.SetRDMAMode(t, rdma.Exclusive)
	t.Cleanup(func() { n.SetRDMAMode(t, rdma.Shared) })
	if mode, err := core.Mode(); err != nil || mode != rdma.Exclusive {
		t.Fatalf("mode %q, %v", mode, err)
	}
	n.fact("mode", "yes")
	if device.ParentDev != pci(first) {
		return // Soft-RoCE's cannot move
	}
	p, config := n.pod("pod1"), n.config(first, map[string]any{"rdma": "required"})
	n.MustRun(p.call("ADD", "net1", config))
	if out := p.Exec("rdma", "dev"); !strings.Contains(out, device.Name) {
		t.Errorf("the pod has %s", out)
	}
	n.MustRun(p.call("DEL", "net1", config))
	if _, err := core.ByName(device.Name); err != nil {
		t.Error(err)
	}
	n.untouched(before)
	n.fact("exclusive", "yes")
}

func TestUserOfAnRDMADeviceIsSeen(t *testing.T) {
	n := newNode(t)
	core, device := n.rdmaDevice(first)
	uverbs, err := core.Uverbs(device)
	if err != nil {
		t.Fatal(err)
	}
	if users, err := core.Users(device); err != nil || len(users) > 0 {
		t.Fatalf("before: %v, %v", users, err)
	}
	n.VerbsContext(t, uverbs)
	users, err := core.Users(device)
	if err != nil {
		t.Fatal(err)
	}
	seen := slices.ContainsFunc(users, func(u rdma.User) bool { return u.PID == os.Getpid() })
	n.fact("users", either(seen, "the device open", "a queue pair"))
}

// The kernel lets a program listen in any case, so a device must come.
func TestChangesOfRDMADevicesAreReported(t *testing.T) {
	n := newNode(t)
	if err := kmod.SoftRoCE(); err != nil {
		t.Fatal(err)
	}
	s, err := nl.Subscribe(unix.NETLINK_RDMA, rdma.NotifyGroup)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: 3}); err != nil {
		t.Fatal(err)
	}
	n.Exec("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", nic(spare))
	t.Cleanup(func() { n.Exec("rdma", "link", "delete", "rxe0") })
	_, _, err = s.Receive()
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	n.fact("notify", either(err == nil, "when the kernel reports it", "every 30 s"))
}
