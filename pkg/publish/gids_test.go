package publish

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// table is the GID table of a RoCE port. Two pods have a macvlan "net1" on the port. The table also
// has the NIC's own entries.
func table() ibaddr.GIDTable {
	var t ibaddr.GIDTable
	add := func(ip, netdev string) {
		for _, kind := range []ibaddr.GIDType{ibaddr.RoCEv1, ibaddr.RoCEv2} {
			t.Entries = append(t.Entries, ibaddr.GIDEntry{Index: len(t.Entries), GID: ibaddr.GIDOf(netip.MustParseAddr(ip)), Type: kind, Netdev: netdev})
		}
	}
	add("fe80::1", "ens5np0")
	add("10.0.0.1", "ens5np0")
	add("fe80::2", "net1")
	add("10.0.0.17", "net1")
	add("fe80::3", "net1")
	add("10.0.0.18", "net1")
	add("fd00::17", "net1")
	return t
}

func TestGIDsOfARail(t *testing.T) {
	for _, c := range []struct {
		name, layer string
		lent        bool
		addresses   []string
		netdev      string
		want        []int
		v2          int // -1 for none
	}{
		{"a macvlan has those of its addresses", "Ethernet", false, []string{"10.0.0.17/24", "fd00::17/64"}, "net1", []int{6, 7, 12, 13}, 7},
		{"the first address decides", "Ethernet", false, []string{"fd00::17/64", "10.0.0.17/24"}, "net1", []int{6, 7, 12, 13}, 13},
		{"an interface of another name", "Ethernet", false, []string{"10.0.0.17/24"}, "net9", nil, -1},
		{"a macvlan without addresses", "Ethernet", false, nil, "net1", nil, -1},
		{"a lent port has all", "Ethernet", true, []string{"10.0.0.1/24"}, "ens5np0", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, 3},
		{"an address without a GID", "Ethernet", true, []string{"10.9.9.9/24"}, "ens5np0", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := railinfo.Rail{LinkLayer: c.layer, Addresses: c.addresses}
			setGIDs(&l, table(), c.lent, &link.Link{Name: c.netdev})
			var got []int
			for _, g := range l.GIDs {
				got = append(got, g.Index)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("GIDs %v, want %v", got, c.want)
			}
			if v2 := l.GIDIndexV2; (v2 == nil) != (c.v2 < 0) || v2 != nil && *v2 != c.v2 {
				t.Errorf("index of RoCE v2: %v, want %d", v2, c.v2)
			}
		})
	}
}

func TestGIDsOfInfiniBandStandForNoAddress(t *testing.T) {
	l := railinfo.Rail{LinkLayer: railinfo.InfiniBand, Addresses: []string{"10.0.0.1/24"}}
	setGIDs(&l, ibaddr.GIDTable{Entries: []ibaddr.GIDEntry{{GID: ibaddr.GID{0xfe, 0x80, 15: 7}, Type: ibaddr.RoCEv1}}}, true, nil)
	if len(l.GIDs) != 1 || l.GIDs[0].IP != "" || l.GIDs[0].GID != "fe80:0000:0000:0000:0000:0000:0000:0007" || l.GIDIndexV2 != nil {
		t.Errorf("got %+v", l)
	}
}
