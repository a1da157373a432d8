//go:build rig

package tests

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig/opensm"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// ipoib returns the name of the InfiniBand interface of a rail.
func (n *node) ipoib(rail int) string {
	n.t.Helper()
	return n.ipoibOf(nicPCI(rail))
}

// ipoibOf returns the name of the InfiniBand interface of a PCI function.
func (n *node) ipoibOf(pci string) string {
	n.t.Helper()
	links, err := link.Links(n.Netns.Netns)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, l := range links {
		if l.Encap == "infiniband" && l.ParentDev == pci {
			return l.Name
		}
	}
	n.t.Fatalf("no InfiniBand interface of %s:\n%s", pci, n.IP("-d", "link"))
	return ""
}

// setIPoIB sets the mode and umcast of an InfiniBand interface by sysfs: by netlink two tasks may then have the RTNL
// (pkg/link/settings, RestoreIPoIB).
func setIPoIB(ns *testnet.Netns, name, mode string, umcast int) {
	ns.Exec("sh", "-euc", fmt.Sprintf("cd /sys/class/net/%s; echo %s >mode; echo %d >umcast", name, mode, umcast))
}

// furnishIB sets on InfiniBand interfaces what an administrator may have set, and that ends with them, and
// returns their names.
func (n *node) furnishIB(count int) (names []string) {
	n.t.Helper()
	var commands []string
	for rail := range count {
		name, net := fmt.Sprintf("ibs%d", 11+rail), 10+rail
		mode, mtu := "datagram", 2000
		if rail == 1 {
			mode, mtu = "connected", 60000
		}
		n.IP("link", "set", n.ipoib(rail), "name", name)
		setIPoIB(n.Netns, name, mode, rail%2)
		commands = append(commands,
			fmt.Sprintf("link property add dev %s altname %s", name, altName(rail)),
			fmt.Sprintf("link set %s mtu %d alias rail-%d txqueuelen 4321 up", name, mtu, rail),
			fmt.Sprintf("addr add 10.%d.0.1/24 brd + dev %s", net, name),
			fmt.Sprintf("route add 10.%d.0.0/16 via 10.%d.0.254 metric 77 mtu 1900", 100+rail, net))
		names = append(names, name)
	}
	n.Batch(nil, commands...)
	for _, name := range names {
		n.Sysctl("ipv4/conf/"+name+"/arp_ignore", "1")
		n.Sysctl("ipv6/conf/"+name+"/accept_ra", "0")
	}
	return names
}

// TestHCAIsLentInExclusiveModeAndComesHomeAsItWas: with each move of the RDMA device the kernel makes the
// interface anew, without a setting.
func TestHCAIsLentInExclusiveModeAndComesHomeAsItWas(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "link_layer=ib slots=11,12,13,18")
	n.openSM(opensm.OpenFabric)
	names := n.furnishIB(3)
	n.carrier(names...)
	before, devices := n.State(), n.allRDMA()
	configs := []string{}
	for rail, name := range names {
		configs = append(configs, n.config(rail, map[string]any{
			"device": name, "rdma": "required",
			"ipam": map[string]any{"type": "static", "addresses": []any{map[string]any{"address": fmt.Sprintf("172.31.1.%d/24", rail+1)}}},
		}))
	}
	del := func(n *node, pods []*pod) {
		for rail, p := range pods {
			n.MustRun(p.call("DEL", "net1", configs[rail]))
		}
	}
	kill := func(pods []*pod) {
		for _, p := range pods {
			p.Kill()
		}
	}
	for way, home := range need.SampleMap(t, 2, map[string]func(n *node, pods []*pod){
		"DEL":                      del,
		"the pods die, then DEL":   func(n *node, pods []*pod) { kill(pods); del(n, pods) },
		"the pods die, then sweep": func(n *node, pods []*pod) { kill(pods); n.gc() },
	}) {
		t.Run(way, func(t *testing.T) {
			n := n.in(t)
			pods := []*pod{n.pod("pod1"), n.pod("pod2"), n.pod("pod3")}
			for rail, p := range pods {
				result := n.MustRun(p.call("ADD", "net1", configs[rail]))
				l, err := link.ByName(p.Netns.Netns, "net1")
				if err != nil || !l.IsUp() || l.ParentDev != nicPCI(rail) || l.TxQueueLen != 4321 || l.IPoIB.Connected() != (rail == 1) || int(l.IPoIB.Umcast) != rail%2 ||
					l.MTU != []int{2000, 60000, 2000}[rail] || !slices.Equal(l.AltNames, []string{altName(rail)}) || l.Alias != names[rail] {
					t.Errorf("the pod's net1: %+v, %v", l, err)
				}
				if got := n.rdmaState(p.Netns.Netns); len(got) != 1 || got[n.lent(rail)] == "" {
					t.Errorf("the pod's RDMA devices: %v", got)
				}
				n.MustRun(p.call("CHECK", "net1", n.config(rail, map[string]any{"device": names[rail], "prevResult": json.RawMessage(result)})))
			}
			// Not the one in connected mode: sometimes the kernel warns of a queue that is in use when it destroys
			// an interface with a connection (ipoib_transport_dev_cleanup, Linux 6.12).
			pods[0].Exec("ping", "-c", "1", "-w", "20", "172.31.1.3")
			home(n, pods)
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("RDMA devices: %v, before: %v", now, devices)
			}
		})
	}
	t.Run("an ADD that fails after the move", func(t *testing.T) {
		n := n.in(t)
		_, err := n.Run(n.pod("pod4").call("ADD", "net1", n.config(0, map[string]any{"device": names[0], "mtu": 65521})))
		refused(t, err, cnierr.InvalidConfig, names[0], "65521")
		n.untouched(before)
		if now := n.allRDMA(); !maps.Equal(now, devices) {
			t.Errorf("RDMA devices: %v, before: %v", now, devices)
		}
	})
}

