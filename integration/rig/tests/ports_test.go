//go:build rig

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// function returns the path of a file of a rail's driver, by which a test changes the NIC
// wherever it is.
func function(rail int, file string) string {
	return "/sys/bus/pci/devices/" + nicPCI(rail) + "/" + file
}

// portMetric returns a metric of a port of mlx5_0, of the NIC of a rail that is lent.
func portMetric(rail, port, active int) string {
	return fmt.Sprintf(`rail_cni_port_active{ifname=%q,nic=%q,port="%d",rdma_device="mlx5_0"} %d`, podName(rail), nicName(rail), port, active)
}

// ConnectX-3, or one RDMA device for both functions of a card: the NICs of the first two
// rails are the ports 1 and 2 of mlx5_0.
func TestNICsThatAreThePortsOfOneRDMADevice(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "two_ports=11,12")
	n.up(2)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	addresses := map[string]any{"type": "whereabouts", "range": "192.168.111.0/24"}
	lend := func(n *node, p *pod, rail int, more map[string]any) testnet.Call {
		keys := map[string]any{"rdma": "required", "ipam": addresses}
		maps.Copy(keys, more)
		return p.call("ADD", "net1", n.config(rail, keys))
	}
	t.Run("macvlans", func(t *testing.T) {
		n := n.in(t)
		var adds []testnet.Call
		for rail := range 2 {
			add := n.on(n.pod("web"+podName(rail)), nicName(rail), nil)
			result := n.MustRun(add)
			i := slices.IndexFunc(n.records(), func(r *ledger.Record) bool { return r.ContainerID == add.ContainerID })
			r := n.records()[i]
			if got, want := serve(r), fmt.Sprintf("%s %d ", nicPCI(0), rail+1); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: RDMA devices %v, want %q", nicName(rail), got, want)
			}
			n.gidsRight(r, 1)
			n.checks(add, result)
			adds = append(adds, add)
		}
		for _, add := range adds {
			n.MustRun(add.With("DEL"))
		}
		n.untouched(before)
	})
	t.Run("lent in shared mode", func(t *testing.T) {
		n := n.in(t)
		n.keep()
		var adds []testnet.Call
		var results [][]byte
		for rail := range 2 {
			add := lend(n, n.pod("trainer"+podName(rail)), rail, nil)
			add.IfName = podName(rail)
			adds, results = append(adds, add), append(results, n.MustRun(add))
		}
		for _, r := range n.records() {
			if want := []string{fmt.Sprintf("%s %d ", nicPCI(0), map[string]int{nicName(0): 1, nicName(1): 2}[r.NICName()])}; !slices.Equal(serve(r), want) {
				t.Errorf("%s: RDMA devices %v, want %v", r.NICName(), serve(r), want)
			}
			n.gidsRight(r, 1)
		}
		n.exported(portMetric(0, 1, 1))
		n.exported(portMetric(1, 2, 1))
		write(t, function(1, "speed"), "100000")
		for rail, mbps := range []int{200000, 100000} {
			lines := slices.DeleteFunc(n.metrics(), func(l string) bool {
				return !strings.HasPrefix(l, "rdma_vport_speed_mbps_total{") ||
					!hasLabels(l, `node_name="rig"`, `ifname="mlx5_0"`, fmt.Sprintf("net_dev_name=%q", podName(rail)))
			})
			if len(lines) != 1 || !hasLabels(lines[0], fmt.Sprintf("rdma_parent_name=%q", nicName(rail))) || !strings.HasSuffix(lines[0], fmt.Sprintf("} %d\n", mbps)) {
				t.Errorf("the speed of %s: %q, want %d", nicName(rail), lines, mbps)
			}
		}
		write(t, function(1, "speed"), "200000")
		write(t, function(1, "port_state"), "DOWN")
		n.exported(portMetric(0, 1, 1))
		n.exported(portMetric(1, 2, 0))
		out, errOut, _ := n.railctl("show")
		if fields := strings.Join(strings.Fields(out), " "); !strings.Contains(fields, "mlx5_0/1 ACTIVE") || !strings.Contains(fields, "mlx5_0/2 DOWN") {
			t.Errorf("railctl show: %s%s", out, errOut)
		}
		n.checks(adds[0], results[0])
		checked := adds[1]
		checked.Config = withResult(t, checked.Config, results[1])
		_, err := n.Run(checked.With("CHECK"))
		mustFail(t, err, cnierr.Mismatch, "port 2 of mlx5_0 is DOWN")
		write(t, function(1, "port_state"), "auto")
		n.MustRun(checked.With("CHECK"))
		for _, add := range adds {
			n.MustRun(add.With("DEL"))
		}
		n.untouched(before)
	})
	n.setMode(rdma.Exclusive)
	t.Run("refused in exclusive mode", func(t *testing.T) {
		n := n.in(t)
		p := n.pod("trainer")
		for rail, other := range []int{1, 0} {
			_, err := n.Run(lend(n, p, rail, nil))
			refused(t, err, cnierr.NICProtected, "mlx5_0 of "+nicName(rail)+" ("+nicName(other)+")", `"allow": ["shared-rdma"]`)
			n.untouched(before)
			add := lend(n, p, rail, map[string]any{"rdma": "auto"})
			_, said, err := n.RunSaying(add)
			if err != nil || !strings.Contains(said, "RDMA device stays on the host") {
				t.Errorf("auto: %v, %s", err, said)
			}
			n.rdmaHome(devices)
			n.MustRun(add.With("DEL"))
			n.untouched(before)
		}
	})
	// One of them takes the device along, and the other's port is in the same pod.
	for name, c := range map[string]struct {
		first, second map[string]any
		taker         int // the rail of the NIC that takes the device
		dies          bool
	}{
		"the first takes the device": {map[string]any{"allow": []string{"shared-rdma"}}, map[string]any{"rdma": "auto"}, 0, false},
		"the second, and they die":   {map[string]any{"rdma": "auto"}, nil, 1, true},
	} {
		t.Run("both lent to one pod: "+name, func(t *testing.T) {
			n := n.in(t)
			n.keep()
			p := n.pod("trainer")
			var adds []testnet.Call
			var results [][]byte
			for rail, keys := range []map[string]any{c.first, c.second} {
				add := lend(n, p, rail, keys)
				add.IfName = podName(rail)
				adds, results = append(adds, add), append(results, n.MustRun(add))
			}
			for rail := range 2 {
				i := slices.IndexFunc(n.records(), func(r *ledger.Record) bool { return r.IfName == podName(rail) })
				r, want := n.records()[i], []string{fmt.Sprintf("%s %d ", nicPCI(0), rail+1)}
				if rail != c.taker {
					want = nil
				}
				if !slices.Equal(serve(r), want) || want != nil && (!r.RDMA.Devices[0].Lent || len(r.RDMA.GIDs) != 1) {
					t.Errorf("%s: RDMA %+v, want %v", nicName(rail), r.RDMA, want)
				}
				n.exported(portMetric(rail, rail+1, 1))
				checked := adds[rail]
				checked.Config = withResult(t, checked.Config, results[rail])
				n.MustRun(checked.With("CHECK"))
			}
			if c.dies {
				p.Kill()
				n.eventually("the agent has ended both", func() bool { return len(n.records()) == 0 })
			} else {
				n.MustRun(adds[0].With("DEL"))
				n.MustRun(adds[1].With("DEL"))
			}
			n.untouched(before)
			n.rdmaHome(devices)
		})
	}
}

