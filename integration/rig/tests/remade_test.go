//go:build rig

package tests

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// A driver that resets re-creates its RDMA device on the host, and the pod has none.
func TestRDMADeviceThatItsDriverMakesAnewIsMovedIntoItsPodAgain(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	// The driver names each new device mlx5_N, so the agent must rename it, too.
	const name = "roce0"
	n.renameRDMA(0, name)
	cm := newConfigfs(t, name)
	cm.set("default_roce_tos", "106")
	cm.set("default_roce_mode", "IB/RoCE v1")
	before, devices := n.State(), n.allRDMA()
	p := n.pod("trainer")
	keys := map[string]any{"rdma": "required", "roceTos": 96, "ipam": map[string]any{
		"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24"}},
	}}
	config := n.config(0, keys)
	keys["prevResult"] = json.RawMessage(n.MustRun(p.call("ADD", "net1", config)))
	check := p.call("CHECK", "net1", n.config(0, keys))
	inPod := n.rdmaState(p.Netns.Netns)
	if inPod[name] == "" {
		t.Fatalf("RDMA devices in the pod: %v", inPod)
	}
	// The agent may look while there is no device.
	log := n.keep("RDMADeviceRemade", "RDMADeviceMissing")
	for round := range 2 {
		write(t, function(0, "recreate_rdma"), "1")
		// The name and the settings follow the move, which CHECK may see before them.
		n.eventually("the agent tells of the device", func() bool { return strings.Count(log(), "reason=RDMADeviceRemade") == round+1 })
		n.eventually("CHECK passes", func() bool { _, err := n.Run(check); return err == nil })
		if now := n.rdmaState(p.Netns.Netns); !maps.Equal(now, inPod) {
			t.Errorf("RDMA devices in the pod: %v, before: %v", now, inPod)
		}
		cm.want("in the pod", "96", "IB/RoCE v1")
	}
	n.exported("rail_cni_rdma_devices_missing 0")
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
	n.rdmaAll(devices)
	cm.want("on the host again", "106", "IB/RoCE v1")
}

// The record of the chained plugin has the RDMA device, and no NIC.
func TestRemadeRDMADeviceOfTheChainedPluginIsMovedIntoItsPodAgain(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.peerNIC = true
	c.add()
	check, inPod := c.rdma("CHECK"), c.rdmaState(c.pod.Netns.Netns)
	c.MustRun(check)
	log := c.keep("RDMADeviceRemade", "RDMADeviceMissing")
	write(t, function(0, "recreate_rdma"), "1")
	c.eventually("the agent tells of the device", func() bool { return strings.Contains(log(), "reason=RDMADeviceRemade") })
	c.eventually("CHECK passes", func() bool { _, err := c.Run(check); return err == nil })
	if now := c.rdmaState(c.pod.Netns.Netns); !maps.Equal(now, inPod) {
		t.Errorf("RDMA devices in the pod: %v, before: %v", now, inPod)
	}
	c.has()
	c.MustRun(c.rdma("DEL"))
	c.MustRun(c.nic("DEL"))
	c.ended()
}

// renameRDMA renames the host's RDMA device of a NIC.
func (n *node) renameRDMA(i int, name string) {
	n.t.Helper()
	if err := n.core(n.Netns.Netns).Rename(n.rdmaOf(i), name); err != nil {
		n.t.Fatal(err)
	}
}

// rdmaOf returns the host's RDMA device of a NIC. Its number depends on the tests before.
func (n *node) rdmaOf(i int) rdma.Device {
	n.t.Helper()
	devices, err := n.core(n.Netns.Netns).Devices()
	if err != nil {
		n.t.Fatal(err)
	}
	at := slices.IndexFunc(devices, func(d rdma.Device) bool { return d.ParentDev == nicPCI(i) })
	if at < 0 {
		n.t.Fatalf("%s has no RDMA device", nicPCI(i))
	}
	return devices[at]
}

