package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/cluster"
)

func TestPodsBehindThickMultus(t *testing.T) {
	onACluster(t, cluster.Options{Multus: cluster.Thick}, workflow)
}

// Daemons are killed behind the thin Multus only: the thick one's daemon keeps
// the namespaces of killed pods alive until Go's garbage collector closes its
// handles on them.
func TestPodsBehindThinMultus(t *testing.T) {
	killed := test{"nothing is lost when daemons are killed", nothingIsLost}
	onACluster(t, cluster.Options{Multus: cluster.Thin, Hardware: true}, append(workflow[:len(workflow):len(workflow)], killed))
}

// test is one that leaves the cluster as it was.
type test struct {
	name string
	run  func(*testing.T, *lab)
}

var workflow = []test{
	{"two pods get eight rails each and give them back", podsGetTheirRails},
	{"many pods share a NIC by macvlan", podsShareANIC},
	{"what network-operator renders", networkOperatorsForms},
	{"a pod without its rail has an event that says why", failuresAreEvents},
}

func onACluster(t *testing.T, o cluster.Options, tests []test) {
	l := begin(t, o)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, l)
			l.asBefore(t)
		})
	}
}

func podsGetTheirRails(t *testing.T, l *lab) {
	objects := l.examplePods(t, "roce-pods.yaml")
	pods, err := examples.Pods("roce-pods.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l.createObjects(t, objects)
	names := []string{pods[0].Name, pods[1].Name}
	l.ready(t, names...)

	given := map[string]bool{}
	for _, name := range names {
		entries, inside := l.status(t, name), l.interfaces(t, name)
		if len(entries) != 9 || !entries[0].Default || entries[0].Interface != "eth0" {
			t.Fatalf("network-status of %s: %+v", name, entries)
		}
		for k, e := range entries[1:] {
			nic := inside[fmt.Sprintf("net%d", k+1)]
			if e.Name != fmt.Sprintf("default/roce-net-%d", k+1) || e.Interface != nic.IfName || e.Mac != nic.Address || len(e.IPs) != 1 {
				t.Errorf("network-status of %s, whose net%d has the address %s: %+v", name, k+1, nic.Address, e)
				continue
			}
			// The gateway, .1, is never assigned.
			subnet := fmt.Sprintf("172.31.%d.", k+1)
			if ip := e.IPs[0]; !strings.HasPrefix(ip, subnet) || ip == subnet+"1" || given[ip] {
				t.Errorf("%s of %s has %s", nic.IfName, name, ip)
			} else if got, want := nic.ipv4(), ip+"/24 brd "+subnet+"255"; got != want {
				t.Errorf("%s of %s has %q, not %q", nic.IfName, name, got, want)
			}
			given[e.IPs[0]] = true
			if nic.MTU != 9000 || !nic.up() || !slices.Equal(nic.AltNames, []string{cluster.Altname(k)}) {
				t.Errorf("%s: %+v", name, nic)
			}
		}
		if got := len(l.held(t)); got != 2*8*len(names) {
			t.Errorf("%d entries and reservations for %d pods", got, len(names))
		}
	}
	for i, name := range names {
		for k, e := range l.status(t, names[1-i])[1:] {
			// The largest packet that the MTU allows: 20 bytes of IP's header,
			// 8 of ICMP's.
			l.exec(t, name, "ping", "-c1", "-W5", "-s", "8972", "-I", fmt.Sprintf("net%d", k+1), e.IPs[0])
		}
	}
	l.delete(t, names...)
}

func podsShareANIC(t *testing.T, l *lab) {
	const name = "rdma-net-ipam" // of examples/macvlan-nad.yaml
	pods := []pod{{"shared-1", 0, name}, {"shared-2", 0, name}, {"shared-3", 1, name}}
	l.sharing(t, "192.168.111.", "/24 brd 192.168.111.255", pods)
}

// sharing runs pods with one macvlan each, and pings between every two.
func (l *lab) sharing(t *testing.T, subnet, rest string, pods []pod) {
	t.Helper()
	l.run(t, pods...)
	addresses := make([]string, len(pods))
	for i, p := range pods {
		entries := l.status(t, p.name)
		if len(entries) != 2 || len(entries[1].IPs) != 1 || !strings.HasPrefix(entries[1].IPs[0], subnet) {
			t.Fatalf("network-status of %s: %+v", p.name, entries)
		}
		addresses[i] = entries[1].IPs[0]
		if nic := l.interfaces(t, p.name)["net1"]; nic.ipv4() != addresses[i]+rest || nic.MTU != 9000 || !nic.up() {
			t.Errorf("%s: %+v", p.name, nic)
		}
	}
	for i, from := range pods {
		for j, to := range addresses {
			if i != j {
				l.exec(t, from.name, "ping", "-c1", "-W5", "-s", "8972", "-I", "net1", to)
			}
		}
	}
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.name)
	}
	l.delete(t, names...)
}

// networkOperatorsForms applies NVIDIA network-operator's output that needs no
// hardware: a MacvlanNetwork. A HostDeviceNetwork names no NIC, because a
// device plugin does, so it is below, among the failures; with devices it is in
// the rig, as are the chain with rdma and InfiniBand.
func networkOperatorsForms(t *testing.T, l *lab) {
	l.nad(t, "rdma-net", rendered(t, "MacvlanNetwork"))
	l.sharing(t, "192.168.2.2", "/28 brd 192.168.2.239", []pod{{"operated-1", 0, "rdma-net"}, {"operated-2", 1, "rdma-net"}})
}

// rendered returns the CNI configuration in one of network-operator's NADs.
func rendered(t *testing.T, kind string) string {
	t.Helper()
	config, err := examples.Rendered(kind)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func failuresAreEvents(t *testing.T, l *lab) {
	// From result version 1.1.0 on, network-status has the MTU.
	l.nad(t, "new-version", `{"cniVersion": "1.1.0", "name": "new-version", "type": "host-device", "device": "ens16np0"}`)
	l.run(t, pod{"holder", 0, "new-version"})
	if entries := l.status(t, "holder"); len(entries) != 2 || entries[1].Mtu != 9000 {
		t.Errorf("network-status: %+v", entries)
	}
	l.nad(t, "no-such-nic", `{"cniVersion": "1.0.0", "name": "no-such-nic", "type": "host-device", "device": "ens99np0"}`)
	l.nad(t, "uplink", `{"cniVersion": "1.0.0", "name": "uplink", "type": "host-device", "device": "eth0"}`)
	l.nad(t, "hostdev-net", rendered(t, "HostDeviceNetwork"))

	failures := []struct {
		pod
		says []string
	}{
		{pod{"wants-lent", 0, "roce-net-1,roce-net-5"}, []string{"ens16np0", "default/holder", "net1", "wait until that attachment ends"}},
		{pod{"wants-missing", 1, "no-such-nic"}, []string{`device "ens99np0"`, "no such NIC", "see `ip link`"}},
		{pod{"wants-uplink", 1, "uplink"}, []string{"eth0", "default route", "allow", "uplink"}},
		{pod{"wants-device", 1, "hostdev-net"}, []string{"names no NIC", "specify", "resourceName"}},
	}
	for _, f := range failures {
		l.create(t, f.pod)
	}
	names := []string{"holder"}
	for _, f := range failures {
		events := l.sandboxEvents(t, f.name)
		t.Logf("%s: %s", f.name, events)
		for _, part := range f.says {
			if !strings.Contains(events, part) {
				t.Errorf("no event of %s says %q", f.name, part)
			}
		}
		names = append(names, f.name)
	}
	l.delete(t, names...)
}
