//go:build rig

package tests

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestEverySelectorFindsANICOnItsPCIFunction(t *testing.T) {
	n := newNode(t)
	n.furnish(1)
	before := n.State()
	l, err := link.ByName(n.Netns.Netns, nicName(0))
	if err != nil {
		t.Fatal(err)
	}
	mac, path := l.MAC.String(), readLink(t, "/sys/class/net/"+nicName(0)+"/device")
	for name, selector := range map[string]map[string]any{
		"device":                  {},
		"device by its altname":   {"device": altName(0)},
		"hwaddr":                  {"device": nil, "hwaddr": strings.ToUpper(mac)},
		"kernelpath":              {"device": nil, "kernelpath": path},
		"pciBusID":                {"device": nil, "pciBusID": nicPCI(0)},
		"injected by Multus":      {"device": nil, "pciBusID": nicPCI(0), "deviceID": nicPCI(0)},
		"runtimeConfig":           {"device": nil, "runtimeConfig": map[string]any{"deviceID": nicPCI(0)}},
		"runtimeConfig wins":      {"device": nil, "pciBusID": nicPCI(1), "runtimeConfig": map[string]any{"deviceID": nicPCI(0)}},
		"device, and its id":      {"pciBusID": nicPCI(0), "deviceID": nicPCI(0)},
		"id that names no device": {"deviceID": "0", "runtimeConfig": map[string]any{"deviceID": "3"}},
		"cniVersion 1.0.0":        {"cniVersion": "1.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := n.pod("pod1")
			config := n.config(0, selector)
			checkResult(t, n.MustRun(p.call("ADD", "net1", config)), mac, selector["cniVersion"] == nil)
			if got, err := link.ByName(p.Netns.Netns, "net1"); err != nil || got.ParentDev != nicPCI(0) || !got.IsUp() || got.MTU != 9000 {
				t.Errorf("the pod's net1 is %+v, %v", got, err)
			}
			n.MustRun(p.call("DEL", "net1", config))
			n.untouched(before)
		})
	}
}

// checkResult checks the NIC in ADD's result; the PCI address and the MTU are
// in it from cniVersion 1.1.0 on.
func checkResult(t *testing.T, out []byte, mac string, newest bool) {
	t.Helper()
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantPCI, wantMTU := "", 0
	if newest {
		wantPCI, wantMTU = nicPCI(0), 9000
	}
	if len(result.Interfaces) != 1 {
		t.Fatalf("result: %s", out)
	}
	if got := result.Interfaces[0]; got.Name != "net1" || got.Mac != mac || got.PciID != wantPCI || got.Mtu != wantMTU {
		t.Errorf("result: %s", out)
	}
}

func TestVirtualFunctionIsLentByItsPCIAddress(t *testing.T) {
	n := newNode(t)
	const physical = "/sys/bus/pci/devices/0000:01:00.0/"
	write(t, physical+"sriov_numvfs", "2")
	t.Cleanup(func() { write(t, physical+"sriov_numvfs", "0") })
	vf := readLink(t, physical+"virtfn1")
	pci := vf[strings.LastIndex(vf, "/")+1:]
	before := n.State()
	p := n.pod("pod1")
	config := n.config(0, map[string]any{"device": nil, "pciBusID": pci})
	n.MustRun(p.call("ADD", "net1", config))
	if l, err := link.ByName(p.Netns.Netns, "net1"); err != nil || l.ParentDev != pci {
		t.Errorf("the pod's net1 is %+v, %v", l, err)
	}
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
}

func TestNICsOfOneRailReachEachOther(t *testing.T) {
	n := newNode(t)
	n.up(1)
	n.Batch(nil, "link set "+n.spare+" mtu 9000 up")
	n.carrier(n.spare)
	before := n.State()
	pods := []*pod{n.pod("pod1"), n.pod("pod2")}
	configs := []string{
		n.config(0, map[string]any{"ipam": map[string]any{"type": "whereabouts", "range": "172.31.1.0/24", "gateway": "172.31.1.1"}}),
		n.config(0, map[string]any{"device": n.spare, "ipam": map[string]any{"type": "whereabouts", "range": "172.31.1.0/24", "gateway": "172.31.1.1"}}),
	}
	for i, p := range pods {
		n.MustRun(p.call("ADD", "net1", configs[i]))
	}
	pods[0].Exec("ping", "-c", "1", "-w", "5", "-s", "8900", "-M", "do", "172.31.1.3")
	for i, p := range pods {
		n.MustRun(p.call("DEL", "net1", configs[i]))
	}
	n.untouched(before)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}
