package whereabouts

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/allocate"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/config"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
)

// values are the values of a key: mostly good ones, so that most configs get
// past the first error.
type values struct{ good, odd []string }

func (v values) any(rnd *rand.Rand) string {
	if rnd.IntN(25) == 0 {
		return v.odd[rnd.IntN(len(v.odd))]
	}
	return v.good[rnd.IntN(len(v.good))]
}

var (
	cidrs = values{
		good: []string{
			"10.0.0.0/24", "10.0.1.77/24", "010.001.00.0/024", "192.168.2.225/28", "10.0.2.5-10.0.2.20/24", "010.0.0.5-10.0.0.020/24",
			"10.0.0.30-10.0.0.20/24", "10.0.0.0/32", "2001:db8::/64", "2001:db8::5-2001:db8::ff/64", "2001:0db8::00005/112",
			"::ffff:10.0.0.0/120", "::ffff:10.0.0.0/90", "::/0", "0.0.0.0/0",
		},
		odd: []string{
			"10.0.1.5-10.0.0.20/24", "10.0.0.5-10.0.0.20", "10.0.0.5 - 10.0.0.20/24", "10.0.0.0", "10.0.0.0/33", "fe80::1%eth0/64", "-10.0.0.5/24",
			"10.0.0.5-", "x", "0x10.0.0.0/24", "10.0.0.256/24", "10.0.0/24", "2001:db8::/129", "10.0.0.0/+24", "10.0.0.0/24/24", "10.0.0.0/024x",
		},
	}
	addrs = values{
		good: []string{
			"10.0.0.9", "010.000.0.09", "10.0.0.0", "2001:db8::9", "2001:0db8::0009", "::ffff:10.0.0.9", "10.0.0.0000000000000000009", "::00001",
			"1:2:3:4:5:6:7::", "::1.2.3.04",
		},
		odd: []string{"", "x", "10.0.0.300", "10.0.0.9/24", "fe80::1%eth0", "1.2.3", "::12345", "1:2:3:4:5:6:7:8::", "1.2.3.4.5", ":", "1::2::3"},
	}
	strict   = values{good: []string{"10.0.0.9", "10.0.1.9", "2001:db8::9", ""}, odd: addrs.good}
	excludes = values{
		good: []string{"10.0.0.0/28", "10.0.0.5", "10.0.0.5/24", "2001:db8::/80", "2001:db8::5", "10.0.0.0/028", "::ffff:10.0.0.0/120"},
		odd:  []string{"10.0.0.05", "010.0.0.0/24", "10.0.0.5-10.0.0.9", "x", ""},
	}
	statics  = values{good: []string{"10.5.0.5/16", "010.5.0.05/16", "2001:db8:5::5/64"}, odd: []string{"10.5.0.5", "x", ""}}
	versions = values{good: []string{"1.0.0", "0.3.1"}, odd: []string{"0.2.0", ""}}
	cniArgs  = values{
		good: []string{
			"", "K8S_POD_NAME=p;K8S_POD_NAMESPACE=ns", "IgnoreUnknown=true;FOO=bar", "IP=10.6.0.5/24", "IP=10.6.0.5/24, 2001:db8:6::5/64;GATEWAY=10.6.0.1",
			"GATEWAY=10.5.0.1,2001:db8:5::1", "IP=010.06.0.5/024", "K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_NAME=p", "GATEWAY=010.5.0.1;IP=",
		},
		odd: []string{"FOO=bar", "IP=10.6.0.5", "IP=x", "GATEWAY=x", "IP", "=", ";", "IgnoreUnknown=maybe", "IgnoreUnknown=1;K8S_POD_NAME=="},
	}
)

// oneOf makes values of good ones only.
func oneOf(good ...string) values { return values{good: good, odd: good} }

// pick adds a random value of list under key, sometimes in other case.
func pick(rnd *rand.Rand, object map[string]any, key string, list values, oneIn int) {
	if rnd.IntN(oneIn) == 0 {
		if rnd.IntN(10) == 0 {
			key = strings.ToUpper(key)
		}
		object[key] = list.any(rnd)
	}
}

func picks(rnd *rand.Rand, list values) []string {
	var some []string
	for range rnd.IntN(3) {
		some = append(some, list.any(rnd))
	}
	return some
}

