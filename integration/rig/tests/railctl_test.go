//go:build rig

package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/bootmode"
)

// railctl runs railctl on the node.
func (n *node) railctl(args ...string) (stdout, stderr string, code int) {
	n.t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(filepath.Join(testnet.Bin(n.t), "railctl"), append(args, "--state-dir", n.state)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		n.t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// says fails the test unless railctl prints exactly this.
func (n *node) says(want string, args ...string) {
	n.t.Helper()
	out, errOut, code := n.railctl(args...)
	if out != want || errOut != "" || code != 0 {
		n.t.Errorf("railctl %v: exit code %d, stderr %q, stdout\n%s\nnot\n%s", args, code, errOut, out, want)
	}
}

// ofAddress returns the configuration of a rail in which its pod gets one
// address.
func (n *node) ofAddress(rail int) string {
	return n.config(rail, map[string]any{"rdma": "required", "ipam": map[string]any{
		"type": "whereabouts", "store": "local", "range": fmt.Sprintf("172.31.%d.0/24", rail+1), "gateway": fmt.Sprintf("172.31.%d.1", rail+1),
	}})
}

// attachRails attaches the first NICs to the pod default/trainer.
func (n *node) attachRails(p *pod, count int) {
	n.t.Helper()
	for rail := range count {
		c := p.call("ADD", podName(rail), n.ofAddress(rail))
		c.Args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=trainer"
		n.MustRun(c)
	}
}

// lines returns the lines of ibdev2netdev for rails from … to-1; name returns
// their interface names.
func lines(from, to int, state string, name func(rail int) string) string {
	var text strings.Builder
	for rail := from; rail < to; rail++ {
		fmt.Fprintf(&text, "mlx5_%d port 1 ==> %s (%s)\n", rail, name(rail), state)
	}
	return text.String()
}

func TestIbdev2netdevOfHostAndPod(t *testing.T) {
	for _, mode := range modes(t) {
		count := map[rdma.Mode]int{rdma.Exclusive: rails, rdma.Shared: 3}[mode]
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "")
			n.up(rails)
			before := n.State()
			all, _, _ := n.railctl("ibdev2netdev")
			if !strings.HasPrefix(all, lines(0, rails, "Up", nicName)) {
				t.Errorf("on the host:\n%s", all)
			}
			rest := strings.TrimPrefix(all, lines(0, count, "Up", nicName)) // without the machine's other NICs

			p := n.pod("trainer")
			n.attachRails(p, count)
			inPod := lines(0, count, "Up", podName)
			n.says(inPod, "ibdev2netdev", "--pod", "default/trainer")
			n.says(inPod, "ibdev2netdev", "--container", "trai")
			n.says(inPod, "ibdev2netdev", "--netns", "/run/netns/"+p.Name)
			out, errOut, code := n.railctl("ibdev2netdev")
			if out != rest || code != 0 || rest == "" && !strings.Contains(errOut, "no port of an RDMA device has an interface in the host netns") {
				t.Errorf("on the host of a pod with its NICs: exit code %d, %s\n%s", code, errOut, out)
			}
			p.IP("link", "set", "net3", "down")
			n.says(lines(0, 2, "Up", podName)+lines(2, 3, "Down", podName)+lines(3, count, "Up", podName), "ibdev2netdev", "--pod", "default/trainer")
			p.IP("link", "set", "net3", "up")
			n.endRails(p, count)
			n.untouched(before)
			n.says(all, "ibdev2netdev")
		})
	}
}

// rdmaOf is the RDMA part of an attachment in "railctl show -o json".
type rdmaOf struct {
	IfName string
	RDMA   *struct {
		Mode    string
		Devices []struct {
			Name, State, PhysState, Uverbs string
			Port                           uint32
			Lent                           bool
			GIDs                           []struct {
				Address, Value string
				Index          int
				Missing        bool
			}
		}
	}
}

func (n *node) shown() []rdmaOf {
	n.t.Helper()
	out, errOut, _ := n.railctl("show", "-o", "json")
	var list []rdmaOf
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		n.t.Fatalf("%v\n%s\n%s", err, out, errOut)
	}
	return list
}

