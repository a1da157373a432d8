//go:build kernels

package kernels

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// physical is the directory of the NIC with virtual functions.
const physical = "/sys/bus/pci/devices/0000:01:00.0/"

// vfConfigs maps each driver, the kernel's and the rig's, to its function that answers a
// query about a virtual function.
var vfConfigs = map[string]string{"igb": "igb_ndo_get_vf_config", "mlx5_core": "fk_vf_config"}

// functions makes two virtual functions. It returns the interface of the NIC, the interface
// of the first virtual function, and the PCI address of the latter.
func (n *node) functions() (pf, vf, address string) {
	n.t.Helper()
	netdev := func(dir string) string {
		var entries []os.DirEntry
		n.await("an interface of "+dir, func() bool { entries, _ = os.ReadDir(dir + "/net"); return len(entries) == 1 })
		return entries[0].Name()
	}
	n.write(physical+"sriov_numvfs", "2")
	n.t.Cleanup(func() { n.write(physical+"sriov_numvfs", "0") })
	target, err := os.Readlink(physical + "virtfn0")
	if err != nil {
		n.t.Fatal(err)
	}
	return netdev(physical), netdev(physical + "virtfn0"), filepath.Base(target)
}

func (n *node) write(path, text string) {
	n.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		n.t.Fatal(err)
	}
}

// asked runs f, and returns how often the driver was queried about a virtual function. It
// counts with a kernel probe.
func (n *node) asked(f func()) string {
	n.t.Helper()
	driver, err := os.Readlink(physical + "driver")
	if err != nil {
		n.t.Fatal(err)
	}
	const tracing = "/sys/kernel/tracing/"
	if err := unix.Mount("tracefs", tracing, "tracefs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		n.t.Fatal(err)
	}
	n.write(tracing+"kprobe_events", "p:asked "+vfConfigs[filepath.Base(driver)])
	n.write(tracing+"events/kprobes/asked/enable", "1")
	defer func() {
		n.write(tracing+"events/kprobes/asked/enable", "0")
		n.write(tracing+"kprobe_events", "")
	}()
	f()
	text, err := os.ReadFile(tracing + "kprobe_profile")
	if err != nil {
		n.t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	if len(fields) < 3 || fields[0] != "asked" {
		n.t.Fatalf("the probe's profile: %q", text)
	}
	return fields[1]
}

func TestVirtualFunctionIsLentAndItsNICIsNot(t *testing.T) {
	n := newNode(t)
	if _, err := os.Stat(physical); errors.Is(err, fs.ErrNotExist) {
		return // arm64
	}
	pf, vf, address := n.functions()
	n.Batch(nil, "link set "+pf+" mtu 1400 up", "link set "+vf+" mtu 1300 alias function up", "link set "+pf+" vf 0 spoofchk off")
	n.await("the carrier of "+vf, func() bool {
		text, _ := os.ReadFile("/sys/class/net/" + vf + "/operstate")
		return strings.TrimSpace(string(text)) == "up"
	})
	before := n.State()
	if n.asked(func() { n.IP("link", "show", pf) }) == "0" {
		t.Fatal("the probe does not count the questions of ip link")
	}
	if count := n.asked(func() { n.lendFunction(pf, address) }); count != "0" {
		t.Errorf("the driver was asked %s times for a virtual function", count)
	}
	n.untouched(before)
	n.fact("functions", "yes")
}

// lendFunction lends the virtual function twice, and tries to lend its NIC.
func (n *node) lendFunction(pf, address string) {
	n.t.Helper()
	p := n.pod("pod1")
	_, err := n.Run(p.call("ADD", "net1", n.config(first, map[string]any{"device": pf})))
	if cnierr.Code(err) != cnierr.NICProtected || !strings.Contains(err.Error(), `"allow": ["vfs"]`) {
		n.t.Errorf("ADD of the NIC itself: %v", err)
	}
	config := n.addressed(first, map[string]any{"device": nil, "deviceID": address, "pciBusID": address})
	for _, dies := range []bool{false, true} {
		p := n.pod("pod2")
		result := n.MustRun(p.call("ADD", "net1", config))
		if !strings.Contains(string(result), address) {
			n.t.Errorf("ADD does not name the function: %s", result)
		}
		n.MustRun(p.checked("net1", config, result))
		if count := len(n.records()); count != 1 {
			n.t.Errorf("%d records", count)
		}
		if l, err := link.ByName(p.Netns.Netns, "net1"); err != nil || l.ParentDev != address || !l.IsUp() {
			n.t.Errorf("the pod's net1: %+v, %v", l, err)
		}
		n.railctl("show")
		if dies {
			p.Kill()
		}
		n.MustRun(p.call("DEL", "net1", config))
	}
	n.railctl("gc")
}
