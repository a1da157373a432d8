//go:build kernels

package kernels

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

func TestNICIsLentAndComesHomeAsItWas(t *testing.T) {
	n := newNode(t)
	before := n.State()
	moved := true
	for name, selector := range map[string]map[string]any{
		"device":   nil,
		"altname":  {"device": altname(first)},
		"pciBusID": {"device": nil, "pciBusID": pci(first)},
	} {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			p := n.pod("pod1")
			config := n.config(first, selector)
			result := n.MustRun(p.call("ADD", "net1", config))
			if !bytes.Contains(result, []byte(pci(first))) {
				t.Errorf("ADD does not name the NIC's PCI address: %s", result)
			}
			if out := p.IP("link", "show", "net1"); !strings.Contains(out, "mtu 4000") || !strings.Contains(out, ",UP") {
				t.Errorf("the pod's net1: %s", out)
			}
			n.MustRun(p.checked("net1", config, result))
			moved = exec.Command("ip", "link", "show", altname(first)).Run() != nil
			p.Batch(nil, "link set net1 down", "link set net1 name evil", "link set evil mtu 1400 alias evil")
			n.MustRun(p.call("DEL", "net1", config))
			n.untouched(before)
		})
	}
	if !moved { // a kernel that moves altnames refuses the name: the NIC has it already
		t.Run("with its altname in the pod", func(t *testing.T) {
			const short = "leaf7" // an interface name has at most 15 characters
			n := n.in(t)
			n.IP("link", "property", "add", "dev", nic(first), "altname", short)
			before := n.State()
			p, config := n.pod("pod1"), n.config(first, nil)
			n.MustRun(p.call("ADD", short, config))
			_, err := n.Run(n.pod("pod2").call("ADD", "net1", n.config(first, map[string]any{"device": short})))
			if err == nil || !strings.Contains(err.Error(), "is lent to") {
				t.Errorf("a second ADD by the altname: %v", err)
			}
			n.MustRun(p.call("DEL", short, config))
			n.untouched(before)
			n.IP("link", "property", "del", "dev", nic(first), "altname", short)
		})
	}
	n.fact("lend", "yes")
	n.fact("altnames", either(moved, "return", "return; `ip link show ALTNAME` on the host shows the lent NIC"))
}

func TestNICsOfKilledPodsComeHome(t *testing.T) {
	n := newNode(t)
	before := n.State()
	fallen := func(n *node) {
		n.await("the NICs' fall", func() bool { return onHost(first) != "" && onHost(second) != "" })
	}
	for way, home := range map[string]func(*node, *pod){
		"by a DEL at once": func(n *node, p *pod) {
			n.MustRun(p.call("DEL", "net1", n.addressed(first, nil)))
			n.MustRun(p.call("DEL", "net2", n.addressed(second, nil)))
		},
		"by a late DEL": func(n *node, p *pod) {
			fallen(n)
			n.MustRun(p.call("DEL", "net1", n.addressed(first, nil)))
			n.MustRun(p.call("DEL", "net2", n.addressed(second, nil)))
		},
		"by railctl gc": func(n *node, _ *pod) {
			fallen(n)
			n.railctl("gc")
		},
		"by the next ADD": func(n *node, _ *pod) {
			fallen(n)
			other, config := n.pod("other"), n.config(spare, nil)
			n.MustRun(other.call("ADD", "net1", config))
			if left := n.records(); len(left) != 1 {
				n.t.Errorf("%d records are left", len(left))
			}
			n.MustRun(other.call("DEL", "net1", config))
		},
		"by an ADD of the same NIC at once": func(n *node, _ *pod) {
			other, config := n.pod("other"), n.config(first, nil)
			n.MustRun(other.call("ADD", "net1", config))
			n.MustRun(other.call("DEL", "net1", config))
			fallen(n)
			n.railctl("gc")
		},
		"by rail-agent": func(n *node, _ *pod) {
			n.await("the agent", func() bool { return len(n.records()) == 0 })
		},
	} {
		t.Run(way, func(t *testing.T) {
			n := n.in(t)
			n.state = filepath.Join(t.TempDir(), "state")
			p := n.pod("pod1")
			n.MustRun(p.call("ADD", "net1", n.addressed(first, nil)))
			n.MustRun(p.call("ADD", "net2", n.addressed(second, nil)))
			if way == "by rail-agent" {
				n.keep()
			}
			p.Kill()
			home(n, p)
			n.untouched(before)
		})
	}
	n.fact("death", "yes")
}

