//go:build rig

package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestVirtualFunctionsTakeTheirRDMADevicesAlong lends two virtual functions of
// one NIC to two pods, as Multus asks for it: a device plugin has chosen the
// functions, and Multus injects them as deviceID and pciBusID into a
// configuration that names no NIC. What the NIC itself and its other functions
// have stays on the host.
func TestVirtualFunctionsTakeTheirRDMADevicesAlong(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	const physical, pf = "/sys/bus/pci/devices/0000:01:00.0/", "enp1s0np0"
	write(t, physical+"sriov_numvfs", "4")
	t.Cleanup(func() { write(t, physical+"sriov_numvfs", "0") })
	n.Batch(nil, "link set "+pf+" mtu 9000 up", "link set "+pf+" vf 1 vlan 0 spoofchk off trust on")
	before, devices := n.State(), n.allRDMA()
	if len(devices) != rails+2+4 {
		t.Fatalf("RDMA devices of eight rails, a spare, a NIC and its 4 functions: %v", devices)
	}
	var pods []*pod
	var configs []string
	var lent []string
	for i, function := range []int{1, 3} {
		target := readLink(t, fmt.Sprintf("%svirtfn%d", physical, function))
		pci := filepath.Base(target)
		// The device plugin has left what it knows, for Multus and the pod.
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
		if l, err := p.ByName("net1"); err != nil || l.ParentDev != pci || l.MTU != 9000 {
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
