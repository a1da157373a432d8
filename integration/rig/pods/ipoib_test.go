//go:build machines

package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/opensm"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// podsOnOnePort makes the NICs HCAs of a fabric, and pods of the network that network-operator renders
// of an IPoIBNetwork, unchanged: as many as it has addresses, all on one port. Each must reach the next one by
// IPv4 and by its link-local address.
func (n *node) podsOnOnePort() {
	n.t.Helper()
	config, err := examples.Rendered("IPoIBNetwork")
	n.must(err)
	var conf struct {
		Name, Master string
		IPAM         struct{ Range netip.Prefix }
	}
	n.must(json.Unmarshal([]byte(config), &conf))
	n.network(conf.Name, "", config)
	n.fabric(conf.Master)
	n.pools++
	before, devices := n.State(), n.devices()

	names := make([]string, 1<<(32-conf.IPAM.Range.Bits())-2) // without those of the network and of all its hosts
	began := time.Now()
	for i := range names {
		pod := podOf(fmt.Sprint("ipoib-", i), []string{conf.Name}, nil)
		names[i] = here(pod)
		_, err := n.api.Create(n.t.Context(), podResource, pod)
		n.must(err)
	}
	pods, _ := n.running(names)
	n.t.Logf("%d pods of an IPoIBNetwork are ready after %v", len(pods), time.Since(began).Round(time.Second))
	n.reachEachOther(names, pods)
	n.end(names)
	n.asBefore(before, devices)
	links, err := link.Links(n.Netns.Netns)
	n.must(err)
	for _, l := range links {
		if l.IsIPoIBChild() {
			n.t.Errorf("the child %s is left", l.Name)
		}
	}
}

// fabric makes the first NIC a port with this interface, and the last one that of the subnet manager.
func (n *node) fabric(master string) {
	n.t.Helper()
	nics := n.inSlots("0x0200")
	n.must(kmod.ReloadNICs("link_layer=ib slots=11,18"))
	manager, err := opensm.StartOn(n.t.Context(), n.t.TempDir(), nics[len(nics)-1], opensm.OpenFabric)
	n.must(err)
	n.t.Cleanup(func() {
		n.IP("link", "set", master, "down") // while the manager answers
		manager.Kill()
	})
	n.IP("link", "set", n.on(nics[0]), "name", master, "up")
	n.await("the carrier of "+master, func() error {
		l, err := link.ByName(n.Netns.Netns, master)
		if err == nil && !l.OperUp {
			err = errors.New("none")
		}
		return err
	})
}

// reachEachOther has each pod reach the next one, the last one the first.
func (n *node) reachEachOther(names []string, pods map[string]runningPod) {
	n.t.Helper()
	processes := n.processes()
	var inPod []*testnet.Netns
	var locals []string
	for _, name := range names {
		inPod = append(inPod, testnet.OfProcess(n.t, processes[pods[name].container()]))
	}
	address := func(ns *testnet.Netns, family string) string {
		prefix, err := netip.ParsePrefix(strings.Fields(ns.IP(family, "-br", "address", "show", "net1"))[2])
		n.must(err)
		return prefix.Addr().String()
	}
	for i, ns := range inPod {
		next := inPod[(i+1)%len(inPod)]
		locals = append(locals, address(next, "-6"))
		ns.Exec("ping", "-c", "1", "-w", "10", address(next, "-4"))
		ns.Exec("ping", "-c", "1", "-w", "10", locals[i]+"%net1")
	}
	slices.Sort(locals)
	if each := slices.Compact(slices.Clone(locals)); len(each) != len(locals) {
		n.t.Errorf("%d link-local addresses of %d pods: %v", len(each), len(locals), locals)
	}
}
