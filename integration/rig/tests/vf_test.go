//go:build rig

package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestVirtualFunctionsTakeTheirRDMADevicesAlong lends two virtual functions of
// one NIC to two pods, as Multus requests it: a device plugin has chosen the
// functions, and Multus injects them as deviceID and pciBusID into a
// configuration that names no NIC. The RDMA devices of the NIC itself and of
// its other functions stay on the host.
func TestVirtualFunctionsTakeTheirRDMADevicesAlong(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.makeFunctions(4)
	n.Batch(nil, "link set "+functionsOf+" mtu 9000 up", "link set "+functionsOf+" vf 1 vlan 0 spoofchk off trust on")
	before, devices := n.State(), n.allRDMA()
	if len(devices) != rails+2+4 {
		t.Fatalf("RDMA devices of eight rails, a spare, a NIC and its 4 functions: %v", devices)
	}
	var pods []*pod
	var configs []string
	var lent []string
	for i, function := range []int{1, 3} {
		target := readLink(t, fmt.Sprintf("%svirtfn%d", functionDir, function))
		pci := filepath.Base(target)
		// The device plugin has left its information, for Multus and the pod.
		info := filepath.Join("/var/run/k8s.cni.cncf.io/devinfo/dp", "rig-"+pci+"-device.json")
		if err := os.MkdirAll(filepath.Dir(info), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, info, `{"type":"pci","version":"1.1.0","pci":{"pci-address":"`+pci+`"}}`)
		p := n.pod(fmt.Sprintf("pod%d", i+1))
		config := n.config(0, map[string]any{
			"device": nil, "deviceID": pci, "pciBusID": pci, "mtu": 9000, "rdma": "required",
			"runtimeConfig": map[string]any{"deviceID": pci, "CNIDeviceInfoFile": info},
			"ipam":          map[string]any{"type": "whereabouts", "range": "172.31.9.0/24"},
		})
		n.MustRun(p.call("ADD", "net1", config))
		if l, err := link.ByName(p.Netns.Netns, "net1"); err != nil || l.ParentDev != pci || l.MTU != 9000 {
			t.Errorf("the pod's net1 is %+v, %v", l, err)
		}
		mine := n.rdmaIn(p.Netns.Netns, func(string) bool { return true })
		if len(mine) != 1 {
			t.Fatalf("%s has the RDMA devices %v, not one", p.container, mine)
		}
		for name, state := range mine {
			lent = append(lent, name)
			if state != devices[name] || !strings.Contains(state, pci) {
				t.Errorf("%s has %s (%s), and it was %s on the host", p.container, name, state, devices[name])
			}
		}
		pods, configs = append(pods, p), append(configs, config)
	}
	left := maps.Clone(devices)
	maps.DeleteFunc(left, func(name, _ string) bool { return slices.Contains(lent, name) })
	if now := n.allRDMA(); !maps.Equal(now, left) {
		t.Errorf("left on the host:\n%v\nwant\n%v", now, left)
	}
	pods[1].Exec("ping", "-c", "1", "-w", "5", "-s", "8900", "-M", "do", "172.31.9.1")
	for i, p := range pods {
		n.MustRun(p.call("DEL", "net1", configs[i]))
	}
	n.untouched(before)
	if now := n.allRDMA(); !maps.Equal(now, devices) {
		t.Errorf("RDMA devices on the host:\n%v\nbefore:\n%v", now, devices)
	}
}

// TestNobodyAsksForVirtualFunctions counts how often the driver is asked for
// virtual functions: a real one asks its firmware, under the lock that every
// change of any link takes.
func TestNobodyAsksForVirtualFunctions(t *testing.T) {
	n := newNode(t)
	const physical, pf = "/sys/bus/pci/devices/0000:01:00.0/", "enp1s0np0"
	const calls = "/sys/module/fakerdma/parameters/vf_config_calls"
	write(t, physical+"sriov_numvfs", "4")
	t.Cleanup(func() { write(t, physical+"sriov_numvfs", "0") })
	n.up(1)
	n.IP("link", "set", pf, "up")
	asked := func(what string, f func()) int {
		write(t, calls, "0")
		f()
		text, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		count, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d questions for a virtual function", what, count)
		return count
	}
	if asked("ip link", func() { n.IP("link", "show") }) == 0 {
		t.Error("the driver does not count")
	}
	nic, child := n.pod("nic"), n.pod("child")
	ofNIC := n.config(0, nil)
	ofChild := n.config(0, map[string]any{"type": "macvlan", "name": "macvlan-net", "device": nil, "master": pf})
	call := func(verb string) (both []testnet.Call) {
		macvlan := child.call(verb, "net1", ofChild)
		macvlan.Plugin = "macvlan"
		return []testnet.Call{nic.call(verb, "net1", ofNIC), macvlan}
	}
	run := func(verb string) func() {
		return func() {
			for _, c := range call(verb) {
				n.MustRun(c)
			}
		}
	}
	railctl := func(args ...string) func() {
		return func() {
			if _, errOut, code := n.railctl(args...); code != 0 {
				t.Errorf("railctl %v: %s", args, errOut)
			}
		}
	}
	for _, step := range []struct {
		what string
		does func()
	}{
		{"ADD", run("ADD")},
		{"the agent", func() { n.in(t).keep(); n.metrics() }},
		{"railctl show", railctl("show")},
		{"railctl ibdev2netdev", railctl("ibdev2netdev")},
		{"railctl gc", railctl("gc")},
		{"DEL", run("DEL")},
		{"ADD of one whose NIC is on the host by its address", func() {
			n.MustRun(nic.call("ADD", "net1", n.config(0, map[string]any{"device": nil, "hwaddr": macOf(t, n, nicName(0))})))
		}},
		{"its DEL", func() { n.MustRun(nic.call("DEL", "net1", ofNIC)) }},
	} {
		if count := asked(step.what, step.does); count > 0 {
			t.Errorf("%s asks %d times for a virtual function", step.what, count)
		}
	}
}

func macOf(t *testing.T, n *node, name string) string {
	t.Helper()
	l, err := link.ByName(n.Netns.Netns, name)
	if err != nil {
		t.Fatal(err)
	}
	return l.MAC.String()
}
