package nicstate

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

func hop(index uint32, flags byte, attrs ...nlattr.Attr) []byte {
	h := binary.NativeEndian.AppendUint16(nil, 0)
	h = append(h, flags, 0)
	h = binary.NativeEndian.AppendUint32(h, index)
	h = nlattr.Marshal(h, attrs)
	binary.NativeEndian.PutUint16(h, uint16(len(h)))
	return h
}

func header4(family, prefix, a, b byte, last uint32) []byte {
	return binary.NativeEndian.AppendUint32([]byte{family, prefix, a, b}, last)
}

func routeHeader(family, prefix, table byte, flags uint32) []byte {
	h := []byte{family, prefix, 0, 0, table, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST}
	return binary.NativeEndian.AppendUint32(h, flags)
}

func TestReplayTexts(t *testing.T) {
	v6 := net.ParseIP("fd00::5")
	for _, c := range []struct{ got, want string }{
		{addressText(header4(unix.AF_INET, 24, 0, 0, 7), nlattr.Attrs{attr(unix.IFA_ADDRESS, 10, 0, 0, 5), attr(unix.IFA_LOCAL, 10, 0, 0, 5), attr(unix.IFA_BROADCAST, 10, 0, 0, 255)}), "10.0.0.5/24 brd 10.0.0.255"},
		{addressText(header4(unix.AF_INET, 32, 0, 0, 7), nlattr.Attrs{attr(unix.IFA_ADDRESS, 10, 0, 0, 6), attr(unix.IFA_LOCAL, 10, 0, 0, 5)}), "10.0.0.5/32 peer 10.0.0.6"},
		{addressText(header4(unix.AF_INET6, 64, 0, 0, 7), nlattr.Attrs{attr(unix.IFA_ADDRESS, v6...)}), "fd00::5/64"},
		{addressText(header4(unix.AF_INET6, 64, 0, 0, 7), nil), "?/64"},
		{routeText(routeHeader(unix.AF_INET, 0, 254, 0), nlattr.Attrs{attr(unix.RTA_GATEWAY, 10, 0, 0, 1), number32(unix.RTA_PRIORITY, 7)}), "default via 10.0.0.1 metric 7"},
		{routeText(routeHeader(unix.AF_INET6, 64, 0, 0), nlattr.Attrs{attr(unix.RTA_DST, v6...), number32(unix.RTA_TABLE, 70000), attr(unix.RTA_PRIORITY, 1)}), "fd00::5/64 table 70000"},
		{neighborText(nlattr.Attrs{attr(1, 10, 0, 0, 1), attr(2, 2, 0, 0, 0, 0, 1)}), "10.0.0.1 lladdr 02:00:00:00:00:01"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestAge(t *testing.T) {
	life := func(preferred, valid uint32) nlattr.Attr {
		v := binary.NativeEndian.AppendUint32(nil, preferred)
		v = binary.NativeEndian.AppendUint32(v, valid)
		return attr(unix.IFA_CACHEINFO, append(v, make([]byte, 8)...)...)
	}
	const forever = foreverLife
	for _, c := range []struct {
		name             string
		flags            byte
		preferred, valid uint32
		passed           time.Duration
		want             []uint32 // nil: no lifetimes are sent
		alive            bool
	}{
		{"for ever", 0, forever, forever, time.Hour, nil, true},
		{"both run", 0, 500, 1000, 100 * time.Second, []uint32{400, 900}, true},
		{"preference over", 0, 50, 1000, 100 * time.Second, []uint32{0, 900}, true},
		{"run out to the second", 0, 50, 100, 100 * time.Second, nil, false},
		{"run out long ago", 0, 50, 100, 1000 * time.Hour, nil, false},
		{"the clock was set back", 0, 50, 100, -time.Hour, []uint32{50, 100}, true},
		{"deprecated for ever", 0, 0, forever, time.Hour, []uint32{0, forever}, true},
		{"deprecated for ever, as IPv4 says it", unix.IFA_F_DEPRECATED, forever, forever, time.Hour, []uint32{0, forever}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := life(c.preferred, c.valid)
			in := nlattr.Attrs{attr(unix.IFA_ADDRESS, 10, 0, 0, 1), before}
			kept := slices.Clone(before.Value)
			got, alive := age(header4(unix.AF_INET, 24, c.flags, 0, 7), in, c.passed)
			if alive != c.alive {
				t.Fatalf("alive %v", alive)
			}
			if !bytes.Equal(kept, before.Value) {
				t.Error("the record's bytes were changed")
			}
			info, ok := got.Get(unix.IFA_CACHEINFO)
			if ok != (c.want != nil) {
				t.Fatalf("lifetimes %x, want %v", info, c.want)
			}
			if ok && (binary.NativeEndian.Uint32(info) != c.want[0] || binary.NativeEndian.Uint32(info[4:]) != c.want[1]) {
				t.Errorf("lifetimes %x, want %v", info[:8], c.want)
			}
		})
	}
	if got, alive := age(header4(unix.AF_INET, 24, 0, 0, 7), nlattr.Attrs{attr(unix.IFA_CACHEINFO, 1, 2)}, time.Hour); !alive || len(got) != 1 {
		t.Errorf("lifetimes that are none: %v, %v", got, alive)
	}
}

func TestCarried(t *testing.T) {
	v6, ll := net.ParseIP("fd00::5"), net.ParseIP("fe80::5")
	permanent := byte(unix.IFA_F_PERMANENT)
	s := &Snapshot{Name: "ens1", Index: 7, Addresses: []Replay{
		{"10.0.0.5/24", message(header4(unix.AF_INET, 24, permanent, 0, 7), attr(unix.IFA_ADDRESS, 10, 0, 0, 5), attr(unix.IFA_LOCAL, 10, 0, 0, 5), attr(unix.IFA_LABEL, []byte("ens1\x00")...))},
		{"10.0.1.5/24, a lease", message(header4(unix.AF_INET, 24, 0, 0, 7), attr(unix.IFA_LOCAL, 10, 0, 1, 5), attr(unix.IFA_CACHEINFO, make([]byte, 16)...))},
		{"169.254.0.5/16, of the link", message(header4(unix.AF_INET, 16, permanent, unix.RT_SCOPE_LINK, 7), attr(unix.IFA_LOCAL, 169, 254, 0, 5))},
		{"fd00::5/64", message(header4(unix.AF_INET6, 64, permanent, 0, 7), attr(unix.IFA_ADDRESS, v6...))},
		{"fd00::6/64, announced", message(header4(unix.AF_INET6, 64, 0, 0, 7), attr(unix.IFA_ADDRESS, v6...))},
		{"fe80::5/64", message(header4(unix.AF_INET6, 64, permanent, unix.RT_SCOPE_LINK, 7), attr(unix.IFA_ADDRESS, ll...))},
		{"torn", []byte{1, 2, 3}},
	}, Routes: []Replay{
		{"default", message(routeHeader(unix.AF_INET, 0, 254, 0), attr(unix.RTA_GATEWAY, 10, 0, 0, 1), number32(unix.RTA_OIF, 7))},
		{"table", message(routeHeader(unix.AF_INET, 16, 0, 0), attr(unix.RTA_DST, 10, 5, 0, 0), number32(unix.RTA_TABLE, 70000), number32(unix.RTA_PRIORITY, 9))},
		{"fd05::/64", message(routeHeader(unix.AF_INET6, 64, 254, 0), attr(unix.RTA_DST, net.ParseIP("fd05::")...))},
		{"fe80::/64", message(routeHeader(unix.AF_INET6, 64, 254, 0), attr(unix.RTA_DST, net.ParseIP("fe80::")...))},
		{"torn", nil},
	}}
	c := s.Carried()
	var got []string
	for _, a := range c.Addresses {
		got = append(got, a.String())
	}
	for _, r := range c.Routes {
		got = append(got, r.Dst.String()+" via "+r.Gateway.String())
	}
	want := "10.0.0.5/24|10.0.1.5/24|fd00::5/64|0.0.0.0/0 via 10.0.0.1|10.5.0.0/16 via <nil>|fd05::/64 via <nil>"
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("carries\n%s, want\n%s", text, want)
	}
	if !slices.Equal(c.Tables, []int{254, 70000}) || c.Routes[1].Priority != 9 {
		t.Errorf("tables %v, routes %+v", c.Tables, c.Routes)
	}
	if len(c.Snapshot.Addresses) != 3 || len(c.Snapshot.Routes) != 3 || c.Snapshot.Index != 7 {
		t.Errorf("snapshot %+v", c.Snapshot)
	}
	for _, a := range c.Snapshot.Addresses {
		_, attrs, err := nlattr.ParseMessage(a.Raw, unix.SizeofIfAddrmsg)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []uint16{unix.IFA_LABEL, unix.IFA_CACHEINFO} {
			if _, ok := attrs.Get(kind); ok {
				t.Errorf("%s carries attribute %d of the host", a.Text, kind)
			}
		}
	}
}

func FuzzHops(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(hop(7, 0, attr(unix.RTA_GATEWAY, 1, 2, 3, 4)), hop(8, unix.RTNH_F_LINKDOWN)...))
	f.Fuzz(func(_ *testing.T, hops []byte) {
		routes.EachHop(slices.Clone(hops), func(hop []byte) { hop[2] = 0; binary.NativeEndian.PutUint32(hop[4:], 1) })
		_ = gained(hops, withIndexes(routes.OwnHops(hops, 8), map[int]int{8: 7}), 8)
		routes.LeavesBy(nlattr.Attrs{attr(unix.RTA_MULTIPATH, hops...)}, 7)
	})
}

