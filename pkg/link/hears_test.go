package link_test

import (
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// A pod may write any address into the list of multicast addresses of its macvlan, and
// so of the NIC below it, but no packet of another's gets to it thereby.
func TestHearsForCountsNoAddressesOfTheMulticastList(t *testing.T) {
	const mac = "02:00:00:00:00:99"
	r := newRail(t, "ens1")
	index := byName(t, r.host, "ens1").Index
	pods := []*testnet.Netns{testnet.NewNetns(t, "pod1"), testnet.NewNetns(t, "pod2")}
	for _, pod := range pods {
		r.host.IP("link", "add", "net1", "link", "ens1", "netns", pod.Name, "type", "macvlan", "mode", "bridge")
	}
	r.host.IP("link", "set", "ens1", "up")
	pods[0].IP("link", "set", "net1", "up")
	hears := func(want bool, why string) {
		t.Helper()
		if got, err := r.host.HearsFor(index, mac); err != nil || got != want {
			t.Errorf("%s: %v, %v", why, got, err)
		}
	}
	hears(false, "nothing has it")
	pods[0].IP("maddress", "add", mac, "dev", "net1")
	hears(false, "only the multicast list has it")
	pods[1].IP("link", "set", "net1", "address", mac, "up")
	hears(true, "a macvlan and the multicast list have it")
	pods[0].IP("maddress", "del", mac, "dev", "net1")
	hears(true, "a macvlan has it")
	pods[1].IP("link", "set", "net1", "down")
	hears(false, "the macvlan is down")
}