func TestShowHasTheRDMAOfAnAttachment(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "")
			n.up(2)
			before := n.State()
			p := n.pod("trainer")
			n.attachRails(p, 2)
			records := n.records()
			list := n.shown()
			if len(list) != 2 {
				t.Fatalf("%+v", list)
			}
			for i, a := range list {
				want := records[i].RDMA
				if a.RDMA == nil || a.RDMA.Mode != string(mode) || len(a.RDMA.Devices) != 1 || len(a.RDMA.Devices[0].GIDs) != 1 {
					t.Fatalf("%+v", a.RDMA)
				}
				d := a.RDMA.Devices[0]
				g := d.GIDs[0]
				if d.Name != fmt.Sprintf("mlx5_%d", i) || d.Port != 1 || d.State != "ACTIVE" || d.PhysState != "LINK_UP" ||
					d.Uverbs != want.Devices[0].Uverbs || d.Lent != (mode == rdma.Exclusive) {
					t.Errorf("%+v", d)
				}
				if g.Index != want.GIDs[0].Index || g.Value != want.GIDs[0].Value || g.Missing || g.Address != fmt.Sprintf("172.31.%d.2", i+1) {
					t.Errorf("%+v, recorded %+v", g, want.GIDs)
				}
			}
			n.tables(mode, list)
			n.changes(p)
			n.endRails(p, 2)
			n.untouched(before)
		})
	}
}

// tables compares the tables with the JSON.
func (n *node) tables(mode rdma.Mode, list []rdmaOf) {
	n.t.Helper()
	for _, wide := range []bool{false, true} {
		args := []string{"show"}
		if wide {
			args = append(args, "--wide")
		}
		out, errOut, code := n.railctl(args...)
		if code != 0 || errOut != "" {
			n.t.Errorf("%v: exit code %d, %s", args, code, errOut)
		}
		got := strings.Split(out, "\n")
		for i, a := range list {
			d := a.RDMA.Devices[0]
			want := fmt.Sprintf(" %s/1 ACTIVE %d ", d.Name, d.GIDs[0].Index)
			if wide {
				want += fmt.Sprintf("%s %s %s ", d.GIDs[0].Value, d.Uverbs, mode)
			}
			if row := strings.Join(strings.Fields(got[i+1]), " "); !strings.Contains(row, want) {
				n.t.Errorf("%v: no %q in\n%s", args, want, out)
			}
		}
	}
}

// changes compares the output of show for an interface whose port is down,
// whose address is gone, and whose device is gone.
func (n *node) changes(p *pod) {
	n.t.Helper()
	p.IP("link", "set", "net1", "down")
	n.shows("a port that is down", func(a rdmaOf) bool { return a.RDMA.Devices[0].State == "DOWN" })
	p.IP("link", "set", "net1", "up")
	p.IP("addr", "del", "172.31.1.2/24", "dev", "net1")
	n.shows("an address that has gone", func(a rdmaOf) bool { return a.RDMA.Devices[0].GIDs[0].Missing })
	out, errOut, code := n.railctl("show")
	if code != 1 || !strings.Contains(errOut, "RDMA device mlx5_0: no such GID") || !strings.Contains(strings.Join(strings.Fields(out), " "), "mlx5_0/1 ACTIVE ? ") {
		n.t.Errorf("exit code %d, %s\n%s", code, errOut, out)
	}
	p.IP("addr", "add", "172.31.1.2/24", "brd", "+", "dev", "net1")
	n.shows("the address again", func(a rdmaOf) bool { return !a.RDMA.Devices[0].GIDs[0].Missing })
}

// shows waits until is holds for the first attachment in show.
func (n *node) shows(what string, is func(rdmaOf) bool) {
	n.t.Helper()
	var list []rdmaOf
	if !testnet.Within(30*time.Second, func() bool {
		list = n.shown()
		return len(list) > 0 && list[0].RDMA != nil && is(list[0])
	}) {
		n.t.Fatalf("show does not say %s: %+v", what, list)
	}
}