// FuzzReplay reads records of an edited ledger.
func FuzzReplay(f *testing.F) {
	f.Add(message(header4(unix.AF_INET, 24, 0, 0, 7), attr(unix.IFA_LOCAL, 10, 0, 0, 5), attr(unix.IFA_CACHEINFO, make([]byte, 16)...)),
		message(routeHeader(unix.AF_INET, 16, 254, 0), attr(unix.RTA_DST, 10, 0, 0, 0), number32(unix.RTA_TABLE, 7)))
	f.Add(message(header4(unix.AF_INET6, 255, 0, 0, 7), attr(unix.IFA_ADDRESS, 1)), message(routeHeader(unix.AF_INET6, 200, 254, 0)))
	f.Fuzz(func(t *testing.T, address, route []byte) {
		s := &Snapshot{Addresses: []Replay{{Raw: address}}, Routes: []Replay{{Raw: route}}}
		c := s.Carried()
		for _, a := range c.Addresses {
			_ = a.String()
		}
		for _, r := range c.Routes {
			if r.Dst == nil {
				t.Fatal("a route without a destination")
			}
			_ = r.Dst.String()
		}
		if header, attrs, err := nlattr.ParseMessage(address, unix.SizeofIfAddrmsg); err == nil {
			_, _ = age(header, attrs, time.Minute)
			_ = addressText(header, attrs)
		}
		if header, attrs, err := nlattr.ParseMessage(route, unix.SizeofRtMsg); err == nil {
			_ = routeText(header, attrs)
			_ = routes.Key(header, attrs)
			routes.EachHop(routes.HopsOf(header, attrs), func(hop []byte) { _ = routes.HopKey(hop) })
		}
	})
}