func withResult(t *testing.T, config string, result []byte) string {
	t.Helper()
	var conf map[string]any
	if err := json.Unmarshal([]byte(config), &conf); err != nil {
		t.Fatal(err)
	}
	conf["prevResult"] = json.RawMessage(result)
	text, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestChainedRDMAOfTwoPorts(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	reload(t, "two_ports=11,12")
	c.up(2)
	c.before, c.devices = c.State(), c.rdmaState(c.Netns.Netns)
	c.peerNIC = true
	c.result = c.MustRun(c.nic("ADD"))
	_, err := c.Run(c.rdma("ADD"))
	mustFail(t, err, cnierr.NICProtected, "mlx5_0 of net1 ("+nicName(1)+")", `"allow": ["shared-rdma"]`)
	c.rdmaConf["rdma"] = "auto"
	_, said, err := c.RunSaying(c.rdma("ADD"))
	if err != nil || !strings.Contains(said, "pod gets no RDMA") {
		t.Errorf("auto: %v, %s", err, said)
	}
	c.rdmaHome(c.devices)
	c.rdmaConf["allow"] = []string{"shared-rdma"}
	c.MustRun(c.rdma("ADD"))
	c.has()
	if r := c.only(); r.RDMA.Devices[0].Port != 1 || len(r.RDMA.GIDs) != 1 {
		t.Errorf("RDMA %+v", r.RDMA)
	}
	c.MustRun(c.rdma("CHECK"))
	c.MustRun(c.rdma("DEL"))
	c.MustRun(c.nic("DEL"))
	c.ended()
}