// A driver that is unbound, or that fails after a reset, leaves no device that could be
// moved into the pod.
func TestRDMADeviceWhoseDriverIsUnboundIsReported(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	log := n.keep("RDMADeviceMissing", "NICMissing")
	p := n.pod("trainer")
	add := p.call("ADD", "net1", n.config(0, map[string]any{"rdma": "required"}))
	check := add.With("CHECK")
	check.Config = withResult(t, add.Config, n.MustRun(add))
	n.MustRun(check)
	n.exported("rail_cni_rdma_devices_missing 0")
	write(t, driver+"unbind", nicPCI(0))
	// The agent looks for a device that is not on the host only every half a minute.
	n.exported("rail_cni_rdma_devices_missing 1")
	n.exported("rail_cni_nics_missing 1")
	for _, reason := range []string{"RDMADeviceMissing", "NICMissing"} {
		if !strings.Contains(log(), "reason="+reason) {
			t.Errorf("the agent has not told of %s", reason)
		}
	}
	_, err := n.Run(check)
	mustFail(t, err, cnierr.Mismatch, "net1")
	n.MustRun(add.With("DEL"))
	write(t, driver+"bind", nicPCI(0))
	n.up(1)
	n.untouched(before)
	n.rdmaHome(devices)
	n.exported("rail_cni_rdma_devices_missing 0")
	n.exported("rail_cni_nics_missing 0")
}

// The driver may also reset between the move and the end of ADD, when nobody moves the
// device into the pod again.
func TestAddFailsIfTheRequiredRDMADeviceHasLeftThePod(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	before := n.State()
	p := n.pod("trainer")
	at, err := plans.Open(n.state)
	if err != nil {
		t.Fatal(err)
	}
	host, err := rdma.Open(n.Netns.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	found, err := host.ByParent(nicPCI(0))
	if err != nil || len(found) != 1 {
		t.Fatalf("RDMA devices of the NIC: %v, %v", found, err)
	}
	lent := ledger.RDMADevice{Name: found[0].Name, NodeGUID: found[0].NodeGUID, ParentDev: nicPCI(0), Port: 1, Lent: true}
	for _, c := range []struct {
		policy string
		in     *netns.Netns
		fails  bool
	}{
		{netconf.RDMARequired, n.Netns.Netns, false},
		{netconf.RDMARequired, p.Netns.Netns, true}, // the device is on the host
		{netconf.RDMAAuto, p.Netns.Netns, false},
	} {
		err := rdmadev.GIDs{Conf: netconf.RDMA{RDMA: c.policy}}.Apply(t.Context(), &attachment.Tx{
			Call: &attachment.Call{}, Node: at, Pod: c.in,
			Record: &ledger.Record{RDMA: &ledger.RDMA{Mode: string(rdma.Exclusive), Devices: []ledger.RDMADevice{lent}}},
		})
		if (err != nil) != c.fails {
			t.Errorf("rdma %s: %v", c.policy, err)
		}
		if c.fails {
			mustFail(t, err, cnierr.TryAgain, "RDMA device "+lent.Name+" has left the netns")
		}
	}

	setDriver(t, "link_delay_ms", "4000")
	config := n.config(0, map[string]any{"rdma": "required", "linkTimeout": "8s"})
	ended := make(chan error, 1)
	go func() {
		_, err := n.Run(p.call("ADD", "net1", config))
		ended <- err
	}()
	n.eventually("net1 is up", func() bool { l, err := link.ByName(p.Netns.Netns, "net1"); return err == nil && l.IsUp() })
	write(t, "/sys/bus/pci/devices/"+nicPCI(0)+"/recreate_rdma", "1")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "is not in its netns") {
		t.Errorf("ADD: %v", err)
	}
	setDriver(t, "link_delay_ms", "0")
	n.untouched(before)
}

