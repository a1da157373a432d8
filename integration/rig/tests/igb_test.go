//go:build machines

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// ofIGB is what the administrator has given virtual function 1.
const ofIGB = "mac 02:00:00:00:00:77, vlan 7, qos 3, max_tx_rate 500Mbps, spoofchk on, trust off"

// igbSettings are all that a network may want and igb has, each different from the administrator's.
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
	n := &functionNode{pf: functionsOf, node: &node{t: t, Netns: here, initNet: here, spare: "ens21np0", state: filepath.Join(t.TempDir(), "state")}}
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

// interfaceOf returns the interface of a result.
func interfaceOf(t *testing.T, out []byte) current.Interface {
	t.Helper()
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil || len(result.Interfaces) != 1 {
		t.Fatalf("the result %s: %v", out, err)
	}
	return *result.Interfaces[0]
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
				n := &functionNode{n.in(t), n.pci, n.pf}
				p := n.pod("pod")
				call := n.lend(p, "ADD", 1, igbSettings)
				result := n.MustRun(call)
				n.has(1, "mac 02:ab:cd:00:00:01, vlan 100, qos 5, max_tx_rate 200Mbps, spoofchk off, trust on")
				checked := maps.Clone(igbSettings)
				checked["prevResult"] = json.RawMessage(result)
				n.MustRun(n.lend(p, "CHECK", 1, checked))
				if l, err := link.ByName(p.Netns.Netns, "net1"); err != nil || l.MAC.String() != "02:ab:cd:00:00:01" {
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
			"MTU":                {map[string]any{"mtu": 9500}, cnierr.InvalidConfig, []string{"does not accept MTU 9500"}},
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

// TestScenariosOfSRIOVCNIOnIGB has those of sriov-cni's integration tests, which run there on dummy links and a sysfs of their
// own: MAC, VLAN, MTU, pods of one virtual function and of two at once, and a DEL that lasts until the next pod has it.
func TestScenariosOfSRIOVCNIOnIGB(t *testing.T) {
	onIGB(t, 2, func(n *functionNode) {
		fresh := n.settings(0)
		before := n.State()
		scenario := func(name string, test func(n *functionNode)) {
			t.Run(name, func(t *testing.T) {
				n := &functionNode{n.in(t), n.pci, n.pf}
				test(n)
				n.has(0, fresh)
				n.has(1, ofIGB)
				n.untouched(before)
			})
		}
		scenario("MAC", func(n *functionNode) {
			for number, rest := range []string{", spoofchk on, trust off", ", vlan 7, qos 3, max_tx_rate 500Mbps, spoofchk on, trust off"} {
				p := n.pod("pod")
				call := n.lend(p, "ADD", number, map[string]any{"mac": "02:ab:cd:00:00:01"})
				result := n.MustRun(call)
				n.has(number, "mac 02:ab:cd:00:00:01"+rest)
				if l, err := link.ByName(p.Netns.Netns, "net1"); err != nil || l.MAC.String() != "02:ab:cd:00:00:01" || interfaceOf(n.t, result).Mac != "02:ab:cd:00:00:01" {
					n.t.Errorf("net1 is %+v, %v, the result %s", l, err, result)
				}
				n.MustRun(call.With("DEL"))
			}
		})
		scenario("VLAN", func(n *functionNode) {
			for number, before := range []string{fresh, ofIGB} {
				call := n.lend(n.pod("pod"), "ADD", number, map[string]any{"vlan": 100, "vlanQoS": 5})
				n.MustRun(call)
				mac, rest, _ := strings.Cut(strings.Replace(before, "vlan 7, qos 3, ", "", 1), ", ")
				n.has(number, mac+", vlan 100, qos 5, "+rest)
				n.MustRun(call.With("DEL"))
				n.has(number, before)
			}
			call := n.lend(n.pod("pod"), "ADD", 1, map[string]any{"vlan": 0})
			n.MustRun(call)
			n.has(1, "mac 02:00:00:00:00:77, max_tx_rate 500Mbps, spoofchk on, trust off")
			n.MustRun(call.With("DEL"))
		})
		scenario("MTU", func(n *functionNode) {
			for _, conf := range []map[string]any{nil, {"mtu": 9000}} {
				p := n.pod("pod")
				call := n.lend(p, "ADD", 0, conf)
				n.MustRun(call)
				p.IP("link", "set", "net1", "mtu", "1400")
				n.MustRun(call.With("DEL"))
				if l, err := link.ByName(n.node.Netns.Netns, vfName(0)); err != nil || l.MTU != 1500 {
					n.t.Errorf("%s is %+v, %v", vfName(0), l, err)
				}
			}
		})
		scenario("two pods of one function at once", func(n *functionNode) {
			calls, errs := make([]testnet.Call, 2), make([]error, 2)
			var wait sync.WaitGroup
			for i := range calls {
				calls[i] = n.lend(n.pod(fmt.Sprint("pod", i)), "ADD", 1, map[string]any{"vlan": 100 + i})
				wait.Go(func() { _, errs[i] = n.Run(calls[i]) })
			}
			wait.Wait()
			first := slices.Index(errs, nil)
			if first < 0 {
				n.t.Fatal(errs)
			}
			if code := cnierr.Code(errs[1-first]); code != cnierr.NICLent && code != cnierr.TryAgain {
				n.t.Errorf("the second ADD: code %d, %v", code, errs[1-first])
			}
			n.MustRun(calls[1-first].With("DEL"))
			n.has(1, fmt.Sprintf("mac 02:00:00:00:00:77, vlan %d, max_tx_rate 500Mbps, spoofchk on, trust off", 100+first))
			n.MustRun(calls[first].With("DEL"))
		})
		scenario("the next pod during a slow DEL", func(n *functionNode) {
			dir := n.t.TempDir()
			const slow = `#!/bin/sh
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "1.0.0", "ips": [{"address": "172.31.9.7/24"}]}' ;;
DEL) touch ${0%/*}/begun && sleep 3 ;;
esac
`
			if err := os.WriteFile(filepath.Join(dir, "slow"), []byte(slow), 0o755); err != nil {
				n.t.Fatal(err)
			}
			p := n.pod("pod")
			call := n.lend(p, "ADD", 1, map[string]any{"vlan": 0, "ipam": map[string]any{"type": "slow"}})
			call.Path = testnet.Bin(n.t) + ":" + dir
			n.MustRun(call)
			ended := make(chan error)
			go func() { _, err := n.Run(call.With("DEL")); ended <- err }()
			if !testnet.Within(10*time.Second, func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil }) {
				n.t.Fatal("the DEL of IPAM has not begun")
			}
			p.Kill()
			next := n.lend(n.pod("next"), "ADD", 1, map[string]any{"vlan": 100})
			var err error
			if !testnet.Within(20*time.Second, func() bool { _, err = n.Run(next); return err == nil }) { // as the kubelet tries
				n.t.Fatal(err)
			}
			if err := <-ended; err != nil {
				n.t.Error(err)
			}
			n.has(1, "mac 02:00:00:00:00:77, vlan 100, max_tx_rate 500Mbps, spoofchk on, trust off")
			n.MustRun(next.With("DEL"))
		})
		scenario("two functions at once", func(n *functionNode) {
			pods := []*pod{n.pod("pod0"), n.pod("pod1")}
			both := func(verb string, vlan ...int) {
				errs := make([]error, len(pods))
				var wait sync.WaitGroup
				for i, p := range pods {
					ipam := map[string]any{"type": "whereabouts", "range": "172.31.9.0/24", "exclude": []string{"172.31.9.0/30"}}
					call := n.lend(p, verb, i, map[string]any{"vlan": vlan[i], "mac": fmt.Sprintf("02:ab:cd:00:00:%02x", i), "ipam": ipam, "linkTimeout": "20s"})
					wait.Go(func() { _, errs[i] = n.Run(call) })
				}
				if wait.Wait(); errs[0] != nil || errs[1] != nil {
					n.t.Fatalf("%s: %v", verb, errs)
				}
			}
			for vlan, want := range map[int]bool{100: true, 200: false} {
				both("ADD", 100, vlan)
				to := pods[1].IP("-br", "addr", "show", "net1")
				to, _, _ = strings.Cut(strings.Fields(to)[2], "/")
				err := exec.Command("ip", "netns", "exec", pods[0].Name, "ping", "-c", "1", "-w", "3", to).Run()
				if (err == nil) != want {
					n.t.Errorf("a ping from VLAN 100 to %d: %v", vlan, err)
				}
				both("DEL", 100, vlan)
			}
		})
	})
}

// TestDPDKPodOfAnIGBFunction lends a virtual function that vfio-pci has: it gets the settings, no interface moves, and the result and
// the device information are those of host-device.
func TestDPDKPodOfAnIGBFunction(t *testing.T) {
	onIGB(t, 2, func(n *functionNode) {
		n.bind(1, "vfio-pci")
		before := n.State()
		const info = "/var/run/k8s.cni.cncf.io/devinfo/cni/functions"
		more := maps.Clone(igbSettings)
		more["runtimeConfig"] = map[string]any{"CNIDeviceInfoFile": info}
		plain := n.pod("plain").call("ADD", "net1", n.config(0, map[string]any{"device": nil, "deviceID": n.pci[1], "runtimeConfig": more["runtimeConfig"]}))
		like := interfaceOf(t, n.MustRun(plain))
		wantInfo, err := os.ReadFile(info)
		if err != nil || like.PciID != n.pci[1] || !strings.Contains(string(wantInfo), n.pci[1]) {
			t.Errorf("host-device: the interface %+v, the device information %s, %v", like, wantInfo, err)
		}
		n.MustRun(plain.With("DEL"))
		n.untouched(before)
		for name, end := range map[string]func(n *functionNode, p *pod, call testnet.Call){
			"DEL":          func(n *functionNode, _ *pod, call testnet.Call) { n.MustRun(call.With("DEL")) },
			"dead pod, gc": func(n *functionNode, p *pod, _ testnet.Call) { p.Kill(); n.gc() },
			"dead pod, the next pod's ADD": func(n *functionNode, p *pod, _ testnet.Call) {
				p.Kill()
				next := n.lend(n.pod("next"), "ADD", 1, map[string]any{"vlan": 0})
				n.MustRun(next)
				n.has(1, "mac 02:00:00:00:00:77, max_tx_rate 500Mbps, spoofchk on, trust off")
				n.MustRun(next.With("DEL"))
			},
		} {
			t.Run(name, func(t *testing.T) {
				n := &functionNode{n.in(t), n.pci, n.pf}
				p := n.pod("pod")
				call := n.lend(p, "ADD", 1, more)
				result := n.MustRun(call)
				n.has(1, "mac 02:ab:cd:00:00:01, vlan 100, qos 5, max_tx_rate 200Mbps, spoofchk off, trust on")
				want := like
				want.Mtu = 1500                // of its physical function
				want.Mac = "02:ab:cd:00:00:01" // by which the pod's own driver is known
				if want.Sandbox = call.Netns; interfaceOf(t, result) != want {
					t.Errorf("the result is %s, want the interface %+v", result, want)
				}
				links, err := link.Links(p.Netns.Netns)
				if err != nil || len(links) != 1 {
					t.Errorf("the pod has the links %+v, %v", links, err)
				}
				checked := maps.Clone(more)
				checked["prevResult"] = json.RawMessage(result)
				n.MustRun(n.lend(p, "CHECK", 1, checked))
				text, err := os.ReadFile(info)
				if string(text) != string(wantInfo) {
					t.Errorf("the device information is %s, %v, want %s", text, err, wantInfo)
				}
				end(n, p, call)
				if _, err := os.Stat(info); err == nil {
					t.Error("the device information is left")
				}
				n.has(1, ofIGB)
				n.untouched(before)
			})
		}
		_, err = n.Run(n.lend(n.pod("pod"), "ADD", 1, map[string]any{"vlan": 100, "trust": "on", "link_state": "enable"}))
		refused(t, err, cnierr.NotAvailable, "link state")
		n.untouched(before)
	})
}
