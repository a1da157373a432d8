package ipamconf

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
)

// network puts an ipam object into a network config.
func network(ipam string) []byte {
	return []byte(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":` + ipam + `}`)
}

func parseOK(t *testing.T, ipam, args string) *Whereabouts {
	t.Helper()
	c, err := ParseWhereabouts(network(ipam), args, nil)
	if err != nil {
		t.Fatalf("%s: %v", ipam, err)
	}
	return c
}

func TestWhereaboutsReadsEveryRangeSyntax(t *testing.T) {
	for _, tc := range []struct{ ipam, prefix, start, end string }{
		{`{"range":"172.31.1.0/24"}`, "172.31.1.0/24", "", ""},
		{`{"range":"192.168.2.225/28"}`, "192.168.2.224/28", "", ""},
		{`{"range":"192.168.2.225/28","range_start":"192.168.2.230","range_end":"192.168.2.235"}`, "192.168.2.224/28", "192.168.2.230", "192.168.2.235"},
		{`{"range":"10.0.0.5-10.0.0.20/24"}`, "10.0.0.0/24", "10.0.0.5", "10.0.0.20"},
		{`{"range":"10.0.0.5-10.0.0.20/24","range_start":"10.0.0.7","range_end":"10.0.0.8"}`, "10.0.0.0/24", "10.0.0.5", "10.0.0.20"},
		{`{"range":"010.00.0.005-10.000.0.20/024"}`, "10.0.0.0/24", "10.0.0.5", "10.0.0.20"},
		{`{"range":"2001:db8::5-2001:db8::ffff/64"}`, "2001:db8::/64", "2001:db8::5", "2001:db8::ffff"},
		{`{"range":"::ffff:10.0.0.0/120"}`, "10.0.0.0/24", "", ""},
		{`{"range":"::ffff:0.0.0.0/96"}`, "0.0.0.0/0", "", ""},
		{`{"range":"2001:db8::/120"}`, "2001:db8::/120", "", ""},
		{`{"range":"10.0.0.09-10.0.0.20/24"}`, "10.0.0.0/24", "10.0.0.9", "10.0.0.20"},
		{`{"range":"fd00::0aaaa-fd00::0ffff/64"}`, "fd00::/64", "fd00::aaaa", "fd00::ffff"},
		{`{"range":"fd00::0AAAA-fd00::0FFFF/64"}`, "fd00::/64", "fd00::aaaa", "fd00::ffff"},
		{`{"range":"10.0.0.0/24","range_start":"nonsense","range_end":"10.0.0.999"}`, "10.0.0.0/24", "", ""},
		{`{"range":"10.0.0.0/24","range_start":"2001:db8::1"}`, "10.0.0.0/24", "2001:db8::1", ""},
		{`{"RANGE":"10.0.0.0/24","Range_Start":"10.0.0.9"}`, "10.0.0.0/24", "10.0.0.9", ""},
		{`{"ipRanges":[{"range":"10.0.0.5-10.0.0.9/24"}]}`, "10.0.0.0/24", "10.0.0.5", "10.0.0.9"},
		{`{"ipRanges":[{"range":"10.0.0.0/24","range_start":"10.0.0.5","range_end":""}]}`, "10.0.0.0/24", "10.0.0.5", ""},
	} {
		c := parseOK(t, tc.ipam, "")
		r := c.Ranges[0]
		text := func(a netip.Addr) string {
			if !a.IsValid() {
				return ""
			}
			return a.String()
		}
		if got := [3]string{r.Prefix.String(), text(r.Start), text(r.End)}; got != [3]string{tc.prefix, tc.start, tc.end} {
			t.Errorf("%s: got %v", tc.ipam, got)
		}
	}
}

func TestWhereaboutsPutsRangeBeforeIPRanges(t *testing.T) {
	c := parseOK(t, `{"range":"10.1.0.0/24","exclude":["10.1.0.0/28","10.1.0.77","::ffff:10.1.0.96/123"],"ipRanges":[{"range":"10.2.0.0/24","exclude":["10.2.0.5"]},{"range":"2001:db8::/64"}]}`, "")
	var got []string
	for _, r := range c.Ranges {
		got = append(got, r.Prefix.String()+" "+strings.Join(r.ExcludeText, ","))
	}
	want := []string{"10.1.0.0/24 10.1.0.0/28,10.1.0.77,::ffff:10.1.0.96/123", "10.2.0.0/24 10.2.0.5", "2001:db8::/64 "}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if e := c.Ranges[0].Exclude[1]; e != netip.MustParsePrefix("10.1.0.77/32") {
		t.Errorf("a single excluded address became %s", e)
	}
	if e := c.Ranges[0].Exclude[2]; e != netip.MustParsePrefix("10.1.0.96/27") {
		t.Errorf("an excluded IPv4-mapped CIDR became %s", e)
	}
}

func TestWhereaboutsWithoutRangesHasNoDynamicAddress(t *testing.T) {
	if c := parseOK(t, `{"type":"whereabouts"}`, ""); len(c.Ranges) != 0 {
		t.Errorf("ranges out of nothing: %v", c.Ranges)
	}
}

func TestWhereaboutsRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, config, args string
		code               uint
		text               string
	}{
		{"no JSON", `{"name":`, "", cnierr.Decode, "the network configuration is not a JSON object"},
		{"a number for a text", `{"ipam":{"range":5}}`, "", cnierr.Decode, `the network configuration: "ipam.range" cannot be a number; write it as a string`},
		{"a number for an address", `{"ipam":{"addresses":[{"gateway":7}]}}`, "", cnierr.Decode, "write it as a string"},
		{"a list of attachments", `{"cni.dev/attachments":{}}`, "", cnierr.Decode, `"cni.dev/attachments" cannot be an object; write it as a list`},
		{"null", `null`, "", cnierr.InvalidConfig, "IPAM config missing 'ipam' key"},
		{"no ipam", `{"name":"n"}`, "", cnierr.InvalidConfig, "IPAM config missing 'ipam' key"},
		{"blank in range", string(network(`{"range":"10.0.0.5 - 10.0.0.9/24"}`)), "", cnierr.InvalidConfig, "invalid range start IP: 10.0.0.5 "},
		{"start outside", string(network(`{"range":"192.168.1.5-192.168.2.25/28"}`)), "", cnierr.InvalidConfig, "invalid range start for CIDR 192.168.2.16/28: 192.168.1.5"},
		{"no length", string(network(`{"range":"10.0.0.0"}`)), "", cnierr.InvalidConfig, "invalid CIDR 10.0.0.0"},
		{"empty block", string(network(`{"ipRanges":[{}]}`)), "", cnierr.InvalidConfig, "invalid CIDR"},
		{"one pool twice", string(network(`{"range":"10.0.0.5/24","ipRanges":[{"range":"10.0.0.0/24"}]}`)), "", cnierr.InvalidConfig, "two ranges lie in the pool 10.0.0.0/24"},
		{"nested bounds are strict", string(network(`{"ipRanges":[{"range":"10.0.0.0/24","range_start":"10.0.0.05"}]}`)), "", cnierr.Decode, "10.0.0.05"},
		{"dash in exclude", string(network(`{"range":"10.0.0.0/24","exclude":["10.0.0.5-10.0.0.9"]}`)), "", cnierr.InvalidConfig, `"10.0.0.5-10.0.0.9"`},
		{"leading zero in exclude", string(network(`{"range":"10.0.0.0/24","exclude":["10.0.0.05"]}`)), "", cnierr.InvalidConfig, `"10.0.0.05"`},
		{"gateway with length", string(network(`{"gateway":"10.0.0.1/24"}`)), "", cnierr.InvalidConfig, "couldn't parse gateway IP: 10.0.0.1/24"},
		{"static without length", string(network(`{"addresses":[{"address":"10.0.0.1"}]}`)), "", cnierr.InvalidConfig, "10.0.0.1"},
		{"bad static gateway", string(network(`{"addresses":[{"address":"10.0.0.1/24","gateway":"x"}]}`)), "", cnierr.Decode, "x"},
		{"bad requested address", `{"ipam":{},"runtimeConfig":{"ips":["10.0.0.x"]}}`, "", cnierr.InvalidConfig, "10.0.0.x"},
		{"null route", string(network(`{"routes":[{"dst":"0.0.0.0/0"},null]}`)), "", cnierr.InvalidConfig, "routes[1]"},
		{"bad route", string(network(`{"routes":[{"dst":"x"}]}`)), "", cnierr.Decode, "x"},
		{"unknown store", string(network(`{"store":"etcd"}`)), "", cnierr.InvalidConfig, "etcd"},
		{"slice size", string(network(`{"node_slice_size":"/x"}`)), "", cnierr.InvalidConfig, "/x"},
		{"relative stateDir", `{"ipam":{},"stateDir":"run"}`, "", cnierr.InvalidConfig, `"run"`},
		{"unknown args", string(network(`{}`)), "FOO=bar", cnierr.InvalidEnv, "FOO=bar"},
		{"malformed args", string(network(`{}`)), "IP", cnierr.InvalidEnv, "IP"},
		{"bad IP in args", string(network(`{}`)), "IP=10.0.0.1", cnierr.InvalidEnv, "10.0.0.1"},
		{"bad GATEWAY in args", string(network(`{}`)), "GATEWAY=x", cnierr.InvalidEnv, "x"},
		{"two IPv4 at 0.2.0", `{"cniVersion":"0.2.0","ipam":{"addresses":[{"address":"10.0.0.1/24"},{"address":"10.0.0.2/24"}]}}`, "", cnierr.InvalidConfig, "does not support more than 1 address per family"},
		{"two IPv6 at 0.1.0", `{"cniVersion":"0.1.0","ipam":{"ipRanges":[{"range":"fd00::/64"}],"addresses":[{"address":"fd01::2/64"}]}}`, "", cnierr.InvalidConfig, "does not support more than 1 address per family"},
		{"two IPv4 ranges without version", `{"ipam":{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.0.1.0/24"}]}}`, "", cnierr.InvalidConfig, "does not support more than 1 address per family"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseWhereabouts([]byte(tc.config), tc.args, nil)
			if err == nil {
				t.Fatal("accepted")
			}
			if cnierr.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got code %d, %q; want code %d and %q in it", cnierr.Code(err), err, tc.code, tc.text)
			}
		})
	}
}