// lent returns the name of the RDMA device of a rail, as the record has it.
func (n *node) lent(rail int) string {
	n.t.Helper()
	for _, r := range n.records() {
		if r.Loan.PCI == nicPCI(rail) && r.RDMA != nil {
			return r.RDMA.Devices[0].Name
		}
	}
	n.t.Fatalf("no record of %s", nicPCI(rail))
	return ""
}

// What the kernel would destroy with the move of the RDMA device, or take from its user, is protected.
func TestWhatAnHCATakesWithItIsProtected(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "link_layer=ib slots=11,12,18 two_ports=12")
	n.openSM(opensm.OpenFabric)
	far := testnet.NewNetns(t, "far")
	one, manager := n.ipoib(0), n.ipoib(managerRail)
	two := n.interfacesOf(1)
	n.Batch(nil, "link set "+one+" up", "link set "+manager+" up", "link set "+two[0]+" up", "link set "+two[1]+" up",
		"link add child link "+one+" type ipoib pkey 0xffff", "link set child netns "+far.Name)
	n.carrier(one, manager, two[0], two[1])
	before, devices := n.State(), n.allRDMA()
	for _, c := range []struct {
		rail  int
		name  string
		key   string
		texts []string
	}{
		{managerRail, manager, netconf.AllowSubnetManager, []string{"a subnet manager runs on port 1 of its RDMA device " + n.hcaOf(managerRail)}},
		{0, one, netconf.AllowChildren, []string{"its RDMA device has InfiniBand interfaces in other network namespaces"}},
		{1, two[0], netconf.AllowSharedRDMA, []string{"it also serves another NIC", two[1]}},
	} {
		others := slices.DeleteFunc(slices.Clone(netconf.Overrides), func(key string) bool { return key == c.key })
		_, err := n.Run(n.pod("pod-"+c.key).call("ADD", "net1", n.config(c.rail, map[string]any{"device": c.name, "rdma": "required", "allow": others})))
		refused(t, err, cnierr.NICProtected, append(c.texts, c.key)...)
	}
	n.untouched(before)
	if now := n.allRDMA(); !maps.Equal(now, devices) {
		t.Errorf("RDMA devices: %v, before: %v", now, devices)
	}
	// With auto the RDMA device stays, for the other port.
	auto := n.pod("pod-auto").call("ADD", "net1", n.config(1, map[string]any{"device": two[0]}))
	if _, said, err := n.RunSaying(auto); err != nil || !strings.Contains(said, "RDMA device stays on the host") {
		t.Errorf("auto: %v, %s", err, said)
	}
	n.MustRun(auto.With("DEL"))
	// While the device is away with one port, the interface of the other port stays.
	first := n.pod("pod-first").call("ADD", "net1", n.config(1, map[string]any{"device": two[0], "rdma": "required", "allow": []string{netconf.AllowSharedRDMA}}))
	n.MustRun(first)
	left := n.interfacesOf(1)
	if len(left) != 1 {
		t.Fatalf("the interfaces of the HCA on the host: %q", left)
	}
	n.IP("link", "set", left[0], "name", two[0]) // the kernel may make it under this name
	_, err := n.Run(n.pod("pod-second").call("ADD", "net1", n.config(1, map[string]any{"device": two[0], "rdma": "off", "allow": netconf.Overrides})))
	refused(t, err, cnierr.NICProtected, "another port of its HCA is lent to")
	n.MustRun(first.With("DEL"))
	for _, name := range n.interfacesOf(1) {
		if name != two[0] {
			n.Batch(nil, "link set "+name+" name "+two[1], "link set "+two[1]+" up")
		}
	}
	n.carrier(two[1])
	p, config := n.pod("pod1"), n.config(0, map[string]any{"device": one, "allow": []string{netconf.AllowChildren}})
	n.MustRun(p.call("ADD", "net1", config))
	if out := far.IP("-br", "link"); strings.Contains(out, "child") {
		t.Errorf("the child outlives its RDMA device: %s", out)
	}
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
}

