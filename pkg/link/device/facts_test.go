package device_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
)

func TestDCBOfALinkWithoutIt(t *testing.T) {
	n := testnet.NewNetns(t, "node")
	n.NIC("ens1", testnet.NewNetns(t, "wire"))
	if d, err := device.ReadDCB(n.Netns, "ens1"); d != nil || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestDriverTellsItsStatistics(t *testing.T) {
	n, wire := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "wire")
	n.NIC("ens1", wire)
	peer, err := link.ByName(wire.Netns, "ens1-sw")
	if err != nil {
		t.Fatal(err)
	}
	d, err := device.ReadDriver(n.Netns, "ens1")
	if err != nil || d.Stats["peer_ifindex"] != uint64(peer.Index) || d.Mbps != 10000 {
		t.Errorf("a veth to index %d: %+v, %v", peer.Index, d, err)
	}
	if d, err := device.ReadDriver(n.Netns, "lo"); err != nil || len(d.Stats) != 0 || d.Mbps != 0 {
		t.Errorf("the loopback: %+v, %v", d, err)
	}
	for _, name := range []string{"none", "", "a-name-that-is-too-long"} {
		if d, err := device.ReadDriver(n.Netns, name); !errors.Is(err, unix.ENODEV) {
			t.Errorf("%q: %+v, %v", name, d, err)
		}
	}
}

func TestHardwareOfALink(t *testing.T) {
	n := testnet.NewNetns(t, "node")
	n.NIC("ens0", testnet.NewNetns(t, "wire"))
	h, err := device.ReadHardware(n.Netns, "ens0")
	if err != nil || h.Mbps != 10000 || h.Firmware != "" { // veth_get_link_ksettings
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := device.ReadHardware(n.Netns, "lo"); err != nil || h != (device.Hardware{}) {
		t.Errorf("loopback: %+v, %v", h, err)
	}
	if _, err := device.ReadHardware(n.Netns, "ens9"); err == nil {
		t.Error("a link that does not exist has hardware")
	}
}
