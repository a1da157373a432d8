//go:build rig

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// bond makes bond0 of two NICs, with a VLAN on it, in active-backup mode.
func (n *node) bond(first, second int) {
	n.t.Helper()
	n.t.Cleanup(func() { n.remove("bond0") })
	var commands []string
	for _, rail := range []int{first, second} {
		commands = append(commands, "link set "+nicName(rail)+" down", "link set "+nicName(rail)+" master bond0")
	}
	n.Batch(nil, slices.Concat([]string{"link add bond0 type bond mode active-backup miimon 100"}, commands,
		[]string{"link set bond0 up", "link add link bond0 name bond0.100 type vlan id 100", "link set bond0.100 up"})...)
	n.carrier("bond0", "bond0.100")
}

// on returns the ADD of a macvlan on a master.
func (n *node) on(p *pod, master string, more map[string]any) testnet.Call {
	n.t.Helper()
	conf := map[string]any{
		"type": "macvlan", "device": nil, "master": master, "rdma": "required",
		"ipam": map[string]any{"type": "whereabouts", "range": "192.168.111.0/24"},
	}
	maps.Copy(conf, more)
	c := p.call("ADD", "net1", n.config(0, conf))
	c.Plugin = "macvlan"
	return c
}

// checks runs CHECK behind an ADD with this result.
func (n *node) checks(add testnet.Call, result []byte) {
	n.t.Helper()
	var conf map[string]any
	if err := json.Unmarshal([]byte(add.Config), &conf); err != nil {
		n.t.Fatal(err)
	}
	conf["prevResult"] = json.RawMessage(result)
	text, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	add.Config = string(text)
	n.MustRun(add.With("CHECK"))
}

// serve returns the names of the recorded devices' parents, each with the netdev of its
// port below the NIC or master.
func serve(r *ledger.Record) []string {
	if r.RDMA == nil {
		return nil
	}
	var found []string
	for _, d := range r.RDMA.Devices {
		found = append(found, fmt.Sprintf("%s %d %s", d.ParentDev, d.Port, d.Netdev))
	}
	return found
}

func TestMacvlansOnVLANsAndBondsHaveTheirGIDs(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	n.up(3)
	vlan := nicName(0) + ".100"
	n.Batch(nil, "link add link "+nicName(0)+" name "+vlan+" type vlan id 100", "link set "+vlan+" up")
	n.carrier(vlan)
	n.bond(1, 2)
	before := n.State()
	legs := []string{nicPCI(1) + " 1 " + nicName(1), nicPCI(2) + " 1 " + nicName(2)}
	for master, want := range map[string][]string{
		vlan: {nicPCI(0) + " 1 " + nicName(0)}, "bond0": legs, "bond0.100": legs,
	} {
		t.Run(master, func(t *testing.T) {
			n := n.in(t)
			add := n.on(n.pod("trainer"), master, nil)
			n.MustRun(add.With("STATUS"))
			result := n.MustRun(add)
			r := n.records()[0]
			if got := serve(r); !slices.Equal(got, want) {
				t.Errorf("RDMA devices %v, want %v", got, want)
			}
			n.gidsRight(r, len(want))
			n.checks(add, result)
			n.MustRun(add.With("DEL"))
			n.untouched(before)
		})
	}
}

// The kernel removes the GIDs from a member that it does not use.
func TestBondWithRDMAChangesItsMember(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	n.up(2)
	n.bond(0, 1)
	add := n.on(n.pod("trainer"), "bond0", nil)
	result := n.MustRun(add)
	r := n.records()[0].RDMA
	if r == nil || len(r.GIDs) != 2 || r.GIDs[0].Device != "mlx5_0" {
		t.Fatalf("RDMA %+v", r)
	}
	first := r.GIDs[0]
	n.Batch(nil, "link set bond0 type bond active_slave "+nicName(1))
	n.carrier("bond0")
	path := fmt.Sprintf("/sys/class/infiniband/%s/ports/%d/gids/%d", first.Device, first.Port, first.Index)
	if !testnet.Within(10*time.Second, func() bool { return readText(t, path) != first.Value }) {
		t.Fatal("the first member has the GID still")
	}
	n.checks(add, result)
	out, errOut, code := n.railctl("show")
	if code != 0 || errOut != "" {
		t.Errorf("show: exit code %d\n%s%s", code, out, errOut)
	}
	next := n.on(n.pod("other"), "bond0", nil)
	n.MustRun(next)
	n.MustRun(next.With("DEL"))
	n.MustRun(add.With("DEL"))
}

