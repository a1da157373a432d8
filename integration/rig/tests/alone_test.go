//go:build rig

package tests

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestHCAWithoutANetdevIsLent: where ib_ipoib is not loaded, a pod gets the RDMA device alone.
func TestHCAWithoutANetdevIsLent(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			n := newRDMANode(t, mode, "link_layer=ib slots=11,12,18")
			if err := unix.DeleteModule("ib_ipoib", 0); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := kmod.LoadAll(wire.LoadOrder); err != nil {
					t.Error(err)
				}
			})
			before, devices := n.State(), n.allRDMA()
			info := filepath.Join("/var/run/k8s.cni.cncf.io/devinfo/cni", "alone.json")
			conf := map[string]any{"device": nil, "deviceID": nicPCI(0), "ipam": nil, "runtimeConfig": map[string]any{"CNIDeviceInfoFile": info}}
			with := func(key string, value any) string {
				more := maps.Clone(conf)
				more[key] = value
				return n.config(0, more)
			}
			p := n.pod("pod")
			_, err := n.Run(p.call("ADD", "net1", with("ipam", at(1)["ipam"])))
			refused(t, err, cnierr.InvalidConfig, `"ipam" needs an interface`, "ib_ipoib")
			_, err = n.Run(p.call("ADD", "net1", with("rdma", "off")))
			refused(t, err, cnierr.InvalidConfig, "there is nothing to lend")
			if mode == rdma.Shared { // its netdev may come later, and is the same NIC
				first := p.call("ADD", "net1", n.config(0, conf))
				n.MustRun(first)
				if err := kmod.LoadAll(wire.LoadOrder); err != nil {
					t.Fatal(err)
				}
				_, err = n.Run(n.pod("late").call("ADD", "net1", n.config(0, map[string]any{"device": n.ipoib(0)})))
				refused(t, err, cnierr.NICLent, "is lent to")
				n.MustRun(first.With("DEL"))
				if err := unix.DeleteModule("ib_ipoib", 0); err != nil {
					t.Fatal(err)
				}
			}
			for name, end := range map[string]func(n *node, p *pod, config string){
				"DEL":        func(n *node, p *pod, config string) { n.MustRun(p.call("DEL", "net1", config)) },
				"a dead pod": func(n *node, p *pod, _ string) { p.Kill(); n.gc() },
			} {
				t.Run(name, func(t *testing.T) {
					n := n.in(t)
					p, config := n.pod("pod"), n.config(0, conf)
					out := n.MustRun(p.call("ADD", "net1", config))
					var result current.Result
					if err := json.Unmarshal(out, &result); err != nil || len(result.Interfaces) != 1 || result.Interfaces[0].Name != "net1" || len(result.IPs) > 0 {
						t.Errorf("the result: %s, %v", out, err)
					}
					if text, err := os.ReadFile(info); err != nil || !strings.Contains(string(text), nicPCI(0)) || !strings.Contains(string(text), "mlx5_0") {
						t.Errorf("the device information: %s, %v", text, err)
					}
					if got := n.rdmaState(p.Netns.Netns); mode == rdma.Exclusive && (len(got) != 1 || got["mlx5_0"] == "") {
						t.Errorf("the pod's RDMA devices: %v", got)
					}
					n.MustRun(p.call("CHECK", "net1", with("prevResult", json.RawMessage(out))))
					_, err := n.Run(n.pod("other").call("ADD", "net1", config))
					refused(t, err, cnierr.NICLent, "is lent to")
					end(n, p, config)
					n.untouched(before)
					if now := n.allRDMA(); !maps.Equal(now, devices) {
						t.Errorf("RDMA devices: %v, before: %v", now, devices)
					}
					if _, err := os.Stat(info); err == nil {
						t.Error("the device information stays")
					}
				})
			}
		})
	}
}