func TestShowOfADeviceThatIsGoneShowsTheRest(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(2)
	p := n.pod("trainer")
	n.attachRails(p, 2)
	core, pod := n.core(n.Netns.Netns), n.core(p.Netns.Netns)
	d, err := pod.ByName("mlx5_0")
	if err == nil {
		_, err = pod.Move(t.Context(), d, core)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, errOut, code := n.railctl("show")
	rows := strings.Join(strings.Fields(out), " ")
	if code != 1 || !strings.Contains(errOut, "RDMA device mlx5_0: no such RDMA device in the pod netns") ||
		!strings.Contains(rows, "mlx5_0/1 ? ") || !strings.Contains(rows, "mlx5_1/1 ACTIVE ") {
		t.Errorf("exit code %d, %s\n%s", code, errOut, out)
	}
	n.endRails(p, 2)
}

func TestShowAndIbdev2netdevOfAMacvlan(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	n.up(1)
	before := n.State()
	p := n.pod("web")
	c := p.call("ADD", "net1", n.config(0, map[string]any{
		"type": "macvlan", "device": nil, "master": nicName(0), "rdma": "required",
		"ipam": map[string]any{"type": "whereabouts", "range": "192.168.111.0/24"},
	}))
	c.Plugin = "macvlan"
	n.MustRun(c)
	list := n.shown()
	if len(list) != 1 || list[0].RDMA == nil || list[0].RDMA.Devices[0].State != "ACTIVE" || list[0].RDMA.Devices[0].Lent ||
		len(list[0].RDMA.Devices[0].GIDs) != 1 || list[0].RDMA.Devices[0].GIDs[0].Address != "192.168.111.1" {
		t.Errorf("%+v", list)
	}
	out, errOut, code := n.railctl("ibdev2netdev", "--container", "web")
	if out != "" || code != 0 || !strings.Contains(errOut, "no port of an RDMA device has an interface in container web") {
		t.Errorf("exit code %d, %s\n%s", code, errOut, out)
	}
	n.MustRun(c.With("DEL"))
	n.untouched(before)
}

func TestModeIsShownSetAndRefused(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	root := t.TempDir()
	mode := func(want int, args ...string) (string, string) {
		t.Helper()
		out, errOut, code := n.railctl(append([]string{"rdma", "mode", "--root", root}, args...)...)
		if code != want {
			t.Errorf("railctl rdma mode %v: exit code %d, not %d\n%s\n%s", args, code, want, out, errOut)
		}
		return out, errOut
	}
	has := func(what, text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", what, want, text)
			}
		}
	}
	out, _ := mode(0)
	has("shown", out, "now:      shared: every network namespace", "at boot:  shared, the kernel's default")

	// A pod exists: the kernel refuses, and a reboot is needed.
	p := testnet.NewNetns(t, "pod")
	out, errOut := mode(1, "exclusive")
	has("with a pod, done", out, bootmode.File+" is written, but its directory is in memory: a reboot removes the file. To keep the mode, give the kernel the argument ib_core.netns_mode=0 ")
	has("with a pod, not done", errOut, "the mode is not exclusive yet: the kernel changes the RDMA mode only while no other network namespace exists", "lsns -t net", "; reboot\n")
	if strings.Contains(out, "is exclusive now") {
		t.Error(out)
	}
	out, _ = mode(0)
	has("shown", out, "now:      shared", "at boot:  exclusive, by "+bootmode.File+":2", "The mode changes to exclusive with the next boot")
	_, errOut = mode(1, "exclusive", "--now-only")
	has("now only", errOut, "railctl rdma mode exclusive --persist-only) and reboot")
	mode(0, "exclusive", "--persist-only")
	mode(0, "shared", "--now-only") // it is in that mode already

	// Nothing prevents the change once the kernel has destroyed the namespace.
	p.Delete()
	n.setMode(rdma.Shared)
	out, _ = mode(0, "exclusive")
	has("without a pod", out, "is written", "The mode is exclusive now.")
	out, _ = mode(0)
	has("shown", out, "now:      exclusive: each RDMA device is in one network namespace", "at boot:  exclusive")
	out, _ = mode(0, "shared")
	has("and back", out, "The mode is shared now.")
}

// nicOf is a NIC of "railctl nics -o json": all that it says, and the holder apart.
type nicOf struct {
	all  map[string]any
	lent *struct{ Pod, IfName string }
}

// nics returns the machine's NICs by PCI address.
func (n *node) nics() map[string]nicOf {
	n.t.Helper()
	out, errOut, code := n.railctl("nics", "-o", "json")
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || errOut != "" {
		n.t.Fatalf("railctl nics: exit code %d, %v, %s", code, err, errOut)
	}
	found := map[string]nicOf{}
	for _, text := range list {
		var o nicOf
		var of struct {
			PCI  string
			Lent *struct{ Pod, IfName string }
		}
		if err := errors.Join(json.Unmarshal(text, &o.all), json.Unmarshal(text, &of)); err != nil {
			n.t.Fatal(err)
		}
		o.lent = of.Lent
		delete(o.all, "lent")
		if _, twice := found[of.PCI]; twice {
			n.t.Errorf("%s is there twice", of.PCI)
		}
		found[of.PCI] = o
	}
	return found
}

