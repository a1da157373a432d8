package publish

import (
	"strconv"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

func TestInfiniBandOfARail(t *testing.T) {
	table := ibaddr.GIDTable{Size: 1, Entries: []ibaddr.GIDEntry{{GID: ibaddr.GID{0: 0xfe, 1: 0x80, 8: 0xb8, 9: 0xce, 10: 0xf6, 15: 0x58}}}}
	keys := []ibaddr.PKey{{Index: 0, Key: 0x7fff}, {Index: 1, Key: 0x0001}, {Index: 4, Key: 0x8001}}
	for name, c := range map[string]struct {
		now  *link.Link
		want string
	}{
		"datagram":                 {&link.Link{IPoIB: &link.IPoIB{PKey: 0x8001}}, "0x8001 4 datagram"},
		"connected, by default":    {&link.Link{IPoIB: &link.IPoIB{PKey: 0xffff, Mode: 1}}, "0x7fff 0 connected"},
		"outside of its partition": {&link.Link{IPoIB: &link.IPoIB{PKey: 0x8009}}, "0x8009 none datagram"},
		"without an interface":     {nil, "0x7fff 0 "},
		"an interface of Ethernet": {&link.Link{}, " none "},
	} {
		t.Run(name, func(t *testing.T) {
			l := railinfo.Rail{LinkLayer: railinfo.InfiniBand}
			setInfiniBand(&l, 7, table, keys, c.now)
			index := "none"
			if l.PKeyIndex != nil {
				index = strconv.Itoa(*l.PKeyIndex)
			}
			if have := l.PKey + " " + index + " " + l.Mode; have != c.want || l.LID != 7 || l.GUID != "b8ce:f600:0000:0058" {
				t.Errorf("%q, not %q; LID %d, GUID %s", have, c.want, l.LID, l.GUID)
			}
		})
	}
}

func TestActiveMTU(t *testing.T) {
	for _, c := range []struct {
		layer     string
		mtu, want int
	}{
		{"Ethernet", 1500, 1024},
		{"Ethernet", 9000, 4096},
		{"Ethernet", 4200, 4096},
		{"Ethernet", 4100, 2048},
		{"Ethernet", 68, 0},
		{railinfo.InfiniBand, 2044, 2048},
		{railinfo.InfiniBand, 4092, 4096},
		{railinfo.InfiniBand, 65520, 0},
	} {
		if got := ActiveMTU(c.layer, c.mtu); got != c.want {
			t.Errorf("%s, MTU %d: got %d, want %d", c.layer, c.mtu, got, c.want)
		}
	}
}

func TestGatewayIsThatOfTheFirstAddress(t *testing.T) {
	for _, c := range []struct {
		addresses, gateways []string
		want                string
	}{
		{[]string{"10.0.0.2/24"}, []string{"10.1.0.1", "10.0.0.1"}, "10.0.0.1"},
		{[]string{"10.0.0.2/32"}, []string{"fd00::1", "10.9.9.9"}, "10.9.9.9"},
		{[]string{"fd00::2/64", "10.0.0.2/24"}, []string{"10.0.0.1", "fd00::1"}, "fd00::1"},
		{[]string{"10.0.0.2/24"}, []string{"fd00::1"}, ""},
		{nil, []string{"10.0.0.1"}, ""},
	} {
		if got := gatewayOf(c.addresses, c.gateways); got != c.want {
			t.Errorf("%v by %v: got %q, want %q", c.addresses, c.gateways, got, c.want)
		}
	}
}
