package link_test

import (
	"fmt"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestViewsAreThoseOfEachLink(t *testing.T) {
	n, wire := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "wire")
	for i := range 3 {
		n.NIC(fmt.Sprintf("ens%d", i), wire)
		n.IP("addr", "add", fmt.Sprintf("192.0.2.%d/25", i+1), "dev", fmt.Sprintf("ens%d", i))
	}
	n.IP("route", "add", "198.51.100.0/24", "via", "192.0.2.100", "dev", "ens1")
	n.IP("route", "add", "default", "nexthop", "via", "192.0.2.100", "dev", "ens0", "nexthop", "via", "192.0.2.101", "dev", "ens2")
	views, err := link.ReadViews(n.Netns, func(l *link.Link) bool { return l.Name != "ens1" && l.Kind == "veth" })
	if err != nil {
		t.Fatal(err)
	}
	if len(views) != 2 {
		t.Errorf("%d views", len(views))
	}
	for index, v := range views {
		want, err := link.ReadView(n.Netns, index)
		if err != nil {
			t.Fatal(err)
		}
		if v.Link.Index != index || v.Link.Name != want.Link.Name || len(v.Links) != len(want.Links) || len(v.Addresses()) != 1 ||
			fmt.Sprint(v.Addresses()) != fmt.Sprint(want.Addresses()) || !v.IsUplink() || !want.IsUplink() {
			t.Errorf("%s: %v, uplink %v; by itself %v, uplink %v", want.Link.Name, v.Addresses(), v.IsUplink(), want.Addresses(), want.IsUplink())
		}
	}
}