// TestNICsAreListedWhileTheyAreLent also proves that the facts of a lent NIC are those
// that it has on the host, before and after the loan.
func TestNICsAreListedWhileTheyAreLent(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "")
			n.up(rails)
			before := n.nics()
			for rail := range rails {
				o := before[nicPCI(rail)]
				for key, want := range map[string]any{
					"name": nicName(rail), "altNames": []any{altName(rail)}, "link": "up", "linkType": "ether", "kind": "pf", "mtu": 9000.0,
					"rdma": []any{map[string]any{"device": fmt.Sprint("mlx5_", rail), "port": 1.0, "state": "ACTIVE"}},
				} {
					if !reflect.DeepEqual(o.all[key], want) {
						t.Errorf("on the host: %s is %v, not %v: %v", key, o.all[key], want, o.all)
					}
				}
				for _, key := range []string{"driver", "vendor", "device", "mac", "permanentMAC", "charDevices", "path"} {
					if o.all[key] == nil {
						t.Errorf("on the host: no %s: %v", key, o.all)
					}
				}
				if o.lent != nil {
					t.Errorf("on the host: lent to %+v", o.lent)
				}
			}
			p := n.pod("trainer")
			n.attachRails(p, 3)
			lent := n.nics()
			sameFacts(t, "while they are lent", lent, before)
			for pci, now := range lent {
				rail := slices.IndexFunc([]int{0, 1, 2}, func(rail int) bool { return pci == nicPCI(rail) })
				if rail >= 0 && (now.lent == nil || now.lent.Pod != "default/trainer" || now.lent.IfName != podName(rail)) {
					t.Errorf("%s is lent: %+v", pci, now)
				}
				if rail < 0 && now.lent != nil {
					t.Errorf("%s is not lent: %+v", pci, now)
				}
			}
			n.drawn()
			p.IP("link", "set", podName(1), "down")
			if o := n.nics()[nicPCI(1)]; o.all["adminDown"] != true || o.all["link"] != "down" {
				t.Errorf("set down by the pod: %v", o.all)
			}
			p.IP("link", "set", podName(1), "up")
			n.endRails(p, 3)
			n.carrier(nicName(0), nicName(1), nicName(2))
			after := n.nics()
			sameFacts(t, "after the loan", after, before)
			for pci, now := range after {
				if now.lent != nil {
					t.Errorf("%s is lent: %+v", pci, now)
				}
			}
		})
	}
}

// sameFacts compares all that is said of the NICs, but the holder.
func sameFacts(t *testing.T, when string, have, want map[string]nicOf) {
	t.Helper()
	if len(have) != len(want) {
		t.Errorf("%s: %d NICs, not %d", when, len(have), len(want))
	}
	for pci, was := range want {
		if now := have[pci]; !reflect.DeepEqual(now.all, was.all) {
			t.Errorf("%s: %s is\n%v, not\n%v", when, pci, now.all, was.all)
		}
	}
}

// drawn looks at the matrix and the picture of the topology while default/trainer has the
// first NICs.
func (n *node) drawn() {
	n.t.Helper()
	out, errOut, code := n.railctl("topology")
	if code != 0 || !strings.Contains(out, nicPCI(1)+" "+nicName(1)+" mlx5_1/1 (default/trainer)") {
		n.t.Errorf("railctl topology: %d, %s\n%s", code, errOut, out)
	}
	file := filepath.Join(n.t.TempDir(), "node.svg")
	out, errOut, code = n.railctl("topology", "--svg", file)
	picture, err := os.ReadFile(file)
	if code != 0 || out != "" || err != nil || !strings.Contains(string(picture), ">mlx5_1/1 ACTIVE<") || !strings.Contains(string(picture), "→ default/trainer<") {
		n.t.Errorf("railctl topology --svg: %d, %s%s, %v\n%s", code, out, errOut, err, picture)
	}
	out, errOut, code = n.railctl("nics", "-o", "wide")
	if code != 0 || !strings.Contains(out, "RESOURCE") {
		n.t.Errorf("railctl nics -o wide: %d, %s\n%s", code, errOut, out)
	}
}