func TestWhereaboutsRefusesWrongTypesOfEveryKey(t *testing.T) {
	text := []string{
		"type", "range", "range_start", "range_end", "gateway", "network_name", "node_slice_size", "store", "allocation", "configuration_path",
		"log_file", "log_level", "datastore", "etcd_host", "etcd_username", "etcd_password", "etcd_key_file", "etcd_cert_file",
		"etcd_ca_cert_file", "reconciler_cron_expression",
	}
	wrong := map[string]string{
		"leader_lease_duration": `"x"`, "leader_renew_deadline": `"x"`, "leader_retry_period": `1.5`, "sleep_for_race": `true`,
		"enable_overlapping_ranges": `"true"`, "allow_gateway": `1`, "exclude": `"10.0.0.1"`, "ipRanges": `{}`, "routes": `"x"`,
		"dns": `[]`, "addresses": `{}`, "kubernetes": `"x"`,
	}
	for _, key := range text {
		wrong[key] = `7`
	}
	for key, value := range wrong {
		_, err := ParseWhereabouts(network(`{"`+key+`":`+value+`}`), "", nil)
		if failure.KindOf(err) != failure.Decode {
			t.Errorf("%s: %s: got %v", key, value, err)
		}
	}
}

func TestWhereaboutsTakesKeysWithoutEffectAndUnknownOnes(t *testing.T) {
	c := parseOK(t, `{"type":"whereabouts","range":"10.0.0.0/24","leader_lease_duration":1,"leader_renew_deadline":-5,"sleep_for_race":3,
		"datastore":"etcd","etcd_host":"x","kubernetes":{"k8s_api_root":"y"},"reconciler_cron_expression":"30 4 * * *","no_such_key":[1,{}]}`, "")
	if c.Kubeconfig != "" || c.Ranges[0].Prefix.Bits() != 24 {
		t.Errorf("got %+v", c)
	}
}