func TestMacvlanOnABondWhoseGIDTableIsFull(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "gids=16")
	n.up(2)
	n.bond(0, 1)
	var commands []string
	for i := range 6 {
		commands = append(commands, fmt.Sprintf("addr add 10.1.0.%d/32 dev bond0", i+1))
	}
	n.Batch(nil, commands...)
	before := n.State()
	p := n.pod("trainer")
	_, err := n.Run(n.on(p, "bond0", nil))
	mustFail(t, err, cnierr.TryAgain, "entries free")
	n.untouched(before)

	add := n.on(p, "bond0", map[string]any{"rdma": "auto"}) // as in versions without RDMA on bonds
	result := n.MustRun(add)
	if r := n.records()[0]; r.RDMA != nil {
		t.Errorf("RDMA is recorded: %+v", r.RDMA)
	}
	n.checks(add, result)
	n.MustRun(add.With("DEL"))
	n.untouched(before)
}

func TestChainedRDMABehindAMacvlanOnABond(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "")
	n.up(2)
	n.bond(0, 1)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	// chain attaches the macvlan, and returns the ADD of rdma behind it.
	chain := func(n *node, mode rdma.Mode, id any) (macvlan, chained testnet.Call) {
		n.setMode(mode)
		p := n.pod("trainer")
		macvlan = n.on(p, "bond0", map[string]any{"rdma": "off", "cniVersion": "1.0.0", "ipam": map[string]any{
			"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24"}},
		}})
		result := n.MustRun(macvlan)
		chained = p.call("ADD", "net1", n.config(0, map[string]any{
			"type": "rdma", "device": nil, "deviceID": id, "cniVersion": "1.0.0", "prevResult": json.RawMessage(result),
		}))
		chained.Plugin = "rdma"
		return macvlan, chained
	}
	for name, id := range map[string]any{"without an ID": nil, "with the ID of a member": nicPCI(1)} {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			macvlan, chained := chain(n, rdma.Shared, id)
			n.MustRun(chained)
			i := slices.IndexFunc(n.records(), func(r *ledger.Record) bool { return r.RDMA != nil })
			if i < 0 {
				t.Fatalf("no RDMA is recorded: %+v", n.records())
			}
			r := n.records()[i]
			if got, want := serve(r), []string{nicPCI(0) + " 1 " + nicName(0), nicPCI(1) + " 1 " + nicName(1)}; !slices.Equal(got, want) {
				t.Errorf("RDMA devices %v, want %v", got, want)
			}
			n.gidsRight(r, 2)
			n.MustRun(chained.With("CHECK"))
			n.MustRun(chained.With("DEL"))
			n.MustRun(macvlan.With("DEL"))
			n.untouched(before)
		})
	}
	t.Run("in exclusive mode", func(t *testing.T) {
		n := n.in(t)
		macvlan, chained := chain(n, rdma.Exclusive, nil)
		_, err := n.Run(chained)
		mustFail(t, err, cnierr.NotAvailable, "net1 lies on bond0", "netns_mode=1")
		n.MustRun(chained.With("DEL"))
		n.MustRun(macvlan.With("DEL"))
		n.untouched(before)
		n.rdmaHome(devices)
	})
}