// What a pod did to its interface and its RDMA device ends with them, and no interface of its own is left.
func TestWhatAPodDidToAnHCADoesNotComeHome(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "link_layer=ib slots=11,12,18")
	n.openSM(opensm.OpenFabric)
	ib := n.furnishIB(1)[0]
	n.carrier(ib)
	before, devices := n.State(), n.allRDMA()
	config := n.config(0, map[string]any{"device": ib, "rdma": "required"})
	for name, end := range map[string]func(n *node, p *pod){
		"DEL":        func(n *node, p *pod) { n.MustRun(p.call("DEL", "net1", config)) },
		"a dead pod": func(n *node, p *pod) { p.Kill(); n.gc() },
		"another ADD": func(n *node, p *pod) {
			p.Kill()
			other := n.pod("pod2").call("ADD", "net1", config)
			n.MustRun(other)
			n.MustRun(other.With("DEL"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			p := n.pod("pod1")
			n.MustRun(p.call("ADD", "net1", config))
			l, err := link.ByName(p.Netns.Netns, "net1")
			if err != nil {
				t.Fatal(err)
			}
			setIPoIB(p.Netns, "net1", "connected", 1)
			commands := []string{
				"link set net1 down", "link set net1 mtu 1500 txqueuelen 7",
				"link set net1 address " + l.MAC.String()[:36] + "02:00:00:00:00:00:00:01", "link set net1 name mine",
				"link property add dev mine altname yours", "link set mine up",
			}
			for i := range 50 {
				commands = append(commands, fmt.Sprintf("link add child%d link mine type ipoib pkey 0xffff", i), fmt.Sprintf("link set child%d up", i))
			}
			p.Batch(nil, commands...)
			p.Exec("rdma", "dev", "set", n.lent(0), "name", "mine")
			end(n, p)
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("RDMA devices: %v, before: %v", now, devices)
			}
		})
	}
}

// In a host netns that is not init_net the interface comes from there.
func TestHCAOfAHostNetnsThatIsNotInitNet(t *testing.T) {
	outer := newRDMANode(t, rdma.Exclusive, "link_layer=ib slots=11,12,18")
	inner := testnet.NewNetns(t, "node")
	outer.Exec("rdma", "dev", "set", outer.hcaOf(0), "netns", inner.Name)
	outer.IP("link", "set", outer.ipoib(0), "netns", inner.Name, "name", "ibs11")
	setIPoIB(inner, "ibs11", "connected", 0)
	inner.Batch(nil, "link set ibs11 mtu 30000 up", "addr add 10.10.0.1/24 dev ibs11")
	n := &node{t: t, Netns: inner, initNet: outer.initNet, state: filepath.Join(t.TempDir(), "state")}
	before, devices, initNet := n.State(), n.allRDMA(), outer.State()
	config := n.config(0, map[string]any{"device": "ibs11", "rdma": "required", "linkTimeout": "0s"})
	for name, end := range map[string]func(n *node, p *pod){
		"DEL":        func(n *node, p *pod) { n.MustRun(p.call("DEL", "net1", config)) },
		"a dead pod": func(n *node, p *pod) { p.Kill(); n.MustRun(p.call("DEL", "net1", config)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			p := n.pod("pod1")
			n.MustRun(p.call("ADD", "net1", config))
			if l, err := link.ByName(p.Netns.Netns, "net1"); err != nil || l.MTU != 30000 || !l.IPoIB.Connected() {
				t.Errorf("the pod's net1: %+v, %v", l, err)
			}
			end(n, p)
			n.untouched(before)
			if now := n.allRDMA(); !maps.Equal(now, devices) {
				t.Errorf("RDMA devices: %v, before: %v", now, devices)
			}
			if d := outer.Settled(initNet); d != "" {
				t.Errorf("init_net is not as it was:\n%s", d)
			}
		})
	}
}

