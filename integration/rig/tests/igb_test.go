//go:build machines

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// ofIGB is what the administrator has given virtual function 1.
const ofIGB = "mac 02:00:00:00:00:77, vlan 7, qos 3, max_tx_rate 500Mbps, spoofchk on, trust off"

// igbSettings are all that a network may want and igb has, each another than the administrator's.
var igbSettings = map[string]any{"vlan": 100, "vlanQoS": 5, "mac": "02:ab:cd:00:00:01", "spoofchk": "off", "trust": "on", "max_tx_rate": 200}

// onIGB runs a test in a machine whose NIC with virtual functions is QEMU's igb, with the kernel's
// drivers (igb, igbvf). It makes virtual functions, as newFunctions does.
func onIGB(t *testing.T, count int, test func(n *functionNode)) {
	t.Helper()
	if os.Getenv(rig.Mark) == "" {
		out, err := boot(t, []string{"RIG_IGB=yes"})
		if t.Logf("%s", out); err != nil {
			t.Error(err)
		}
		return
	}
	reload(t, "slots=21") // one NIC of the others is enough
	if err := kmod.LoadAll(wire.Functions); err != nil {
		t.Fatal(err)
	}
	here := testnet.Here(t)
	n := &functionNode{node: &node{t: t, Netns: here, initNet: here, spare: "ens21np0", state: filepath.Join(t.TempDir(), "state")}}
	n.rename(functionDir, functionsOf)
	n.IP("link", "set", functionsOf, "up") // a function that is made while its NIC is down has no link
	n.makeFunctions(count)
	n.linked(functionsOf) // the NIC was reset; it refuses a rate without a link
	for i := range count {
		dir := readLink(t, fmt.Sprintf("%svirtfn%d", functionDir, i))
		n.pci = append(n.pci, filepath.Base(dir))
		n.rename(dir, vfName(i))
	}
	n.Batch(nil, "link set "+functionsOf+" vf 1 mac 02:00:00:00:00:77 vlan 7 qos 3 max_tx_rate 500")
	n.bind(1, "igbvf") // its driver takes the MAC
	n.rename("/sys/bus/pci/devices/"+n.pci[1], vfName(1))
	test(n)
}

// linked waits for the carrier of an interface, which the kernel may not have reported yet.
func (n *node) linked(name string) {
	n.t.Helper()
	if !testnet.Within(10*time.Second, func() bool {
		text, _ := os.ReadFile("/sys/class/net/" + name + "/carrier") // an error if it is down
		return string(text) == "1\n"
	}) {
		n.t.Fatalf("%s has no carrier", name)
	}
}

func vfName(number int) string { return fmt.Sprintf("enp1s0v%d", number) }

// rename names the interface of a PCI function, once it is there.
func (n *node) rename(dir, name string) {
	n.t.Helper()
	var found []string
	if !testnet.Within(10*time.Second, func() bool {
		found, _ = filepath.Glob(dir + "/net/*")
		return len(found) == 1
	}) {
		n.t.Fatalf("%s has the interfaces %q", dir, found)
	}
	n.Batch(nil, "link set "+filepath.Base(found[0])+" down", "link set "+filepath.Base(found[0])+" name "+name)
}

// bind binds a virtual function to a driver, also to its own anew.
func (n *functionNode) bind(number int, driver string) {
	n.t.Helper()
	dir := "/sys/bus/pci/devices/" + n.pci[number]
	write(n.t, dir+"/driver/unbind", n.pci[number])
	write(n.t, dir+"/driver_override", driver)
	write(n.t, "/sys/bus/pci/drivers_probe", n.pci[number])
	if now := filepath.Base(readLink(n.t, dir+"/driver")); now != driver {
		n.t.Fatalf("virtual function %d has the driver %s", number, now)
	}
}

// settings returns what the physical function has of a virtual one.
func (n *functionNode) settings(number int) string {
	n.t.Helper()
	line := strings.Split(n.table(), "\n")[number]
	var all []string
	for _, field := range strings.Split(line, ",") {
		field = strings.TrimSpace(field)
		if mac, ok := strings.CutPrefix(field, fmt.Sprintf("vf %d     link/ether ", number)); ok {
			field = "mac " + strings.Fields(mac)[0]
		}
		field = strings.Replace(field, "spoof checking", "spoofchk", 1)
		if !strings.HasPrefix(field, "tx rate ") && field != "link-state auto" {
			all = append(all, field)
		}
	}
	return strings.Join(all, ", ")
}

// has fails the test unless a virtual function has these settings.
func (n *functionNode) has(number int, want string) {
	n.t.Helper()
	if now := n.settings(number); now != want {
		n.t.Errorf("virtual function %d has %s, want %s", number, now, want)
	}
}

