package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/without"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/bootmode"
	"github.com/rail-cni/rail-cni/pkg/rdma/netdevs"
)

const noRDMA = "no RDMA here: the kernel's RDMA core (module ib_core) is not loaded"

// record writes RDMA facts into the record of an attachment.
func (l *lab) record(container string, facts string) {
	l.t.Helper()
	file := filepath.Join(l.state, "attachments", container+"@net1.json")
	data, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	var record map[string]json.RawMessage
	if err := json.Unmarshal(data, &record); err != nil {
		l.t.Fatal(err)
	}
	record["rdma"] = json.RawMessage(facts)
	if data, err = json.Marshal(record); err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

func TestShowOfADeviceThatCannotBeReadSaysWhy(t *testing.T) {
	if !without.RDMA(t) { // with RDMA it is tested in integration/rig/tests
		return
	}
	l := newLab(t)
	l.lend()
	l.share("web-1", "c1")
	equal(t, "without RDMA the columns", header(l.must("show", "--wide")), "POD IFNAME PLUGIN NETWORK NIC PCI MTU LINK ADDRESSES AGE PHASE STATE")

	l.record("c-web-0", `{"mode": "exclusive", "devices": [{"name": "mlx5_1", "nodeGUID": "5054:00ff:fe00:0001", "parentDev": "0000:0c:00.0",
		"port": 1, "uverbs": "uverbs1", "lent": true}], "gids": [{"device": "mlx5_1", "port": 1, "index": 3, "value": "0000:0000:0000:0000:0000:ffff:ac1f:0102", "address": "172.31.1.2"}]}`)
	out, errOut, code := l.railctl("show")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	equal(t, "stderr", errOut, "railctl: pod default/web-0 (container c-web-0, interface net1): RDMA device mlx5_1: "+noRDMA+"\n")
	equal(t, "show", squeezed(out), `POD IFNAME PLUGIN NETWORK NIC PCI MTU LINK ADDRESSES RDMA PORT STATE GID AGE PHASE STATE
default/web-0 net1 host-device roce-net1 ens12np0 - 9000 up 172.31.1.2/24 mlx5_1/1 ? 3 AGE lent alive
default/web-1 net1 macvlan rdma-net ens2f0 - 4000 up - - - - AGE lent alive`)
	out, _, _ = l.railctl("show", "-w")
	contains(t, "show -w", squeezed(out), "RDMA PORT STATE GID GID VALUE UVERBS MODE AGE",
		"mlx5_1/1 ? 3 0000:0000:0000:0000:0000:ffff:ac1f:0102 uverbs1 exclusive AGE")
	out, _, _ = l.railctl("show", "-o", "json")
	list := listed[inventory.Attachment](t, out)
	if len(list) != 2 || list[1].RDMA != nil || list[0].RDMA == nil {
		t.Fatalf("%+v", list)
	}
	want := inventory.RDMADevice{
		Name: "mlx5_1", NodeGUID: "5054:00ff:fe00:0001", Parent: "0000:0c:00.0", Port: 1, State: "?", Uverbs: "uverbs1", Lent: true,
		GIDs: []inventory.GID{{Address: "172.31.1.2", Index: 3, Value: "0000:0000:0000:0000:0000:ffff:ac1f:0102"}},
	}
	if d := list[0].RDMA.Devices; list[0].RDMA.Mode != "exclusive" || len(d) != 1 || !slices.Equal(d[0].GIDs, want.GIDs) || d[0].State != want.State || d[0].NodeGUID != want.NodeGUID {
		t.Errorf("is\n%+v\nshould be\n%+v", d, want)
	}
}

func TestShowDoesNotLookForTheDeviceOfADeadPod(t *testing.T) {
	l := newLab(t)
	dead := l.share("web-1", "c1")
	l.record("c1", `{"mode": "shared", "devices": [{"name": "mlx5_1", "nodeGUID": "5054:00ff:fe00:0001", "parentDev": "0000:0c:00.0", "port": 1}]}`)
	dead.Delete()
	contains(t, "show", squeezed(l.must("show")), "mlx5_1/1 - - AGE lent gone")
}

func header(table string) string {
	first, _, _ := strings.Cut(squeezed(table), "\n")
	return first
}

func TestCellsOfSeveralDevices(t *testing.T) {
	p := &inventory.RDMA{Mode: "shared", Devices: []inventory.RDMADevice{
		{Name: "mlx5_0", Port: 1, State: "ACTIVE", GIDs: []inventory.GID{{Index: 3, Value: "a"}, {Index: 5, Value: "b", Missing: true}}},
		{Name: "mlx5_1", State: "DOWN", Uverbs: "uverbs1"},
	}}
	equal(t, "cells", strings.Join(rdmaCells(p, true), " "), "mlx5_0/1,mlx5_1 ACTIVE,DOWN 3,? a,b -,uverbs1 shared")
	p = nil
	equal(t, "cells of none", strings.Join(rdmaCells(p, false), "|"), "||")
}

func TestIbdev2netdevWithoutRDMA(t *testing.T) {
	if !without.RDMA(t) { // with RDMA it is tested in integration/rig/tests
		return
	}
	l := newLab(t)
	l.share("web-1", "0123456789abcdef")
	for _, args := range [][]string{{}, {"--netns", "/run/netns/" + l.node.Name}, {"--pod", "default/web-1"}, {"--container", "0123456789ab"}} {
		out, errOut, code := l.railctl(append([]string{"ibdev2netdev"}, args...)...)
		if code != 1 || out != "" {
			t.Errorf("%v: exit code %d, stdout %q", args, code, out)
		}
		contains(t, "stderr", errOut, "railctl: "+noRDMA+"; load the driver of the NICs")
	}
}

func TestIbdev2netdevOfWhatIsNotThere(t *testing.T) {
	l := newLab(t)
	mistake := func(want string, args ...string) {
		t.Helper()
		_, errOut, code := l.railctl(append([]string{"ibdev2netdev"}, args...)...)
		if code != 1 {
			t.Errorf("%v: exit code %d", args, code)
		}
		contains(t, "stderr", errOut, want)
	}
	mistake("pod default/web-1 has no living attachment on this node; \"railctl show\" lists", "--pod", "default/web-1")
	l.share("web-1", "c1").Delete()
	mistake("pod default/web-1 has no living attachment", "--pod", "default/web-1")
	l.share("web-1", "c2")
	l.share("web-1", "c3")
	mistake("pod default/web-1 matches several containers (c2, c3); choose one with --container", "--pod", "default/web-1")
	mistake("container c matches several", "--container", "c")
	mistake("write it as NAMESPACE/NAME, for example default/web-1", "--pod", "web-1")
	mistake("/run/netns/nothing-of-that-name", "--netns", "/run/netns/nothing-of-that-name")
	mistake("[container pod]", "--pod", "default/web-1", "--container", "c1")
	if err := os.WriteFile(filepath.Join(l.state, "attachments", "c9@net1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	mistake("c9@net1.json", "--container", "c9")
}

func TestTheLineIsTheOneOfNVIDIAsScript(t *testing.T) {
	equal(t, "up", pairLine(netdevs.Pair{Device: "mlx5_0", Port: 1, Netdev: "net1", HasSignal: true}), "mlx5_0 port 1 ==> net1 (Up)")
	equal(t, "down", pairLine(netdevs.Pair{Device: "mlx5_10", Port: 2, Netdev: "ib0"}), "mlx5_10 port 2 ==> ib0 (Down)")
}

// modeIn runs "railctl rdma mode" with the root file system at root.
func modeIn(root string, args ...string) (stdout, stderr string, code int) {
	return plainRun(append([]string{"rdma", "mode", "--root", root}, args...)...)
}

func TestModeWithoutRDMA(t *testing.T) {
	need.Root(t)
	if !without.RDMA(t) { // with RDMA it is tested in integration/rig/tests
		return
	}
	root := t.TempDir()
	out, errOut, code := modeIn(root)
	if code != 0 || errOut != "" {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	equal(t, "mode", out, "now:      "+noRDMA+"\nat boot:  shared, the kernel's default: nothing in modprobe.d or on the kernel's command line says otherwise\n")

	// Only the file for the next boot is needed, because the kernel already has the mode.
	out, errOut, code = modeIn(root, "exclusive")
	if code != 0 || errOut != "" {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	contains(t, "mode exclusive", out, bootmode.File+" is written: the mode is exclusive from the next boot on.", "rebuild it", "It will have this mode when it is loaded")
	data, err := os.ReadFile(filepath.Join(root, bootmode.File))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, "the file", string(data), "\noptions ib_core netns_mode=0\n")

	out, _, _ = modeIn(root)
	contains(t, "mode", out, "at boot:  exclusive, by /etc/modprobe.d/rail-cni-rdma.conf:2 (netns_mode=0)\n")
	out, _, _ = modeIn(root, "-o", "json")
	var shown modeShown
	if err := json.Unmarshal([]byte(out), &shown); err != nil || shown.Mode != "" || shown.AtBoot != rdma.Exclusive ||
		!slices.Equal(shown.Settings, []whereSet{{bootmode.File + ":2", "0", rdma.Exclusive}}) {
		t.Errorf("%v, %s", err, out)
	}
	_, errOut, code = modeIn(root, "shared", "--now-only")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	contains(t, "stderr", errOut, noRDMA)
}

func TestModeAtBootNamesTheInitramfsTool(t *testing.T) {
	need.Root(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "usr/sbin/update-initramfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, errOut, code := modeIn(root, "exclusive", "--persist-only")
	if code != 0 || errOut != "" {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	if (bootmode.Boot{Root: root}).Volatile() {
		contains(t, "mode exclusive", out, "its directory is in memory: a reboot removes the file", "the argument ib_core.netns_mode=0")
		return
	}
	contains(t, "mode exclusive", out, `Now run "update-initramfs -u -k all"`, "The kernel argument ib_core.netns_mode=0 has the same effect")

	// An ostree system has the same programs, but its initramfs is part of the image.
	for path, text := range map[string]string{"usr/lib/os-release": "ID=rhel\nVARIANT_ID=coreos\n", "run/ostree-booted": ""} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, _, _ = modeIn(root, "exclusive", "--persist-only")
	contains(t, "mode exclusive", out, "If the initramfs of this system's image loads the RDMA core, the file comes too late: give the kernel the argument ib_core.netns_mode=0 (kernelArguments of a MachineConfig) and reboot.\n")
}

func TestModeAtBootOfANodeWithAReadOnlyEtc(t *testing.T) {
	need.Root(t)
	root := t.TempDir()
	etc := filepath.Join(root, "etc")
	if err := errors.Join(os.Mkdir(etc, 0o755), unix.Mount("tmpfs", etc, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(etc, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	out, _, code := modeIn(root, "exclusive", "--persist-only")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	equal(t, "in memory", out, bootmode.File+" is written, but its directory is in memory: a reboot removes the file. "+
		"To keep the mode, give the kernel the argument ib_core.netns_mode=0 (in the boot loader's configuration) and reboot.\n")

	release := []byte("NAME=\"Talos\"\nID=talos\n")
	if err := errors.Join(os.RemoveAll(filepath.Join(etc, "modprobe.d")), os.WriteFile(filepath.Join(etc, "os-release"), release, 0o644),
		unix.Mount("", etc, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	out, errOut, code := modeIn(root, "exclusive", "--persist-only")
	if code != 1 || out != "" {
		t.Errorf("exit code %d, %s", code, out)
	}
	contains(t, "stderr", errOut, bootmode.File+" cannot be written: the file system is read-only on this node; give the kernel the argument ib_core.netns_mode=0 (customization.extraKernelArgs")

	cmdline := filepath.Join(root, "proc/cmdline")
	if err := errors.Join(os.Mkdir(filepath.Dir(cmdline), 0o755), os.WriteFile(cmdline, []byte("quiet ib_core.netns_mode=0\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	out, errOut, code = modeIn(root, "exclusive", "--persist-only")
	if code != 0 || errOut != "" {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	equal(t, "by the argument", out, "At boot the mode is exclusive, by the kernel's command line.\n")
}

func TestModeAtBootThatWouldBeInVain(t *testing.T) {
	need.Root(t)
	root := t.TempDir()
	dir := filepath.Join(root, "etc/modprobe.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"ib_core.conf": "options ib_core netns_mode=0\n", "zz.conf": "options ib_core netns_mode=1\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, _, _ := modeIn(root)
	contains(t, "mode", out, "at boot:  shared, by /etc/modprobe.d/zz.conf:1 (netns_mode=1)\n          /etc/modprobe.d/ib_core.conf:1 says netns_mode=0, which does not count\n")
	out, errOut, code := modeIn(root, "exclusive", "--persist-only")
	if code != 1 || out != "" {
		t.Errorf("exit code %d, %s", code, out)
	}
	contains(t, "stderr", errOut, "/etc/modprobe.d/zz.conf:1 sets netns_mode=1, which overrides /etc/modprobe.d/rail-cni-rdma.conf; remove that setting")

	if err := os.WriteFile(filepath.Join(dir, "zz.conf"), []byte("options ib_core netns_mode=maybe\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, _, _ = modeIn(root)
	contains(t, "mode", out, "at boot:  ib_core will not load", "/etc/modprobe.d/zz.conf:1 says netns_mode=maybe\n")
}

func TestMistakesOfMode(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"both", `"both" is not an RDMA mode: use shared or exclusive`},
		{"shared exclusive", "at most 1 arg"},
		{"shared --now-only --persist-only", "[now-only persist-only]"},
	} {
		_, errOut, code := modeIn(t.TempDir(), strings.Fields(c.args)...)
		if code != 1 {
			t.Errorf("%s: exit code %d", c.args, code)
		}
		contains(t, "stderr", errOut, c.want)
	}
	out, _, _ := plainRun("__complete", "rdma", "mode", "")
	contains(t, "completion", out, "shared\nexclusive\n")
}

func TestIbdev2netdevFindsThePod(t *testing.T) {
	l := newLab(t)
	pod := l.share("web-1", "c1")
	for _, c := range []ibdev2netdev{{holder: inventory.Holder{Pod: "default/web-1"}}, {holder: inventory.Holder{Container: "c1"}}, {netns: pod.Path}} {
		c.stateDir = l.state
		ns, err := c.openNetns()
		if err != nil {
			t.Fatal(err)
		}
		if !ns.ID.Equal(pod.ID) {
			t.Errorf("%+v leads to %v, not %v", c, ns.ID, pod.ID)
		}
		ns.Close()
	}
}