// TestEightHCAsAreLentFiftyTimes compares everything that a user of the node sees, also the numbers of the
// char devices, and logs how long ADD takes beside the moves alone.
func TestEightHCAsAreLentFiftyTimes(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(string(mode), func(t *testing.T) { lendFiftyTimes(t, mode) })
	}
}

func lendFiftyTimes(t *testing.T, mode rdma.Mode) {
	const spare = 10 // the HCA in slot 21
	n := newRDMANode(t, mode, "link_layer=ib slots=11,12,13,14,15,16,17,18,21")
	names := n.furnishIB(8)
	numbers := func() string {
		return n.Exec("sh", "-euc", "cd /sys/class; grep -r . infiniband_verbs/*/ibdev infiniband_mad/*/ibdev")
	}
	before, devices, devs := n.State(), n.allRDMA(), numbers()
	var adds, bare time.Duration
	for range 50 {
		p := n.pod("trainer")
		for rail, name := range names {
			began := time.Now()
			n.MustRun(p.call("ADD", podName(rail), n.config(rail, map[string]any{"device": name, "rdma": "required", "linkTimeout": "0s"})))
			adds += time.Since(began)
		}
		for rail, name := range names {
			n.MustRun(p.call("DEL", podName(rail), n.config(rail, map[string]any{"device": name})))
		}
		n.untouched(before)
		if now := n.allRDMA(); !maps.Equal(now, devices) {
			t.Fatalf("RDMA devices: %v, before: %v", now, devices)
		}
		if now := numbers(); now != devs {
			t.Fatalf("char devices:\n%s\nbefore:\n%s", now, devs)
		}
	}
	for range 50 { // by hand, with another HCA, which loses its settings
		p := n.pod("by-hand")
		began := time.Now()
		if mode == rdma.Exclusive {
			n.Exec("rdma", "dev", "set", n.hcaOf(spare), "netns", p.Name)
		}
		n.IP("link", "set", n.ipoib(spare), "netns", p.Name, "name", "net9", "up")
		bare += time.Since(began)
		p.Kill()
		n.eventually("the HCA that was moved by hand is on the host", func() bool {
			found, err := filepath.Glob("/sys/bus/pci/devices/" + nicPCI(spare) + "/infiniband/*")
			return err == nil && len(found) == 1 && len(n.interfacesOf(spare)) == 1
		})
	}
	t.Logf("ADD takes %v, the moves by rdma and ip %v: %.2f times as long", adds/400, bare/50, float64(adds)/400/(float64(bare)/50))
}

