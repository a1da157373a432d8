package nvipam

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// object returns a CIDRPool with the allocation in its status, beside one of node1.
func object(spec, allocation string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"nv-ipam.nvidia.com/v1alpha1","kind":"CIDRPool","metadata":{"name":"rail-0","namespace":"nv","resourceVersion":"7"},
		"spec":{"cidr":"10.0.0.0/16","perNodeNetworkPrefix":31%s},"status":{"allocations":[{"nodeName":"node1","prefix":"10.0.0.0/31"},%s]}}`, spec, allocation)
}

func TestAllocationOfTheNode(t *testing.T) {
	for name, c := range map[string]struct{ spec, allocation, want string }{
		"a gateway":                          {`,"gatewayIndex":0`, `{"nodeName":"node2","prefix":"10.0.4.8/31","gateway":"10.0.4.8"}`, "10.0.4.8/31 gw 10.0.4.8 without [] to []"},
		"the static gateway":                 {`,"gatewayIndex":0`, `{"nodeName":"node2","prefix":"10.0.4.8/31","gateway":"10.0.4.9"}`, "10.0.4.8/31 gw 10.0.4.9 without [] to []"},
		"no gateway":                         {``, `{"nodeName":"node2","prefix":"10.0.4.8/31"}`, "10.0.4.8/31 gw  without [] to []"},
		"the index only":                     {`,"gatewayIndex":1`, `{"nodeName":"node2","prefix":"10.0.4.8/31"}`, "10.0.4.8/31 gw 10.0.4.9 without [] to []"},
		"the index 0 of a network":           {`,"gatewayIndex":0`, `{"nodeName":"node2","prefix":"10.0.4.0/24"}`, "10.0.4.0/24 gw  without [] to []"},
		"an index behind the prefix":         {`,"gatewayIndex":9`, `{"nodeName":"node2","prefix":"10.0.4.0/29"}`, "10.0.4.0/29 gw  without [] to []"},
		"IPv6":                               {`,"gatewayIndex":1`, `{"nodeName":"node2","prefix":"fd00:4::/64"}`, "fd00:4::/64 gw fd00:4::1 without [] to []"},
		"host bits":                          {``, `{"nodeName":"node2","prefix":"10.0.4.9/31"}`, "10.0.4.8/31 gw  without [] to []"},
		"exclusions":                         {`,"exclusions":[{"startIP":"10.0.4.250","endIP":"10.0.5.9"},{"startIP":"10.0.3.0","endIP":"10.0.4.4"},{"startIP":"10.0.9.0","endIP":"10.0.9.9"}]`, `{"nodeName":"node2","prefix":"10.0.4.0/24"}`, "10.0.4.0/24 gw  without [10.0.4.0/30 10.0.4.4/32 10.0.4.250/31 10.0.4.252/30] to []"},
		"the index of the broadcast address": {`,"gatewayIndex":3`, `{"nodeName":"node2","prefix":"10.0.4.0/30"}`, "10.0.4.0/30 gw  without [] to []"},
		"the last index of IPv6":             {`,"gatewayIndex":3`, `{"nodeName":"node2","prefix":"fd00::/126"}`, "fd00::/126 gw fd00::3 without [] to []"},
		"exclusions that overlap or touch":   {`,"exclusions":[{"startIP":"10.0.4.4","endIP":"10.0.4.6"},{"startIP":"10.0.4.0","endIP":"10.0.4.3"},{"startIP":"10.0.4.1","endIP":"10.0.4.2"}],"perNodeExclusions":[{"startIndex":6,"endIndex":7}]`, `{"nodeName":"node2","prefix":"10.0.4.0/24"}`, "10.0.4.0/24 gw  without [10.0.4.0/29] to []"},
		"exclusions to the end":              {`,"exclusions":[{"startIP":"255.255.255.254","endIP":"255.255.255.255"},{"startIP":"255.255.255.255","endIP":"255.255.255.255"}]`, `{"nodeName":"node2","prefix":"255.255.255.0/24"}`, "255.255.255.0/24 gw  without [255.255.255.254/31] to []"},
		"exclusions around it":               {`,"exclusions":[{"startIP":"10.0.0.0","endIP":"10.0.255.255"}]`, `{"nodeName":"node2","prefix":"10.0.4.0/24"}`, "10.0.4.0/24 gw  without [10.0.4.0/24] to []"},
		"another family":                     {`,"exclusions":[{"startIP":"fd00::","endIP":"fd00::9"}]`, `{"nodeName":"node2","prefix":"10.0.4.0/24"}`, "10.0.4.0/24 gw  without [] to []"},
		"exclusions of each node":            {`,"perNodeExclusions":[{"startIndex":0,"endIndex":2},{"startIndex":250,"endIndex":900},{"startIndex":900,"endIndex":901}]`, `{"nodeName":"node2","prefix":"10.0.4.0/24"}`, "10.0.4.0/24 gw  without [10.0.4.0/31 10.0.4.2/32 10.0.4.250/31 10.0.4.252/30] to []"},
		"routes":                             {`,"gatewayIndex":0,"defaultGateway":true,"routes":[{"dst":"10.0.0.0/8"}]`, `{"nodeName":"node2","prefix":"10.0.4.8/31"}`, "10.0.4.8/31 gw 10.0.4.8 without [] to [0.0.0.0/0 10.0.0.0/8]"},
		"a default route of IPv6":            {`,"gatewayIndex":1,"defaultGateway":true`, `{"nodeName":"node2","prefix":"fd00::/127"}`, "fd00::/127 gw fd00::1 without [] to [::/0]"},
	} {
		p, version, err := parse(object(c.spec, c.allocation), "node2")
		got := fmt.Sprintf("%s gw %s without %v to %v", p.Prefix, p.Gateway, p.Exclude, p.Routes)
		if err != nil || version != "7" || p.Name != "rail-0" || p.Namespace != "nv" || p.Problem != "" || got != c.want {
			t.Errorf("%s: %+v, %q, %v: %s, want %s", name, p, version, err, got, c.want)
		}
	}
}

func TestPoolsThatGiveTheNodeNothing(t *testing.T) {
	mine := `{"nodeName":"node2","prefix":"10.0.4.8/31"}`
	for name, c := range map[string]struct{ spec, allocation, want string }{
		"no allocation":           {``, `{"nodeName":"node3","prefix":"10.0.4.8/31"}`, "no allocation for the node"},
		"no prefix":               {``, `{"nodeName":"node2","prefix":"x"}`, `has the prefix "x"`},
		"a gateway elsewhere":     {``, `{"nodeName":"node2","prefix":"10.0.4.8/31","gateway":"10.0.4.7"}`, `its gateway "10.0.4.7" is not in`},
		"a gateway that is none":  {``, `{"nodeName":"node2","prefix":"10.0.4.8/31","gateway":"x"}`, `its gateway "x" is not in`},
		"the gateway alone":       {`,"gatewayIndex":0`, `{"nodeName":"node2","prefix":"10.0.4.8/32"}`, "the only address"},
		"an exclusion of nothing": {`,"exclusions":[{"startIP":"x","endIP":"y"}]`, mine, `"x" is not an address`},
		"an exclusion backwards":  {`,"exclusions":[{"startIP":"10.0.4.9","endIP":"10.0.4.8"}]`, mine, "is not a range"},
		"an exclusion of 2 kinds": {`,"exclusions":[{"startIP":"10.0.4.9","endIP":"fd00::"}]`, mine, "is not a range"},
		"an index backwards":      {`,"perNodeExclusions":[{"startIndex":2,"endIndex":1}]`, mine, "2 to 1 is not a range"},
		"a negative index":        {`,"perNodeExclusions":[{"startIndex":-2,"endIndex":1}]`, mine, "-2 to 1 is not a range"},
		"a value of another type": {`,"gatewayIndex":"zero"`, mine, "gatewayIndex"},
	} {
		p, _, err := parse(object(c.spec, c.allocation), "node2")
		if err != nil || p.Name != "rail-0" || p.Namespace != "nv" || p.Prefix != "" || !strings.Contains(p.Problem, c.want) {
			t.Errorf("%s: %+v, %v, want the problem %q", name, p, err, c.want)
		}
	}
	if _, _, err := parse([]byte("{"), "node2"); err == nil {
		t.Error("what is no JSON was read")
	}
}

func TestExclusionsAreBounded(t *testing.T) {
	exclusions := func(n int, of func(i int) string) string {
		var all []string
		for i := range n {
			all = append(all, of(i))
		}
		return `,"exclusions":[` + strings.Join(all, ",") + `]`
	}
	overlapping := func(i int) string { return fmt.Sprintf(`{"startIP":"::%x","endIP":"7fff::%x"}`, i+1, 2*i+1) }
	apart := func(i int) string { return fmt.Sprintf(`{"startIP":"1::%x:1","endIP":"1::%x:fffe"}`, i, i) }
	for name, c := range map[string]struct {
		spec    string
		cidrs   int
		problem string
	}{
		"overlapping":     {exclusions(1000, overlapping), 250, ""},
		"too many CIDRs":  {exclusions(100, apart), 0, "it excludes more than 1000 CIDRs"},
		"too many ranges": {exclusions(1001, overlapping), 0, "it has 1001 exclusions"},
	} {
		p, _, err := parse(object(c.spec, `{"nodeName":"node2","prefix":"::/1"}`), "node2")
		if err != nil || len(p.Exclude) > c.cidrs || (p.Problem == "") != (len(p.Exclude) > 0) || !strings.HasPrefix(p.Problem, c.problem) || (c.problem == "") != (p.Problem == "") {
			t.Errorf("%s: %d CIDRs, %q, %v", name, len(p.Exclude), p.Problem, err)
		}
	}
}

// FuzzPool: whatever an object says, the addresses that it excludes are in the prefix.
func FuzzPool(f *testing.F) {
	f.Add(`,"exclusions":[{"startIP":"10.0.4.250","endIP":"10.0.5.9"}]`, `{"nodeName":"node2","prefix":"10.0.4.0/24"}`)
	f.Add(`,"perNodeExclusions":[{"startIndex":1,"endIndex":9223372036854775807}]`, `{"nodeName":"node2","prefix":"fd00::/64"}`)
	f.Add(`,"gatewayIndex":-1`, `{"nodeName":"node2","prefix":"::/0"}`)
	f.Fuzz(func(t *testing.T, spec, allocation string) {
		text := object(spec, allocation)
		p, _, err := parse(text, "node2")
		if err != nil || p.Prefix == "" {
			return
		}
		prefix := netip.MustParsePrefix(p.Prefix)
		for _, e := range p.Exclude {
			if block := netip.MustParsePrefix(e); block.Bits() < prefix.Bits() || !prefix.Contains(block.Addr()) {
				t.Fatalf("%s is not in %s: %s", block, prefix, text)
			}
		}
		if p.Gateway != "" && !prefix.Contains(netip.MustParseAddr(p.Gateway)) {
			t.Fatalf("the gateway %s is not in %s", p.Gateway, prefix)
		}
		if !json.Valid(text) {
			t.Fatal("read what is no JSON")
		}
	})
}