// A driver that aggregates links gives its NICs one RDMA device (RoCE LAG).
func TestRDMADeviceOfAWholeBond(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "lag=11,12")
	n.up(2)
	n.bond(0, 1)
	before := n.State()
	t.Run("shared", func(t *testing.T) {
		n := n.in(t)
		for _, master := range []string{"bond0", "bond0.100"} {
			add := n.on(n.pod(master), master, nil)
			n.MustRun(add)
			r := n.records()[0]
			want := nicPCI(0) + " 1 "
			if master != "bond0" {
				want += "bond0"
			}
			if got := serve(r); !slices.Equal(got, []string{want}) {
				t.Errorf("RDMA devices %v, want %q", got, want)
			}
			n.gidsRight(r, 1)
			n.MustRun(add.With("DEL"))
		}
		n.untouched(before)
	})
	t.Run("exclusive", func(t *testing.T) {
		n := n.in(t)
		n.setMode(rdma.Exclusive)
		p := n.pod("trainer")
		for rail, other := range []int{1, 0} {
			conf := n.config(rail, map[string]any{"rdma": "required", "allow": []string{"member"}})
			_, err := n.Run(p.call("ADD", "net1", conf))
			refused(t, err, cnierr.NICProtected, "of "+nicName(rail)+" ("+nicName(other)+")", `"allow": ["shared-rdma"]`)
		}
		n.untouched(before)
	})
}

// Alibaba's erdma: the netdev and the RDMA device are of two functions.
func TestRDMADeviceOfAnotherFunctionIsFound(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "pair_by_mac=11,12")
	n.up(1)
	devices := n.rdmaState(n.Netns.Netns)
	before := n.State()
	want := []string{nicPCI(1) + " 1 "}
	t.Run("macvlan", func(t *testing.T) {
		n := n.in(t)
		add := n.on(n.pod("web"), nicName(0), map[string]any{"rdma": "auto"})
		n.MustRun(add)
		if got := serve(n.records()[0]); !slices.Equal(got, want) {
			t.Errorf("RDMA devices %v, want %v", got, want)
		}
		n.gidsRight(n.records()[0], 1)
		n.MustRun(add.With("DEL"))
		n.untouched(before)
	})
	for _, mode := range []rdma.Mode{rdma.Shared, rdma.Exclusive} {
		t.Run("host-device in "+string(mode)+" mode", func(t *testing.T) {
			n := n.in(t)
			n.setMode(mode)
			p := n.pod("trainer")
			add := p.call("ADD", "net1", n.config(0, map[string]any{
				"rdma": "required", "ipam": map[string]any{"type": "whereabouts", "range": "192.168.111.0/24"},
			}))
			result := n.MustRun(add)
			r := n.records()[0]
			if got := serve(r); !slices.Equal(got, want) || r.RDMA.Devices[0].Lent != (mode == rdma.Exclusive) || len(r.RDMA.GIDs) != 1 {
				t.Errorf("RDMA %+v, want %v", r.RDMA, want)
			}
			if _, port, err := n.core(p.Netns.Netns).ByNetdev(r.Loan.PodIndex); err != nil || port.NetdevName != "net1" {
				t.Errorf("port of net1: %+v, %v", port, err)
			}
			n.checks(add, result)
			n.MustRun(add.With("DEL"))
			n.untouched(before)
			n.rdmaHome(devices)
		})
	}
}

// A VLAN is lent without RDMA, because the RDMA device belongs to the NIC below it.
func TestVLANThatIsLentInExclusiveModeHasNoRDMA(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "")
	n.up(1)
	vlan := nicName(0) + ".100"
	n.Batch(nil, "link add link "+nicName(0)+" name "+vlan+" type vlan id 100", "link set "+vlan+" up")
	n.carrier(vlan)
	before, devices := n.State(), n.rdmaState(n.Netns.Netns)
	p := n.pod("trainer")
	call := func(verb, policy string) testnet.Call {
		return p.call(verb, "net1", n.config(0, map[string]any{"device": vlan, "rdma": policy}))
	}
	_, err := n.Run(call("ADD", "required"))
	mustFail(t, err, cnierr.NotAvailable, "stays on the host with "+nicName(0))
	n.MustRun(call("ADD", "auto"))
	n.rdmaHome(devices)
	n.MustRun(call("DEL", "auto"))
	n.untouched(before)
}