// ipamObject makes a random "ipam" object or flat file.
func ipamObject(rnd *rand.Rand, rare int) map[string]any {
	o := map[string]any{}
	pick(rnd, o, "range", cidrs, rare)
	pick(rnd, o, "range_start", addrs, 2*rare)
	pick(rnd, o, "range_end", addrs, 2*rare)
	pick(rnd, o, "gateway", addrs, 2*rare)
	pick(rnd, o, "network_name", oneOf("n", ""), 2*rare)
	pick(rnd, o, "node_slice_size", oneOf("/26", "26", ""), 3*rare)
	pick(rnd, o, "log_level", oneOf("error", "panic"), 2*rare)
	if rnd.IntN(2*rare) == 0 {
		o["exclude"] = picks(rnd, excludes)
	}
	if rnd.IntN(2*rare) == 0 {
		var list []any
		for range rnd.IntN(3) {
			r := map[string]any{}
			pick(rnd, r, "range", cidrs, 1)
			pick(rnd, r, "range_start", strict, 4)
			pick(rnd, r, "range_end", strict, 4)
			if rnd.IntN(3) == 0 {
				r["exclude"] = picks(rnd, excludes)
			}
			list = append(list, r)
		}
		o["ipRanges"] = list
	}
	if rnd.IntN(3*rare) == 0 {
		var list []any
		for range rnd.IntN(3) {
			a := map[string]any{"address": statics.any(rnd)}
			pick(rnd, a, "gateway", strict, 3)
			list = append(list, a)
		}
		o["addresses"] = list
	}
	if rnd.IntN(3*rare) == 0 {
		o["enable_overlapping_ranges"] = rnd.IntN(2) == 0
	}
	if rnd.IntN(4*rare) == 0 {
		o["dns"] = []any{
			map[string]any{"nameservers": []string{"1.1.1.1"}}, map[string]any{"domain": "d", "search": []string{"s"}}, map[string]any{}, "x",
		}[rnd.IntN(40)%4]
	}
	if rnd.IntN(4*rare) == 0 {
		o["routes"] = []any{
			[]any{map[string]any{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}}, []any{map[string]any{"dst": "x"}}, []any{}, []any{map[string]any{"dst": "::/0", "priority": 5}},
		}[rnd.IntN(4)]
	}
	if rnd.IntN(20*rare) == 0 {
		o["leader_lease_duration"] = []any{1500, -1, "x", 1.5}[rnd.IntN(4)]
	}
	if rnd.IntN(20*rare) == 0 {
		o[[]string{"etcd_host", "datastore", "unknown", "reconciler_cron_expression"}[rnd.IntN(4)]] = []any{"x", 7}[rnd.IntN(2)]
	}
	return o
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestConfigsAreReadAsTheyReadThem compares random configs, with a random flat
// file each. The flat file always has a kubeconfig, because whereabouts refuses
// one without.
func TestConfigsAreReadAsTheyReadThem(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 1))
	flatPath := filepath.Join(t.TempDir(), "whereabouts.conf")
	accepted, refused, ours := 0, 0, map[string]int{}
	for range rounds / 2 {
		object := ipamObject(rnd, 1)
		object["type"] = "whereabouts"
		flat := ipamObject(rnd, 4)
		flat["kubernetes"] = map[string]any{"kubeconfig": "/flat"}
		if rnd.IntN(3) == 0 {
			object["kubernetes"] = map[string]any{"kubeconfig": "/inline", "k8s_api_root": "x"}
		}
		if err := os.WriteFile(flatPath, marshal(t, flat), 0o600); err != nil {
			t.Fatal(err)
		}
		stdin := marshal(t, map[string]any{"cniVersion": versions.any(rnd), "name": "net", "type": "macvlan", "ipam": object})
		args := cniArgs.any(rnd)
		theirs, _, theirErr := config.LoadIPAMConfig(stdin, args, flatPath)
		got, ourErr := ipamconf.ParseWhereabouts(stdin, args, []string{flatPath})
		if theirErr == nil && ourErr != nil {
			why := divergence(theirs, ourErr)
			if why == "" {
				t.Fatalf("%s\nflat %s\nargs %s\nthey accept it, ours: %v", stdin, marshal(t, flat), args, ourErr)
			}
			ours[why]++
			continue
		}
		if theirErr != nil {
			refused++
			if ourErr == nil {
				t.Fatalf("%s\nflat %s\nargs %s\nwe accept it, theirs: %v", stdin, marshal(t, flat), args, theirErr)
			}
			continue
		}
		accepted++
		if a, b := describeTheirs(theirs), describeOurs(got); !reflect.DeepEqual(a, b) {
			t.Fatalf("%s\nflat %s\nargs %s\ntheirs %v\nours   %v", stdin, marshal(t, flat), args, a, b)
		}
	}
	t.Logf("%d accepted by both, %d refused by both, refused by ours alone: %v", accepted, refused, ours)
	if accepted < rounds/8 || refused < rounds/20 {
		t.Error("no fair sample")
	}
}

// divergence returns the good reason why ours refuses a config that they
// accept, "" if there is none.
func divergence(theirs *types.IPAMConfig, err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "could not parse exclude range"):
		// They notice at allocation. So there must be a range with an address.
		for _, r := range theirs.IPRanges {
			if _, _, err := allocate.AssignIP(r, nil, "id", "ns/pod", "net1"); err != nil {
				return "a bad exclude entry is refused before anything is allocated"
			}
		}
	case strings.Contains(text, "two ranges lie in the pool"):
		// They assign the interface one address twice, which no kernel accepts.
		seen := map[string]bool{}
		for _, r := range theirs.IPRanges {
			if seen[r.Range] {
				return "a pool named twice"
			}
			seen[r.Range] = true
		}
	case strings.Contains(text, "does not support more than 1 address per family"):
		// They count the static addresses only, and drop the others silently.
		if len(theirs.IPRanges)+len(theirs.Addresses) > 1 {
			return "more dynamic addresses than an old result can carry"
		}
	}
	return ""
}

