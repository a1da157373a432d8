//go:build rig

package tests

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// A driver that resets re-creates its RDMA device on the host, and the pod has none.
func TestRDMADeviceThatItsDriverMakesAnewIsMovedIntoItsPodAgain(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	before, devices := n.State(), n.allRDMA()
	p := n.pod("trainer")
	keys := map[string]any{"rdma": "required", "ipam": map[string]any{
		"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24"}},
	}}
	config := n.config(0, keys)
	keys["prevResult"] = json.RawMessage(n.MustRun(p.call("ADD", "net1", config)))
	check := p.call("CHECK", "net1", n.config(0, keys))
	inPod := n.rdmaState(p.Netns.Netns)
	n.keep("RDMADeviceRemade")
	for range 2 {
		write(t, "/sys/bus/pci/devices/"+nicPCI(0)+"/recreate_rdma", "1")
		time.Sleep(100 * time.Millisecond) // CHECK may not have seen that it is gone
		n.eventually("CHECK passes", func() bool { _, err := n.Run(check); return err == nil })
		if now := n.rdmaState(p.Netns.Netns); !maps.Equal(now, inPod) {
			t.Errorf("RDMA devices in the pod: %v, before: %v", now, inPod)
		}
	}
	n.exported("rail_cni_rdma_devices_missing 0")
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
	if now := n.allRDMA(); len(now) != len(devices) {
		t.Errorf("RDMA devices: %v, before: %v", now, devices)
	}
}

// A driver that resets can also re-create its netdev, on the host.
func TestNICThatItsDriverRecreatesIsReported(t *testing.T) {
	n := newNode(t)
	n.furnish(1)
	before := n.State()
	n.keep("NICMissing")
	p, config := n.pod("trainer"), n.config(0, nil)
	n.MustRun(p.call("ADD", "net1", config))
	n.exported("rail_cni_nics_missing 0")
	write(t, driver+"unbind", nicPCI(0))
	write(t, driver+"bind", nicPCI(0))
	n.exported("rail_cni_nics_missing 1")
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
	n.exported("rail_cni_nics_missing 0")
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
	for deadline := time.Now().Add(60 * time.Second); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within a minute: %s", what)
		}
	}
}