// A driver that resets can also re-create its netdev, on the host.
func TestNICThatItsDriverRecreatesIsReported(t *testing.T) {
	n := newNode(t)
	n.furnish(1)
	before := n.State()
	log := n.keep("NICMissing")
	p, config := n.pod("trainer"), n.config(0, nil)
	n.MustRun(p.call("ADD", "net1", config))
	n.exported("rail_cni_nics_missing 0")
	write(t, driver+"unbind", nicPCI(0))
	write(t, driver+"bind", nicPCI(0))
	n.exported("rail_cni_nics_missing 1")
	n.eventually("the agent tells of the NIC", func() bool { return strings.Contains(log(), "reason=NICMissing") })
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
	n.exported("rail_cni_nics_missing 0")
}

// The same in exclusive mode, where the driver re-creates the netdev and the RDMA device.
func TestNICWithRDMAThatItsDriverRecreatesIsReported(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.furnish(1)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	log := n.keep("NICMissing", "RDMADeviceMissing", "RDMADeviceRemade")
	p := n.pod("trainer")
	add := p.call("ADD", "net1", n.config(0, map[string]any{"rdma": "required"}))
	check := add.With("CHECK")
	check.Config = withResult(t, add.Config, n.MustRun(add))
	n.MustRun(check)
	write(t, driver+"unbind", nicPCI(0))
	write(t, driver+"bind", nicPCI(0))
	n.exported("rail_cni_nics_missing 1")
	n.eventually("the agent tells of the NIC", func() bool { return strings.Contains(log(), "reason=NICMissing") })
	n.eventually("the agent tells of the RDMA device", func() bool { return strings.Contains(log(), "reason=RDMADevice") })
	_, err := n.Run(check)
	mustFail(t, err, cnierr.Mismatch, "net1")
	n.MustRun(add.With("DEL"))
	n.untouched(before)
	n.rdmaHome(devices)
	n.exported("rail_cni_nics_missing 0")
	n.exported("rail_cni_rdma_devices_missing 0")
}

// The same of its netdev alone, while its RDMA device stays in the pod.
func TestNetdevThatItsDriverRecreatesIsReported(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	device := n.rdmaOf(0).Name
	log := n.keep("NICMissing")
	for name, end := range map[string]func(*pod, testnet.Call){
		"the pod ends": func(_ *pod, add testnet.Call) { n.MustRun(add.With("DEL")) },
		"the pod dies": func(p *pod, _ testnet.Call) {
			p.Kill()
			n.eventually("the agent has ended it", func() bool { return len(n.records()) == 0 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			p := n.pod("trainer")
			add := p.call("ADD", "net1", n.config(0, map[string]any{"rdma": "required", "ipam": map[string]any{
				"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24"}},
			}}))
			check := add.With("CHECK")
			check.Config = withResult(t, add.Config, n.MustRun(add))
			n.MustRun(check)
			told := strings.Count(log(), "reason=NICMissing")
			write(t, function(0, "recreate_netdev"), "1")
			_, err := n.Run(check)
			mustFail(t, err, cnierr.Mismatch, "net1")
			n.exported("rail_cni_nics_missing 1")
			n.eventually("the agent tells of the NIC", func() bool { return strings.Count(log(), "reason=NICMissing") == told+1 })
			if inPod := n.rdmaState(p.Netns.Netns); !maps.Equal(inPod, map[string]string{device: devices[device]}) {
				t.Errorf("RDMA devices in the pod: %v", inPod)
			}
			end(p, add)
			n.untouched(before)
			n.rdmaHome(devices)
			n.exported("rail_cni_nics_missing 0")
		})
	}
}

// exported waits until the agent's metrics have a line.
func (n *node) exported(line string) {
	n.t.Helper()
	n.eventually(line, func() bool {
		answer, err := http.Get("http://" + agentAddress + "/metrics")
		if err != nil {
			n.t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return err == nil && strings.Contains("\n"+string(text), "\n"+line+"\n")
	})
}

func (n *node) eventually(what string, done func() bool) {
	n.t.Helper()
	if !testnet.Within(time.Minute, done) {
		n.t.Fatalf("not within a minute: %s", what)
	}
}