// describeTheirs and describeOurs write a config in the same form.
func describeTheirs(c *types.IPAMConfig) []string {
	d := []string{
		"gateway " + text(c.Gateway), "name " + c.NetworkName, "kubeconfig " + c.Kubernetes.KubeConfigPath, "overlapping " + fmt.Sprint(c.OverlappingRanges),
		"slice " + strings.TrimPrefix(c.NodeSliceSize, "/"), "log " + c.LogLevel, fmt.Sprintf("dns %+v", c.DNS), fmt.Sprint("routes ", c.Routes),
	}
	if c.PodName != "" {
		d = append(d, "pod "+c.GetPodRef())
	}
	for _, r := range c.IPRanges {
		start := text(r.RangeStart)
		if _, n, err := net.ParseCIDR(r.Range); err == nil && start == n.IP.String() {
			start = "" // their value if there is no bound
		}
		d = append(d, fmt.Sprintf("range %s %s %s %q", r.Range, start, text(r.RangeEnd), slices.Clip(append([]string{}, r.OmitRanges...))))
	}
	for _, a := range c.Addresses {
		ones, _ := a.Address.Mask.Size()
		d = append(d, fmt.Sprintf("static %s/%d %s", a.Address.IP, ones, text(a.Gateway)))
	}
	return d
}

func describeOurs(c *ipamconf.Whereabouts) []string {
	slice := ""
	if c.NodeSliceSize != 0 {
		slice = fmt.Sprint(c.NodeSliceSize)
	}
	d := []string{
		"gateway " + ourText(c.Gateway), "name " + c.NetworkName, "kubeconfig " + c.Kubeconfig, "overlapping " + fmt.Sprint(c.Overlapping),
		"slice " + slice, "log " + c.LogLevel, fmt.Sprintf("dns %+v", c.DNS), fmt.Sprint("routes ", c.Routes),
	}
	if ref := c.Pod.Ref(); ref != "" {
		d = append(d, "pod "+ref)
	}
	for _, r := range c.Ranges {
		start := ourText(r.Start)
		if r.Start == r.Prefix.Addr() {
			start = ""
		}
		d = append(d, fmt.Sprintf("range %s %s %s %q", r.Prefix, start, ourText(r.End), append([]string{}, r.ExcludeText...)))
	}
	for _, s := range c.Static {
		d = append(d, fmt.Sprintf("static %s %s", s.Address, ourText(s.Gateway)))
	}
	return d
}

func text(ip net.IP) string {
	if ip == nil {
		return ""
	}
	return ip.String()
}

func ourText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// Divergence: without any flat file whereabouts refuses the config.
func TestDivergenceNoFlatFileIsNeeded(t *testing.T) {
	stdin := []byte(`{"cniVersion":"1.0.0","name":"net","ipam":{"type":"whereabouts","range":"10.0.0.0/24","kubernetes":{"kubeconfig":"/k"}}}`)
	if _, _, err := config.LoadIPAMConfig(stdin, ""); err == nil {
		t.Fatal("this machine has a flat file of whereabouts, below /etc/cni/net.d or /etc/kubernetes: test where it is not installed")
	}
	if _, err := ipamconf.ParseWhereabouts(stdin, "", nil); err != nil {
		t.Error(err)
	}
}

// Divergence: whereabouts refuses a pod's UID, which every Kubernetes runtime
// sends, as an unknown key.
func TestDivergencePodUIDIsKnown(t *testing.T) {
	stdin := []byte(`{"name":"net","ipam":{"type":"whereabouts"}}`)
	const args = "K8S_POD_UID=u;MAC=02:00:00:00:00:01"
	if _, _, err := config.LoadIPAMConfig(stdin, args); err == nil || !strings.Contains(err.Error(), "K8S_POD_UID") {
		t.Errorf("theirs: %v", err)
	}
	if c, err := ipamconf.ParseWhereabouts(stdin, args, nil); err != nil || c.Pod.UID != "u" {
		t.Errorf("ours: %v", err)
	}
}

// Divergence: a null route is meaningless and is refused; whereabouts passes it
// on.
func TestDivergenceNullRouteIsRefused(t *testing.T) {
	stdin := []byte(`{"name":"net","ipam":{"type":"whereabouts","routes":[null]}}`)
	if _, err := ipamconf.ParseWhereabouts(stdin, "", nil); err == nil {
		t.Error("accepted")
	}
}