// TestSettingsOfIGBsFunctionsComeHome checks with a driver of the kernel that the pod has the network's settings, and that
// the virtual function has its own again, whatever ends the attachment.
func TestSettingsOfIGBsFunctionsComeHome(t *testing.T) {
	onIGB(t, 2, func(n *functionNode) {
		n.has(1, ofIGB)
		before := n.State() // with the physical function's table
		for name, end := range map[string]func(n *functionNode, p *pod, call testnet.Call){
			"DEL":           func(n *functionNode, _ *pod, call testnet.Call) { n.MustRun(call.With("DEL")) },
			"dead pod, DEL": func(n *functionNode, p *pod, call testnet.Call) { p.Kill(); n.MustRun(call.With("DEL")) },
			"dead pod, gc":  func(n *functionNode, p *pod, _ testnet.Call) { p.Kill(); n.gc() },
			"dead pod, the next pod's ADD, a late DEL": func(n *functionNode, p *pod, call testnet.Call) {
				p.Kill()
				next := n.lend(n.pod("next"), "ADD", 1, map[string]any{"vlan": 9})
				n.MustRun(next)
				const its = "mac 02:00:00:00:00:77, vlan 9, max_tx_rate 500Mbps, spoofchk on, trust off"
				n.has(1, its)
				n.MustRun(call.With("DEL"))
				n.has(1, its)
				n.MustRun(next.With("DEL"))
			},
		} {
			t.Run(name, func(t *testing.T) {
				n := &functionNode{n.in(t), n.pci}
				p := n.pod("pod")
				call := n.lend(p, "ADD", 1, igbSettings)
				result := n.MustRun(call)
				n.has(1, "mac 02:ab:cd:00:00:01, vlan 100, qos 5, max_tx_rate 200Mbps, spoofchk off, trust on")
				checked := maps.Clone(igbSettings)
				checked["prevResult"] = json.RawMessage(result)
				n.MustRun(n.lend(p, "CHECK", 1, checked))
				if l, err := p.ByName("net1"); err != nil || l.MAC.String() != "02:ab:cd:00:00:01" {
					t.Errorf("net1 is %+v, %v", l, err)
				}
				// A trusted function may have another MAC, and all packets.
				p.Batch(nil, "link set net1 down", "link set net1 address 02:00:00:00:66:66", "link set net1 up promisc on allmulticast on")
				n.has(1, "mac 02:00:00:00:66:66, vlan 100, qos 5, max_tx_rate 200Mbps, spoofchk off, trust on")
				end(n, p, call)
				n.untouched(before)
			})
		}
	})
}

// TestMACThatATrustedPodSetOnIGBComesHome: igb shows, as the MAC of a virtual function, what the pod has set, and then holds the
// function to it.
func TestMACThatATrustedPodSetOnIGBComesHome(t *testing.T) {
	onIGB(t, 2, func(n *functionNode) {
		before := n.State()
		for number, was := range []string{n.settings(0), ofIGB} { // without a MAC of the administrator, and with one
			for _, dies := range []bool{false, true} {
				p := n.pod("pod")
				call := n.lend(p, "ADD", number, map[string]any{"trust": "on"})
				n.MustRun(call)
				n.has(number, strings.Replace(was, "trust off", "trust on", 1))
				p.Batch(nil, "link set net1 down", "link set net1 address 02:00:00:00:66:66", "link set net1 up")
				if now := n.settings(number); !strings.HasPrefix(now, "mac 02:00:00:00:66:66,") {
					t.Errorf("virtual function %d has %s", number, now)
				}
				if dies {
					p.Kill()
				}
				if _, err := n.Run(call.With("DEL")); err != nil {
					t.Fatalf("DEL of virtual function %d: %v", number, err)
				}
				n.has(number, was)
				n.untouched(before)
			}
		}
	})
}

// TestADDThatFailsRestoresIGBsFunctions checks each setting that igb lacks, and errors after all settings were set.
func TestADDThatFailsRestoresIGBsFunctions(t *testing.T) {
	onIGB(t, 2, func(n *functionNode) {
		before := n.State()
		oneAddress := map[string]any{"type": "whereabouts", "range": "172.31.9.0/30", "range_end": "172.31.9.1"}
		held := n.lend(n.pod("held"), "ADD", 0, map[string]any{"ipam": oneAddress})
		n.MustRun(held)
		during := n.State()
		for name, c := range map[string]struct {
			more map[string]any
			code uint
			text []string
		}{
			"no link state":      {map[string]any{"link_state": "enable"}, cnierr.NotAvailable, []string{"link state: operation not supported", "not every driver"}},
			"no minimum":         {map[string]any{"min_tx_rate": 10}, cnierr.NotAvailable, []string{"rate: invalid argument"}},
			"more than the link": {map[string]any{"max_tx_rate": 2000}, cnierr.NotAvailable, []string{"rate: invalid argument"}},
			"no 802.1ad":         {map[string]any{"vlanProto": "802.1ad"}, cnierr.NotAvailable, []string{"VLAN: protocol not supported"}},
			"MTU":                {map[string]any{"mtu": 9500}, cnierr.InvalidConfig, []string{"does not take MTU 9500"}},
			"no address left":    {map[string]any{"ipam": oneAddress}, cnierr.IPAM, []string{"172.31.9"}},
		} {
			conf := maps.Clone(igbSettings)
			maps.Copy(conf, c.more)
			_, err := n.Run(n.lend(n.pod("pod"), "ADD", 1, conf))
			refused(t, err, c.code, c.text...)
			if d := n.Settled(during); d != "" {
				t.Errorf("%s: the host is not as it was:\n%s", name, d)
			}
		}
		n.MustRun(held.With("DEL"))
		n.untouched(before)
		// What igb does anyway is no error.
		call := n.lend(n.pod("auto"), "ADD", 1, map[string]any{"link_state": "auto", "min_tx_rate": 0, "trust": "on"})
		n.MustRun(call)
		n.has(1, "mac 02:00:00:00:00:77, vlan 7, qos 3, max_tx_rate 500Mbps, spoofchk on, trust on")
		n.MustRun(call.With("DEL"))
		n.untouched(before)
	})
}