// interfacesOf returns the names of the InfiniBand interfaces of the HCA of a rail, by port.
func (n *node) interfacesOf(rail int) (names []string) {
	n.t.Helper()
	links, err := link.Links(n.Netns.Netns)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, l := range links {
		if l.IsIPoIB() && l.ParentDev == nicPCI(rail) {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	return names
}

// The chained plugin comes when the interface is in the pod already, where the move of its RDMA device would
// destroy it.
func TestRDMABehindAnInfiniBandInterfaceIsRefused(t *testing.T) {
	n := newRDMANode(t, rdma.Exclusive, "link_layer=ib ")
	ib := n.ipoib(0)
	before := n.State()
	p, config := n.pod("pod2"), n.config(0, map[string]any{"device": ib, "rdma": "off"})
	result := n.MustRun(p.call("ADD", "net1", config))
	chained := p.call("ADD", "net1", n.config(0, map[string]any{"type": "rdma", "device": nil, "prevResult": json.RawMessage(result)}))
	chained.Plugin = "rdma"
	_, err := n.Run(chained)
	refused(t, err, cnierr.NotAvailable, "InfiniBand interface", "netns_mode=1", "with host-device, without")
	n.MustRun(p.call("DEL", "net1", config))
	n.untouched(before)
}

// What the pod did to the mode of its interface is undone before the MTU, which depends on it.
func TestModeOfInfiniBandThatAPodSetIsUndone(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib ")
	ib := n.ipoib(0)
	config := n.config(0, map[string]any{"device": ib})
	for name, c := range need.SampleMap(t, 2, map[string]struct{ before, pod []string }{
		"connected in the pod": {nil, []string{"mode", "connected"}},
		"datagram in the pod":  {[]string{"mode", "connected"}, []string{"mode", "datagram"}},
		"umcast in the pod":    {nil, []string{"umcast", "1"}},
		"umcast on the host":   {[]string{"umcast", "1"}, []string{"umcast", "0"}},
	}) {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			set := func(ns *testnet.Netns, name string, what []string) {
				for pair := range slices.Chunk(what, 2) {
					ns.Exec("sh", "-euc", fmt.Sprintf("echo %s >/sys/class/net/%s/%s", pair[1], name, pair[0]))
				}
			}
			set(n.Netns, ib, c.before)
			defer set(n.Netns, ib, []string{"mode", "datagram", "umcast", "0"})
			before, wanted := n.State(), n.IP("-d", "link", "show", ib)
			p := n.pod("pod1")
			n.MustRun(p.call("ADD", "net1", config))
			set(p.Netns, "net1", c.pod)
			n.MustRun(p.call("DEL", "net1", config))
			n.untouched(before)
			if now := n.IP("-d", "link", "show", ib); now != wanted {
				t.Errorf("%s, before: %s", now, wanted)
			}
		})
	}
}

// The kernel lets go of the RTNL while it sets the mode. By netlink two tasks may then have it.
func TestModeOfInfiniBandIsRestoredWhileOthersConfigure(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib slots=11,18")
	ib := n.ipoib(0)
	setIPoIB(n.Netns, ib, "connected", 1)
	before := n.State()
	stop, ended := make(chan struct{}), make(chan struct{})
	host, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	go func() {
		defer close(ended)
		for mtu := 65000; ; mtu++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := link.SetMTU(host, 1, mtu%500+65000); err != nil { // of lo
				t.Error(err)
				return
			}
		}
	}()
	defer func() {
		close(stop)
		<-ended
		n.IP("link", "set", "lo", "mtu", "65536")
		n.untouched(before)
	}()
	for range 5 {
		p, config := n.pod("pod1"), n.config(0, map[string]any{"device": ib, "linkTimeout": "0s"})
		n.MustRun(p.call("ADD", "net1", config))
		setIPoIB(p.Netns, "net1", "datagram", 0)
		n.MustRun(p.call("DEL", "net1", config))
	}
}

// A child that a pod made of its interface would send through the NIC of the next pod, and the
// kernel would bring it to the host when the pod's netns ends.
func TestInfiniBandChildrenOfAPodEndWithItsAttachment(t *testing.T) {
	n := newRDMANode(t, rdma.Shared, "link_layer=ib ")
	ib := n.ipoib(0)
	config := n.config(0, map[string]any{"device": ib})
	for name, end := range need.SampleMap(t, 2, map[string]func(n *node, p *pod){
		"DEL": func(n *node, p *pod) { n.MustRun(p.call("DEL", "net1", config)) },
		"the netns ends, then DEL": func(n *node, p *pod) {
			p.Kill()
			n.MustRun(p.call("DEL", "net1", config))
		},
		"the netns ends, then railctl gc": func(n *node, p *pod) {
			p.Kill()
			n.gc()
		},
	}) {
		t.Run(name, func(t *testing.T) {
			n := n.in(t)
			before := n.State()
			p := n.pod("pod1") // it gets the NIC also after another pod
			n.MustRun(p.call("ADD", "net1", config))
			var commands []string
			for i := range need.Either(2, 50) { // each takes some megabytes
				commands = append(commands, fmt.Sprintf("link add child%d link net1 type ipoib pkey 0xffff", i))
			}
			p.Batch(nil, commands...)
			end(n, p)
			n.untouched(before)
			if left := n.children(n.Netns); left != nil {
				t.Errorf("on the host: %q", left)
			}
		})
	}
}
