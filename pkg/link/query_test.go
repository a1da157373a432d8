package link_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestDefaultRouteLinks(t *testing.T) {
	for _, c := range []struct {
		name  string
		given [][]string
		want  []string
	}{
		{"none", nil, nil},
		{"IPv4", [][]string{{"route", "add", "default", "via", "10.0.1.1"}}, []string{"ens1"}},
		{"IPv4 without a gateway", [][]string{{"route", "add", "default", "dev", "ens2"}}, []string{"ens2"}},
		{"IPv6", [][]string{{"-6", "route", "add", "default", "via", "fd00:2::1"}}, []string{"ens2"}},
		{"both", [][]string{{"route", "add", "default", "via", "10.0.1.1"}, {"-6", "route", "add", "default", "via", "fd00:2::1"}}, []string{"ens1", "ens2"}},
		{
			"the better one first",
			[][]string{{"route", "add", "default", "via", "10.0.1.1", "metric", "200"}, {"route", "add", "default", "via", "10.0.2.1", "metric", "100"}},
			[]string{"ens2", "ens1"},
		},
		{"multipath", [][]string{{"route", "add", "default", "nexthop", "via", "10.0.1.1", "nexthop", "via", "10.0.2.1"}}, []string{"ens1", "ens2"}},
		{"IPv6 multipath", [][]string{{"-6", "route", "add", "default", "nexthop", "via", "fd00:1::1", "nexthop", "via", "fd00:2::1"}}, []string{"ens1", "ens2"}},
		{"an IPv4 gateway reached by IPv6", [][]string{{"route", "add", "default", "via", "inet6", "fd00:2::1", "dev", "ens2"}}, []string{"ens2"}},
		{"a nexthop object", [][]string{{"nexthop", "add", "id", "7", "via", "10.0.2.1", "dev", "ens2"}, {"route", "add", "default", "nhid", "7"}}, []string{"ens2"}},
		{"in a table of its own", [][]string{{"route", "add", "default", "via", "10.0.1.1", "table", "100"}, {"-6", "route", "add", "default", "via", "fd00:2::1", "table", "1000"}}, nil},
		{"unreachable", [][]string{{"route", "add", "unreachable", "default"}, {"-6", "route", "add", "unreachable", "default"}}, nil},
		{"half of everything is not everything", [][]string{{"route", "add", "0.0.0.0/1", "via", "10.0.1.1"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, wire := testnet.NewNetns(t, "n"), testnet.NewNetns(t, "wire")
			for i, name := range []string{"ens1", "ens2"} {
				n.NIC(name, wire)
				subnet := []string{"1", "2"}[i]
				n.IP("addr", "add", "10.0."+subnet+".5/24", "dev", name)
				n.IP("addr", "add", "fd00:"+subnet+"::5/64", "dev", name)
			}
			for _, args := range c.given {
				n.IP(args...)
			}
			indexes, err := link.DefaultRouteLinks(n.Netns)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, index := range indexes {
				l, err := link.ByIndex(n.Netns, index)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, l.Name)
			}
			for _, name := range []string{"ens1", "ens2"} {
				if v := n.View(n.Link(name)); v.IsUplink() != slices.Contains(c.want, name) {
					t.Errorf("%s is an uplink: %v", name, v.IsUplink())
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestLookUps(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	n.IP("link", "add", "nic", "type", "ifb")
	const long = "a-name-that-is-longer-than-a-name-may-be"
	n.IP("link", "property", "add", "dev", "nic", "altname", "short", "altname", long)
	nic := n.Link("nic")
	for _, name := range []string{"nic", "short", long} {
		if l, err := link.ByName(n.Netns, name); err != nil || l.Index != nic.Index || l.Name != "nic" {
			t.Errorf("by name %q: %+v, %v", name, l, err)
		}
	}
	for _, name := range []string{"", "ni", "nobody", strings.Repeat("x", 100)} {
		if l, err := link.ByName(n.Netns, name); !errors.Is(err, link.ErrNotFound) {
			t.Errorf("by name %q: %+v, %v", name, l, err)
		}
	}
	if l, err := link.ByIndex(n.Netns, 4711); !errors.Is(err, link.ErrNotFound) {
		t.Errorf("by index: %+v, %v", l, err)
	}
	if l, name, err := link.NameTaken(n.Netns, []string{"free", "short"}, 0); err != nil || l == nil || l.Name != "nic" || name != "short" {
		t.Errorf("NameTaken: %+v, %q, %v", l, name, err)
	}
	if l, _, err := link.NameTaken(n.Netns, []string{"free", "short"}, nic.Index); err != nil || l != nil {
		t.Errorf("NameTaken by itself: %+v, %v", l, err)
	}
}

func TestLinkRelations(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	r.Host.IP("link", "add", "br0", "type", "bridge")
	r.Host.IP("link", "add", "in0", "type", "veth", "peer", "name", "in1")
	r.Host.IP("link", "set", "in0", "master", "br0")
	r.Host.IP("link", "add", "mv0", "link", "ens1", "type", "macvlan")
	nic, child, port, peer := r.Host.Link("ens1"), r.Host.Link("mv0"), r.Host.Link("in0"), r.Host.Link("in1")
	if child.Lower != nic.Index || child.LowerInOtherNetns || child.Kind != "macvlan" {
		t.Errorf("a child: %+v", child)
	}
	if port.Master != r.Host.Link("br0").Index || port.Lower != peer.Index || port.LowerInOtherNetns {
		t.Errorf("a bridge's port: %+v", port)
	}
	if !nic.LowerInOtherNetns || nic.Kind != "veth" || nic.Encap != "ether" || nic.HasParent() || !nic.IsUp() || !nic.HasCarrier() {
		t.Errorf("a NIC whose cable ends in another namespace: %+v", nic)
	}
	if lo := r.Host.Link("lo"); lo.Encap != "loopback" {
		t.Errorf("the loopback: %+v", lo)
	}
}

func TestAddressesWithoutTheKernelsOwn(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	for _, a := range []string{"10.0.0.1/24", "169.254.7.7/16", "fd00::1/64"} {
		r.Host.IP("addr", "add", a, "dev", "ens1")
	}
	ens1 := r.Host.Link("ens1")
	found, err := link.Addresses(r.Host.Netns, ens1.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range [][]*net.IPNet{found, r.Host.View(ens1).Addresses()} {
		var got []string
		for _, a := range found {
			got = append(got, a.String())
		}
		slices.Sort(got)
		if want := []string{"10.0.0.1/24", "169.254.7.7/16", "fd00::1/64"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
