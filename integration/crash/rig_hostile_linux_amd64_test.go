//go:build rig

package crash

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestHostilePodsHarmNobodyOnNICsWithRDMA is [TestHostilePodsHarmNobody] on
// NICs that the kernel returns from a dead pod, in exclusive RDMA mode: pods
// also attack the RDMA devices and the drivers' settings.
//
// It is part of "make crash" only (scripts/test-rig.sh leaves it out).
func TestHostilePodsHarmNobodyOnNICsWithRDMA(t *testing.T) {
	if os.Getenv(rig.Mark) == "" {
		t.Fatal("this test unloads drivers, and runs in the rig's virtual machine only: make crash")
	}
	length, err := time.ParseDuration(os.Getenv(hostileTimeVar))
	if err != nil {
		length = time.Minute
	}
	for _, variant := range []string{"plain", "userns"} {
		t.Run(variant, func(t *testing.T) {
			attackFor(t, newLab(t, t.TempDir(), variant == "plain", cards), length)
		})
	}
}

// cardPCI and cablePCI are the PCI addresses of a NIC and of its cable's other
// end: NICs whose slots end with the same digit reach each other.
func cardPCI(nic int) string  { return fmt.Sprintf("0000:00:%02x.0", 11+nic) }
func cablePCI(nic int) string { return fmt.Sprintf("0000:00:%02x.0", 21+nic) }

const (
	cardSlots = "slots=11,12,13,14,15,16,17,18,21,22,23,24,25,26,27,28"
	driverDir = "/sys/bus/pci/drivers/mlx5_core"
)

// podRange has the addresses of all pods.
var podRange = netip.MustParsePrefix("10.60.0.0/24")

// cards returns the rig's NICs. An emulated processor is slow, and slower
// beside others.
func cards(l *lab) hardware {
	h := hardware{
		rdma: true, slow: 6, name: modelNIC, cable: modelCable,
		keys: map[string]any{"rdma": "required", "gidTimeout": "1m"},
	}
	for key, value := range map[string]string{"accept_dad": "0", "router_solicitations": "0"} {
		l.node.Sysctl("ipv6/conf/default/"+key, value)
	}
	l.eventually("the drivers' end", func() error { return kmod.ReloadNICs(cardSlots) }, 6*settleTime)
	l.node.SetRDMAMode(l.t, rdma.Exclusive)
	l.t.Cleanup(func() { l.node.SetRDMAMode(l.t, rdma.Shared) })
	h.plug = l.plugCard
	for nic := range modelNICs {
		h.pci = append(h.pci, cardPCI(nic))
	}
	h.gone = func(nic int) bool { return netdevOf(cardPCI(nic)) == "" }
	h.pull = func(nic int) { l.driver("unbind", nic) }
	h.rest = func(n *testnet.Netns, name string, nic int) string {
		return n.Settings(name) + devicesOf(l.t, n, func(parent string) bool { return parent == cardPCI(nic) })
	}
	h.more = func() string { return devicesOf(l.t, l.node, func(string) bool { return true }) }
	return h
}

// eventually waits until f succeeds.
func (l *lab) eventually(what string, f func() error, long time.Duration) {
	l.t.Helper()
	for deadline := time.Now().Add(long); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("still waiting for %s after %v: %v", what, long, err)
		}
	}
}

// driver binds a NIC's function to the driver ("bind"), or unbinds it.
func (l *lab) driver(what string, nic int) {
	if err := os.WriteFile(filepath.Join(driverDir, what), []byte(cardPCI(nic)), 0); err != nil {
		l.violation(nil, "%s %s: %v", what, cardPCI(nic), err)
	}
}

// netdevOf returns the name of the interface of a function, "" if it is not on
// the host.
func netdevOf(pci string) string {
	found, _ := filepath.Glob("/sys/bus/pci/devices/" + pci + "/net/*")
	if len(found) == 0 {
		return ""
	}
	return filepath.Base(found[0])
}

// plugCard configures a NIC as it is on the host, and the first time its cable.
func (l *lab) plugCard(nic int) {
	if _, err := os.Stat(filepath.Join(driverDir, cardPCI(nic))); err != nil {
		l.driver("bind", nic)
	}
	name := l.name(nic)
	first := []string{
		"link set " + netdevOf(cardPCI(nic)) + " name " + name + " mtu 9000",
		fmt.Sprintf("link property add dev %s altname enp%ds0np0", name, nic),
	}
	if cable := netdevOf(cablePCI(nic)); cable != "" {
		first = append(first, "link set "+cable+" netns "+l.wires[nic].Name+" name "+l.cable(nic))
	}
	l.furnish(nic, name, first...)
	l.settled(nic)
	l.eventually("the GID of "+name, func() error {
		if gid := fmt.Sprintf(" GID 10.7.%d.1 ", nic); !strings.Contains(l.rest(l.node, name, nic), gid) {
			return fmt.Errorf("no %s", gid)
		}
		return nil
	}, l.long(settleTime))
	l.calm(func() string { return l.rest(l.node, name, nic) })
}

// devicesOf describes the RDMA devices of a namespace: name, GUID, port, GIDs, and
// whether processes can use them. It leaves out the numbers of char devices: a
// device that moves gets the lowest free number, so that a process that may move
// devices can exchange the numbers of two. It leaves out the GIDs of a pod's
// addresses, too.
func devicesOf(t testing.TB, n *testnet.Netns, of func(parent string) bool) string {
	core, err := rdma.Open(n.Netns)
	if err != nil {
		return err.Error()
	}
	defer core.Close()
	devices, err := core.Devices()
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, d := range devices {
		if of(d.ParentDev) {
			lines = append(lines, deviceLines(core, d)...)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func deviceLines(core *rdma.Core, d rdma.Device) []string {
	_, err := core.Uverbs(d)
	lines := []string{fmt.Sprintf("RDMA %s %s %s %v", d.Name, d.NodeGUID, d.ParentDev, err)}
	ports, err := core.Ports(d)
	if err != nil {
		lines = append(lines, err.Error())
	}
	for _, p := range ports {
		lines = append(lines, fmt.Sprint("RDMA ", d.Name, " ", p.Number, " ", p.State, " ", p.NetdevName))
	}
	gids, err := core.GIDs(d, 1)
	if err != nil {
		lines = append(lines, err.Error())
	}
	for _, g := range gids.Entries {
		if ip := g.GID.Addr(); !podRange.Contains(ip) {
			lines = append(lines, fmt.Sprint("RDMA ", d.Name, " GID ", g.GID.Addr(), " ", g.Type, " ", g.Netdev))
		}
	}
	return lines
}
