package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
)

// parse returns the configuration of a network with these keys in its ipam part.
func parse(t *testing.T, ipam string) *ipamconf.Whereabouts {
	t.Helper()
	conf, err := ipamconf.ParseWhereabouts([]byte(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{"type":"whereabouts",`+ipam+`}}`), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

func TestClaimsOfSeveralRanges(t *testing.T) {
	conf := parse(t, `"network_name":"blue","gateway":"10.0.0.1","allocation":"rotate",
		"ipRanges":[{"range":"10.0.0.0/24","range_start":"10.0.0.9","exclude":["10.0.0.10/32"]},{"range":"2001:db8::/64"}]`)
	claims, err := Claims(conf, Slice{})
	if err != nil || len(claims) != 2 {
		t.Fatalf("%d claims, %v", len(claims), err)
	}
	for i, want := range []string{"blue-10.0.0.0-24", "blue-2001-db8---64"} {
		if name := claims[i].Pool.Name(); name != want || !claims[i].Exclusive || !claims[i].Rotate {
			t.Errorf("claim %d is of pool %s, exclusive %t; want %s, true", i, name, claims[i].Exclusive, want)
		}
	}
	r := claims[0].Range
	if first := r.First().String(); first != "10.0.0.9" || r.Why(netip.MustParseAddr("10.0.0.10")) == "" {
		t.Errorf("the range begins at %s, and hands out 10.0.0.10: %t", first, r.Why(netip.MustParseAddr("10.0.0.10")) == "")
	}
}

func TestClaimsOfANodeSlice(t *testing.T) {
	conf := parse(t, `"range":"10.0.0.0/16","range_start":"10.0.3.9","node_slice_size":"/24"`)
	if name, ok := SlicePool(conf); name != "net" || !ok {
		t.Errorf("SlicePool: %q, %t", name, ok)
	}
	slice := Slice{Node: "node1", Prefix: netip.MustParsePrefix("10.0.3.0/24")}
	claims, err := Claims(conf, slice)
	if err != nil {
		t.Fatal(err)
	}
	if name, first := claims[0].Pool.Name(), claims[0].Range.First().String(); name != "node1-10.0.3.0-24" || first != "10.0.3.9" {
		t.Errorf("pool %s from %s", name, first)
	}
	slice.Prefix = netip.MustParsePrefix("10.0.2.0/24")
	if claims, err := Claims(conf, slice); err == nil {
		t.Errorf("a slice below range_start has claims %v", claims)
	}
	for prefix, want := range map[string]bool{"10.0.3.0/24": true, "10.0.0.0/16": true, "10.1.0.0/24": false, "10.0.0.0/8": false} {
		if got := (Slice{Prefix: netip.MustParsePrefix(prefix)}).Within(conf.Ranges[0].Prefix); got != want {
			t.Errorf("%s is in %s: %t", prefix, conf.Ranges[0].Prefix, got)
		}
	}
}

func TestRequestedAddressesGoToTheirRange(t *testing.T) {
	conf := parse(t, `"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.0.1.0/24"}]`)
	for _, test := range []struct {
		name      string
		requested []string
		wants     []string // of the claims; "invalid IP" is none
		err       string
	}{
		{"none", nil, []string{"invalid IP", "invalid IP"}, ""},
		{"of the second", []string{"10.0.1.7"}, []string{"invalid IP", "10.0.1.7"}, ""},
		{"of both, in any order", []string{"10.0.1.7", "10.0.0.8"}, []string{"10.0.0.8", "10.0.1.7"}, ""},
		{"two of one", []string{"10.0.1.7", "10.0.1.8"}, nil, "are in the same range"},
		{"of no range", []string{"10.0.2.7"}, nil, "is in no range of network net"},
	} {
		t.Run(test.name, func(t *testing.T) {
			conf.Requested = nil
			for _, a := range test.requested {
				conf.Requested = append(conf.Requested, netip.MustParseAddr(a))
			}
			claims, err := Claims(conf, Slice{})
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range test.wants {
				if got := claims[i].Want.String(); got != want {
					t.Errorf("claim %d wants %s, want %s", i, got, want)
				}
			}
		})
	}
}

func TestClaimsRefuseAnAddressSpaceThatIsNoName(t *testing.T) {
	conf := parse(t, `"range":"10.0.0.0/24"`)
	conf.NetworkName = "Not A Name"
	if _, err := Claims(conf, Slice{}); err == nil || !strings.Contains(err.Error(), "network_name") {
		t.Errorf("error %v", err)
	}
}

// Bounds, exclusions and gateways that name addresses of one rail hold on all, so that every
// rail has the same free host parts.
func TestWhatIsExcludedOnOneRailIsExcludedOnAll(t *testing.T) {
	for rail := range 2 {
		conf := parse(t, fmt.Sprintf(`"range":"10.%d.0.0/24","range_start":"10.0.0.9","range_end":"10.1.0.30","exclude":["10.0.0.16/30","10.1.0.22","172.16.0.0/12"],
			"gateway":"10.1.0.24","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.26"},{"dst":"172.16.0.0/16","gw":"10.9.0.28"}],
			"sameHost":true,"railRanges":["10.0.0.0/24","10.1.0.0/24"]`, rail))
		claims, err := Claims(conf, Slice{})
		if err != nil || len(claims[0].SameHost) != 2 {
			t.Fatal(claims, err)
		}
		var got []string
		for a, ok := claims[0].Range.Next(claims[0].Range.First()); ok; a, ok = claims[0].Range.Next(a.Next()) {
			got = append(got, strings.TrimPrefix(a.String(), fmt.Sprintf("10.%d.0.", rail)))
		}
		if want := "9 10 11 12 13 14 15 20 21 23 25 27 28 29 30"; strings.Join(got, " ") != want {
			t.Errorf("rail %d: %s, want %s", rail, got, want)
		}
	}
}

func TestPrefixOfANodeIsUsedWhole(t *testing.T) {
	conf := parse(t, `"range":"10.0.0.0/31","gateway":"10.0.0.0","store":"local","prefix":"node"`)
	claims, err := Claims(conf, Slice{})
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := claims[0].Range.Next(claims[0].Range.First()); !ok || a.String() != "10.0.0.1" {
		t.Errorf("%s, %v", a, ok)
	}
}