// keep starts rail-agent on the node, and ends it with the test, which fails if
// the agent warned.
func (n *node) keep() {
	n.t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(testnet.Bin(n.t), "rail-agent"), "run", "--state-dir", n.state, "--metrics", "127.0.0.1:9400")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || n.t.Failed() || strings.Contains(log.String(), "level=WARN") {
			n.t.Errorf("rail-agent: %v\n%s", err, log.String())
		}
	})
}

// The pod renames its NIC all the time, while it is looked for by its name.
func TestNICThatIsRenamedAllTheTimeComesHome(t *testing.T) {
	n := newNode(t)
	before := n.State()
	p, config := n.pod("pod1"), n.config(first, nil)
	n.MustRun(p.call("ADD", "net1", config))
	hostile := exec.Command("ip", "netns", "exec", p.Name, "sh", "-c",
		"while ip link set net1 down && ip link set net1 name x && ip link set x name net1; do :; done 2>/dev/null")
	if err := hostile.Start(); err != nil {
		t.Fatal(err)
	}
	n.MustRun(p.call("DEL", "net1", config))
	_ = hostile.Process.Kill()
	_ = hostile.Wait()
	n.untouched(before)
}

func TestPodsOfOneRailReachEachOther(t *testing.T) {
	n := newNode(t)
	before := n.State()
	wait := map[string]any{"linkTimeout": "60s"} // the emulated link takes ten seconds to come up
	pods, configs := []*pod{n.pod("pod1"), n.pod("pod2")}, []string{n.addressed(first, wait), n.addressed(spare, wait)}
	for i, p := range pods {
		n.MustRun(p.call("ADD", "net1", configs[i]))
	}
	pods[0].Exec("ping", "-c", "1", "-w", "20", "-s", "3900", "-M", "do", "172.31.1.2")
	var shown []map[string]any
	if out := n.railctl("show", "-o", "json"); json.Unmarshal([]byte(out), &shown) != nil || len(shown) != 2 || !strings.Contains(out, pci(first)) {
		t.Errorf("railctl show:\n%s", out)
	}
	n.railctl("show")
	for i, p := range pods {
		n.MustRun(p.call("DEL", "net1", configs[i]))
	}
	n.untouched(before)
}

func TestMacvlanOnANIC(t *testing.T) {
	n := newNode(t)
	before := n.State()
	config := n.addressed(first, map[string]any{"type": "macvlan", "device": nil, "master": nic(first)})
	p := n.pod("pod1")
	// Kernels before 6.2 look the name up on the host.
	for _, ifName := range []string{"net1", nic(second)} {
		result := n.MustRun(p.call("ADD", ifName, config))
		n.MustRun(p.checked(ifName, config, result))
		n.MustRun(p.call("DEL", ifName, config))
	}
	n.MustRun(p.call("ADD", "net1", config))
	p.Kill()
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
	n.fact("macvlan", "yes")
}

func TestStatusOfEachPlugin(t *testing.T) {
	n := newNode(t)
	for _, config := range []string{
		n.config(first, nil),
		n.addressed(first, nil),
		n.addressed(first, map[string]any{"type": "macvlan", "device": nil, "master": nic(first)}),
	} {
		call := n.pod("none").call("STATUS", "", config)
		call.ContainerID, call.Netns, call.Args = "", "", ""
		n.MustRun(call)
	}
}