func TestWhereaboutsReadsArgs(t *testing.T) {
	c := parseOK(t, `{"addresses":[{"address":"10.0.0.1/24","gateway":"10.0.0.9"}]}`,
		"IgnoreUnknown=true;X=y;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=c;MAC=02:00:00:00:00:01;"+
			"IP= 10.0.1.5/24, 2001:db8::5/64;GATEWAY=10.0.1.1,2001:db8::1")
	if c.Pod.Ref() != "ns/pod" || c.Pod.UID != "u" {
		t.Errorf("pod %+v", c.Pod)
	}
	var got []string
	for _, s := range c.Static {
		got = append(got, s.Address.String()+" "+s.Gateway.String())
	}
	want := []string{"10.0.0.1/24 10.0.0.9", "10.0.1.5/24 10.0.1.1", "2001:db8::5/64 2001:db8::1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if ref := parseOK(t, `{}`, "K8S_POD_NAMESPACE=ns").Pod.Ref(); ref != "" {
		t.Errorf("a namespace alone is no pod: %q", ref)
	}
}

func TestWhereaboutsJoinsRequestedAddresses(t *testing.T) {
	c, err := ParseWhereabouts([]byte(`{"ipam":{},"runtimeConfig":{"ips":["10.0.0.5/24","2001:db8::5"]},"args":{"cni":{"ips":["10.0.0.5","10.0.1.6"]}}}`), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("2001:db8::5"), netip.MustParseAddr("10.0.1.6")}
	if !reflect.DeepEqual(c.Requested, want) {
		t.Errorf("got %v, want %v", c.Requested, want)
	}
}

// TestWhereaboutsHearsARequestOnce: Multus passes the "ips" of a pod in
// runtimeConfig, if the network has the capability, and always in CNI_ARGS.
func TestWhereaboutsHearsARequestOnce(t *testing.T) {
	c, err := ParseWhereabouts([]byte(`{"ipam":{},"runtimeConfig":{"ips":["10.0.0.5/24","10.0.0.6"]}}`), "IP=10.0.0.5/24,10.0.0.6,10.0.0.7/24", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Requested) != 2 || len(c.Static) != 1 || c.Static[0].Address.String() != "10.0.0.7/24" {
		t.Errorf("requested %v, static %v", c.Requested, c.Static)
	}
}

func TestWhereaboutsTellsAbsentAttachmentsFromNone(t *testing.T) {
	for _, tc := range []struct {
		keys string
		want int // -1: absent
	}{
		{``, -1},
		{`,"cni.dev/valid-attachments":null`, -1},
		{`,"cni.dev/valid-attachments":[]`, 0},
		{`,"cni.dev/attachments":[]`, 0},
		{`,"cni.dev/attachments":[{"containerID":"a","ifname":"b"}]`, 1},
		{`,"cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"},{}],"cni.dev/attachments":[]`, 2},
	} {
		c, err := ParseWhereabouts([]byte(`{"ipam":{}`+tc.keys+`}`), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		got := -1
		if list, sent := c.Valid(); sent {
			got = len(list)
		}
		if got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.keys, got, tc.want)
		}
	}
}

func TestWhereaboutsStateDir(t *testing.T) {
	for in, want := range map[string]string{``: "/run/rail-cni", `,"stateDir":"/var/lib/x/../y/"`: "/var/lib/y", `,"statedir":"/z"`: "/z"} {
		c, err := ParseWhereabouts([]byte(`{"ipam":{}`+in+`}`), "", nil)
		if err != nil || c.StateDir != want {
			t.Errorf("%s: got %q, %v", in, c.StateDir, err)
		}
	}
}

// flat writes flat files into a new directory and returns their paths.
func flat(t *testing.T, contents ...string) []string {
	t.Helper()
	var paths []string
	for i, content := range contents {
		path := filepath.Join(t.TempDir(), "whereabouts.conf")
		if content != "absent" {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		paths = append(paths, path)
	}
	return paths
}

func TestFlatFileFillsEmptyKeysOnly(t *testing.T) {
	files := flat(t, "absent", `{
		"range":"10.9.0.0/24","range_start":"10.9.0.5","exclude":["10.9.0.6"],"gateway":"10.9.0.1","allow_gateway":true,"allocation":"rotate",
		"kubernetes":{"kubeconfig":"/flat"},"network_name":"flat","store":"local","log_file":"/flat.log","log_level":"debug",
		"dns":{"nameservers":["1.1.1.1"],"domain":"flat"},"routes":[{"dst":"0.0.0.0/0"}],"enable_overlapping_ranges":false,
		"addresses":[{"address":"10.8.0.1/24"}],"node_slice_size":"26","ipRanges":[{"range":"10.7.0.0/24"}]}`, `{"gateway":"6.6.6.6"}`)
	c, err := ParseWhereabouts(network(`{}`), "", files)
	if err != nil {
		t.Fatal(err)
	}
	if c.FlatFile != files[1] {
		t.Errorf("used %q, want the first that exists", c.FlatFile)
	}
	if !c.Overlapping {
		t.Error("the flat file must not decide about overlapping ranges")
	}
	got := []any{
		len(c.Ranges),
		c.Ranges[0].Prefix.String(), c.Ranges[0].Start.String(), c.Ranges[0].ExcludeText, c.Ranges[1].Prefix.String(), c.Gateway.String(), c.AllowGateway,
		c.Rotate, c.Kubeconfig, c.NetworkName, c.Store, c.LogFile, c.LogLevel, c.DNS.Domain, len(c.Routes), len(c.Static), c.NodeSliceSize,
	}
	want := []any{
		2,
		"10.9.0.0/24", "10.9.0.5",
		[]string{"10.9.0.6"},
		"10.7.0.0/24", "10.9.0.1", true,
		true, "/flat", "flat", "local", "/flat.log", "debug", "flat", 1, 1, 26,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}

	c, err = ParseWhereabouts(network(`{"range":"10.0.0.0/24","range_start":"nonsense","range_end":"10.0.0.50","exclude":["10.0.0.9"],"gateway":"10.0.0.1",
		"kubernetes":{"kubeconfig":"/own"},"network_name":"own","dns":{"nameservers":["8.8.8.8"]},"routes":[{"dst":"10.0.0.0/8"},{"dst":"11.0.0.0/8"}]}`), "", files)
	if err != nil {
		t.Fatal(err)
	}
	got = []any{
		c.Ranges[0].Prefix.String(), c.Ranges[0].Start.String(), c.Ranges[0].ExcludeText, c.Gateway.String(), c.Kubeconfig, c.NetworkName,
		c.DNS.Nameservers, c.DNS.Domain, len(c.Routes),
	}
	want = []any{"10.0.0.0/24", "10.9.0.5", []string{"10.0.0.9"}, "10.0.0.1", "/own", "own", []string{"8.8.8.8"}, "flat", 2}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestFlatFileRangeGoesBeforeInlineIPRanges(t *testing.T) {
	files := flat(t, `{"range":"10.9.0.0/24"}`)
	c, err := ParseWhereabouts(network(`{"ipRanges":[{"range":"10.1.0.0/24"}]}`), "", files)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Ranges) != 2 || c.Ranges[0].Prefix.String() != "10.9.0.0/24" {
		t.Errorf("got %v", c.Ranges)
	}
}

func TestConfigurationPathIsTriedFirst(t *testing.T) {
	files := flat(t, `{"gateway":"10.0.0.1"}`, `{"gateway":"10.0.0.2"}`)
	dir := t.TempDir()
	for path, want := range map[string]string{files[0]: "10.0.0.1", dir: "10.0.0.2", filepath.Join(dir, "none"): "10.0.0.2", filepath.Join(files[0], "x"): "10.0.0.2"} {
		quoted, err := json.Marshal(path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseWhereabouts(network(`{"configuration_path":`+string(quoted)+`}`), "", files[1:])
		if err != nil || c.Gateway.String() != want {
			t.Errorf("%s: got %v, %v, want %s", path, c.Gateway, err, want)
		}
	}
}

func TestBrokenFlatFileIsAnErrorThatNamesIt(t *testing.T) {
	for _, content := range []string{`{"range":`, `{"range":7}`, ``, `[]`} {
		files := flat(t, content)
		_, err := ParseWhereabouts(network(`{}`), "", files)
		if failure.KindOf(err) != failure.Decode || !strings.Contains(err.Error(), files[0]) {
			t.Errorf("%q: got %v", content, err)
		}
	}
}

func FuzzParseWhereabouts(f *testing.F) {
	for _, seed := range []string{
		`{"range":"172.31.1.0/24","gateway":"172.31.1.1"}`,
		`{"range":"010.0.0.5-10.0.0.020/024","exclude":["10.0.0.8/30","10.0.0.7"]}`,
		`{"ipRanges":[{"range":"2001:db8::/64","range_start":"2001:db8::5"}],"routes":[{"dst":"::/0","gw":"2001:db8::1"}]}`,
		`{"addresses":[{"address":"10.0.0.1/24","gateway":"10.0.0.9"}],"dns":{"nameservers":["1.1.1.1"]},"node_slice_size":"/26"}`,
		`{"range":"::ffff:10.0.0.0/120","store":"local","kubernetes":{"kubeconfig":"/k"},"network_name":"n"}`,
		`{"range":"0.0.0.0/0","exclude":["::ffff:0.0.0.0/95","255.255.255.255"]}`,
	} {
		f.Add([]byte(seed), "IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_NAMESPACE=n;IP=10.0.0.1/8,2001:db8::1/64;GATEWAY=10.0.0.2", []byte(seed))
	}
	f.Add([]byte(`null`), ";=;", []byte(`null`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, ipam []byte, args string, flatFile []byte) {
		path := filepath.Join(dir, "flat")
		if err := os.WriteFile(path, flatFile, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ParseWhereabouts(network(string(ipam)), args, []string{path})
		if err != nil {
			if failure.KindOf(err) == failure.Internal {
				t.Errorf("an error without a code: %v", err)
			}
			return
		}
		for _, r := range c.Ranges {
			if r.Prefix != r.Prefix.Masked() || r.Prefix.Addr().Is4In6() && r.Prefix.Bits() >= 96 {
				t.Errorf("range %v is not canonical", r)
			}
		}
		for _, r := range c.Routes {
			if r == nil {
				t.Error("a nil route")
			}
		}
	})
}

func TestWhereaboutsOfAnOldVersionHasOneAddressPerFamily(t *testing.T) {
	c, err := ParseWhereabouts([]byte(`{"cniVersion":"0.2.0","ipam":{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"fd00::/64"}]}}`), "", nil)
	if err != nil || len(c.Ranges) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestSizesOfBlocksAndSlices(t *testing.T) {
	for keys, want := range map[string]string{
		`"range":"10.0.0.0/16"`:                                           "0 0",
		`"range":"10.0.0.0/16","block_size":2`:                            "2 0",
		`"range":"10.0.0.0/16","block_size":4096`:                         "4096 0",
		`"range":"10.0.0.0/28","block_size":16`:                           "16 0",
		`"range":"fd00::/64","block_size":16`:                             "16 0",
		`"range":"10.0.0.0/16","block_size":1`:                            "block_size 1 is not a power of two from 2 to 4096",
		`"range":"10.0.0.0/16","block_size":-2`:                           "block_size -2 is not",
		`"range":"10.0.0.0/16","block_size":12`:                           "block_size 12 is not",
		`"range":"10.0.0.0/16","block_size":8192`:                         "block_size 8192 is not",
		`"range":"10.0.0.0/28","block_size":32`:                           "block_size 32 is larger than the range 10.0.0.0/28",
		`"range":"10.0.0.0/16","node_slice_size":"1"`:                     "0 1",
		`"range":"fd00::/64","node_slice_size":"/128"`:                    "0 128",
		`"range":"10.0.0.0/16","node_slice_size":"0"`:                     `node_slice_size "0" is not a prefix length`,
		`"range":"fd00::/64","node_slice_size":"/129"`:                    `node_slice_size "/129" is not`,
		`"range":"10.0.0.0/16","node_slice_size":"/99999999999999999999"`: "is not a prefix length",
		`"range":"10.0.0.0/16","node_slice_size":"26","block_size":16`:    "both divide the range",
	} {
		c, err := ParseWhereabouts(network(`{`+keys+`}`), "", nil)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(c.BlockSize, c.NodeSliceSize)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", keys, got, want)
		}
	}
	files := flat(t, `{"block_size":16}`)
	for keys, want := range map[string]int{``: 16, `,"block_size":32`: 32} {
		c, err := ParseWhereabouts(network(`{"range":"10.0.0.0/16"`+keys+`}`), "", files)
		if err != nil || c.BlockSize != want {
			t.Errorf("with a flat file%s: %+v, %v", keys, c, err)
		}
	}
}

func TestWhereaboutsAllocation(t *testing.T) {
	for text, want := range map[string]bool{`"lowest"`: false, `"rotate"`: true, `""`: false} {
		c, err := ParseWhereabouts(network(`{"range":"10.0.0.0/24","allocation":`+text+`}`), "", nil)
		if err != nil || c.Rotate != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	_, err := ParseWhereabouts(network(`{"range":"10.0.0.0/24","allocation":"random"}`), "", nil)
	if failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), `"rotate"`) {
		t.Errorf("got %v", err)
	}
}
