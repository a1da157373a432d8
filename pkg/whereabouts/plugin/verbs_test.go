package plugin

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// same compares JSON without regard to layout.
func same(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestResultInEveryVersion(t *testing.T) {
	const ipam = `{"type":"whereabouts","range":"172.31.1.0/24","gateway":"172.31.1.1","ipRanges":[{"range":"2001:db8::/64"}],
		"routes":[{"dst":"10.0.0.0/8","gw":"172.31.1.9"},{"dst":"2001:db8:1::/48"}],"dns":{"nameservers":["1.1.1.1"]}}`
	const old = `{"cniVersion":"VERSION","ip4":{"ip":"172.31.1.2/24","gateway":"172.31.1.1","routes":[{"dst":"10.0.0.0/8","gw":"172.31.1.9"}]},
		"ip6":{"ip":"2001:db8::1/64","routes":[{"dst":"2001:db8:1::/48"}]},"dns":{"nameservers":["1.1.1.1"]}}`
	const middle = `{"cniVersion":"VERSION","ips":[{"version":"4","address":"172.31.1.2/24","gateway":"172.31.1.1"},{"version":"6","address":"2001:db8::1/64"}],
		"routes":[{"dst":"10.0.0.0/8","gw":"172.31.1.9"},{"dst":"2001:db8:1::/48"}],"dns":{"nameservers":["1.1.1.1"]}}`
	const recent = `{"cniVersion":"VERSION","ips":[{"address":"172.31.1.2/24","gateway":"172.31.1.1"},{"address":"2001:db8::1/64"}],
		"routes":[{"dst":"10.0.0.0/8","gw":"172.31.1.9"},{"dst":"2001:db8:1::/48"}],"dns":{"nameservers":["1.1.1.1"]}}`
	for version, want := range map[string]string{
		"": strings.Replace(old, "VERSION", "0.1.0", 1), "0.1.0": old, "0.2.0": old, "0.3.0": middle, "0.3.1": middle, "0.4.0": middle, "1.0.0": recent, "1.1.0": recent,
	} {
		t.Run(version, func(t *testing.T) {
			n := newNode(t)
			a := attachment{id: "c1", ifname: "net1"}
			config := n.configAt(version, ipam)
			same(t, n.add(a, config), strings.Replace(want, "VERSION", version, 1))
			n.del(a, config)
			n.checkEmpty("after DEL")
		})
	}
}

func TestGatewayIsNotHandedOutUnlessAllowed(t *testing.T) {
	for ipam, want := range map[string]string{
		`{"range":"172.31.1.0/24","gateway":"172.31.1.1"}`:                            "172.31.1.2/24",
		`{"range":"172.31.1.0/24","gateway":"172.31.1.1","allow_gateway":true}`:       "172.31.1.1/24",
		`{"range":"172.31.1.0/24","routes":[{"dst":"0.0.0.0/0","gw":"172.31.1.1"}]}`:  "172.31.1.2/24",
		`{"range":"172.31.1.0/24","routes":[{"dst":"0.0.0.0/0","gw":"172.31.1.2"}]}`:  "172.31.1.1/24",
		`{"range":"2001:db8::/64","gateway":"2001:db8::1"}`:                           "2001:db8::2/64",
		`{"range":"172.31.1.0/24","gateway":"172.31.001.1","exclude":["172.31.1.2"]}`: "172.31.1.3/24",
	} {
		n := newNode(t)
		if got := addresses(t, n.add(attachment{id: "c1", ifname: "net1"}, n.config(ipam))); !reflect.DeepEqual(got, []string{want}) {
			t.Errorf("%s: got %v, want %s", ipam, got, want)
		}
	}
}

func TestStaticAddressesFollowDynamicOnes(t *testing.T) {
	n := newNode(t)
	a := attachment{id: "c1", ifname: "net1", args: "IP=10.1.0.5/24;GATEWAY=10.1.0.1"}
	out := n.add(a, n.config(`{"addresses":[{"address":"10.2.0.7/16","gateway":"10.2.0.1"}],"ipRanges":[{"range":"10.0.0.0/24"}]}`))
	same(t, out, `{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.1/24"},{"address":"10.2.0.7/16","gateway":"10.2.0.1"},{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}`)
}

func TestNoRangeIsSuccessWithoutAddress(t *testing.T) {
	n := newNode(t)
	same(t, n.add(attachment{id: "c1", ifname: "net1"}, n.config(`{"type":"whereabouts"}`)), `{"cniVersion":"1.1.0"}`)
	n.checkEmpty("without a range")
}

func TestRequestedAddressIsHonored(t *testing.T) {
	n := newNode(t)
	const ipam = `{"range":"10.0.0.0/24","gateway":"10.0.0.1"}`
	config := n.config(ipam, `"runtimeConfig":{"ips":["10.0.0.77/24"]}`)
	if got := addresses(t, n.add(attachment{id: "c1", ifname: "net1"}, config)); got[0] != "10.0.0.77/24" {
		t.Errorf("got %v", got)
	}
	for _, tc := range []struct {
		ips, text string
		code      uint
	}{
		{`"runtimeConfig":{"ips":["10.0.0.77"]}`, "c1 holds it", 105},
		{`"args":{"cni":{"ips":["10.0.0.1"]}}`, "it is a gateway", 105},
		{`"args":{"cni":{"ips":["10.0.1.1"]}}`, "is in no range", 7},
		{`"args":{"cni":{"ips":["10.0.0.5","10.0.0.6"]}}`, "one address", 7},
	} {
		_, err := run(attachment{id: "c2", ifname: "net1"}.env("ADD"), n.config(ipam, tc.ips))
		if code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v", tc.ips, err)
		}
	}
}

func TestFailedAddLeavesNothing(t *testing.T) {
	n := newNode(t)
	for name, tc := range map[string]struct {
		config string
		code   uint
	}{
		"second range too small": {n.config(`{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.0.1.0/32"}]}`), 7},
		"second range full":      {n.config(`{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.0.1.0/30","exclude":["10.0.1.0/30"]}]}`), 105},
		"no result possible":     {n.configAt("0.2.0", `{}`), 999},
		"bad network name":       {n.config(`{"range":"10.0.0.0/24","network_name":"Bad"}`), 7},
		"node slices":            {n.config(`{"range":"10.0.0.0/16","node_slice_size":"/24"}`), 7},
	} {
		if _, err := run(attachment{id: "c1", ifname: "net1"}.env("ADD"), tc.config); code(err) != tc.code {
			t.Errorf("%s: %v", name, err)
		}
		n.checkEmpty(name)
	}
}

func TestAddWhoseReaderHasDiedLeavesNothing(t *testing.T) {
	n := newNode(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	defer write.Close()
	cmd := exec.Command(binary)
	cmd.Env = attachment{id: "c1", ifname: "net1"}.env("ADD")
	cmd.Stdin = strings.NewReader(n.config(`{"range":"10.0.0.0/24"}`))
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = write, &said
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%v: %s", err, &said)
	}
	n.checkEmpty("after an ADD whose reader has died")
}

func TestAddToOwnNetnsIsRefusedBeforeAnythingIsTaken(t *testing.T) {
	n := newNode(t)
	env := append(attachment{id: "c1", ifname: "net1"}.env("ADD"), "CNI_NETNS=/proc/self/ns/net")
	if _, err := run(env, n.config(`{"range":"10.0.0.0/24"}`)); code(err) != 8 {
		t.Errorf("got %v", err)
	}
	n.checkEmpty("after the refusal")
}

func TestStoreIsChosenAsDocumented(t *testing.T) {
	n := newNode(t)
	flat := filepath.Join(n.dir, "whereabouts.conf")
	if err := os.WriteFile(flat, []byte(`{"kubernetes":{"kubeconfig":"/k"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"
	const noServer = `"kubernetes":{"kubeconfig":"/k"}`
	for _, tc := range []struct {
		name, ipam, args string
		code             uint
		refused          string
		journalled       int // DELs that must wait
	}{
		{"no pod, no kubeconfig", `{"range":"10.0.0.0/24"}`, "", 0, "", 0},
		{"store local for a pod", `{"range":"10.0.0.0/24","store":"local"}`, pod, 0, "", 0},
		{"store local beats kubeconfig", `{"range":"10.0.0.0/24","store":"local",` + noServer + `}`, pod, 0, "", 0},
		{"pod without kubeconfig", `{"range":"10.0.0.0/24"}`, pod, 7, `"store": "local"`, 0},
		{"kubeconfig", `{"range":"10.0.0.0/24",` + noServer + `}`, pod, 7, "kubeconfig /k", 1},
		{"kubeconfig without pod", `{"range":"10.0.0.0/24",` + noServer + `}`, "", 4, "no pod name", 0},
		{"kubeconfig in the flat file", `{"range":"10.0.0.0/24","configuration_path":"` + flat + `"}`, pod, 7, "kubeconfig /k", 1},
		{"store kubernetes", `{"range":"10.0.0.0/24","store":"kubernetes"}`, pod, 7, "without a kubeconfig", 0},
		{"sameHost entry by entry", `{"range":"10.0.0.0/24","sameHost":true,"railRanges":["10.0.0.0/24"],` + noServer + `}`, pod, 7, `network net has "sameHost"`, 1},
		{"sameHost with blocks", `{"range":"10.0.0.0/24","sameHost":true,"railRanges":["10.0.0.0/24"],"block_size":16,` + noServer + `}`, pod, 7, "kubeconfig /k", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := attachment{id: "c1", ifname: "net1", args: tc.args}
			config := n.config(tc.ipam)
			_, err := run(a.env("ADD"), config)
			if tc.refused == "" && err != nil {
				t.Errorf("refused: %v", err)
			}
			if tc.refused != "" && (code(err) != tc.code || !strings.Contains(err.Error(), tc.refused)) {
				t.Errorf("got %v", err)
			}
			if _, err := run(a.env("STATUS"), config); (code(err) == 50) != (tc.refused != "") {
				t.Errorf("STATUS: %v", err)
			}
			n.del(a, config) // in any case
			journal, err := filepath.Glob(filepath.Join(n.dir, "ipam-journal", "*"))
			if err != nil || len(journal) != tc.journalled {
				t.Errorf("journal: %v, %v", journal, err)
			}
			if err := os.RemoveAll(filepath.Join(n.dir, "ipam-journal")); err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := os.Remove(flat); err != nil {
		t.Fatal(err)
	}
	n.checkEmpty("after all")
}

func TestDelWithABrokenConfigFreesTheAddress(t *testing.T) {
	for _, broken := range []string{
		`{"range":"nonsense"}`, `{"range":7}`, `{"exclude":["x"],"range":"10.0.0.0/24"}`, `{}`, `null`, `{"range":"10.7.0.0/24"}`,
		`{"range":"10.0.0.0/24","store":"local","prefix":"nv-ipam/rail-0"}`, // a former version's
	} {
		n := newNode(t)
		a := attachment{id: "c1", ifname: "net1"}
		n.add(a, n.config(`{"range":"10.0.0.0/24"}`))
		n.del(a, n.config(broken))
		n.checkEmpty(broken)
	}
	n := newNode(t)
	a := attachment{id: "c1", ifname: "net1"}
	n.add(a, n.config(`{"range":"10.0.0.0/24"}`))
	n.del(attachment{id: "c1", ifname: "net1", args: "UNKNOWN=1"}, n.config(`{"range":"10.0.0.0/24"}`))
	n.checkEmpty("unknown CNI_ARGS")
}

func TestCheck(t *testing.T) {
	n := newNode(t)
	a := attachment{id: "c1", ifname: "net1"}
	const ipam = `{"range":"10.0.0.0/24","addresses":[{"address":"10.1.0.5/24"}]}`
	result := n.add(a, n.config(ipam))
	prev := `"prevResult":` + result
	if _, err := run(a.env("CHECK"), n.config(ipam, prev)); err != nil {
		t.Errorf("right after ADD: %v", err)
	}
	for name, tc := range map[string]struct {
		a    attachment
		prev string
		code uint
	}{
		"no prevResult":            {a, `"x":1`, 7},
		"another address":          {a, strings.Replace(prev, "10.0.0.1/24", "10.0.0.2/24", 1), 107},
		"another mask":             {a, strings.Replace(prev, "10.0.0.1/24", "10.0.0.1/16", 1), 107},
		"static address missing":   {a, strings.Replace(prev, "10.1.0.5", "10.1.0.6", 1), 107},
		"another container":        {attachment{id: "c2", ifname: "net1"}, prev, 107},
		"another interface":        {attachment{id: "c1", ifname: "net2"}, prev, 107},
		"prevResult of nonsense":   {a, `"prevResult":{"cniVersion":"9.9.9"}`, 6},
		"prevResult without addrs": {a, `"prevResult":{"cniVersion":"1.1.0"}`, 107},
	} {
		if _, err := run(tc.a.env("CHECK"), n.config(ipam, tc.prev)); code(err) != tc.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := run(a.env("CHECK"), n.configAt("0.3.1", ipam, prev)); err == nil || !strings.Contains(err.Error(), "config version does not allow CHECK") {
		t.Errorf("at 0.3.1: %v", err)
	}
	n.del(a, n.config(ipam))
	if _, err := run(a.env("CHECK"), n.config(ipam, prev)); code(err) != 107 {
		t.Errorf("after DEL: %v", err)
	}
}

func TestGCTellsNoListFromAnEmptyOne(t *testing.T) {
	n := newNode(t)
	const ipam = `{"range":"10.0.0.0/24"}`
	kept, gone := attachment{id: "kept", ifname: "net1"}, attachment{id: "gone", ifname: "net1"}
	n.add(kept, n.config(ipam))
	n.add(gone, n.config(ipam))
	foreign := strings.Replace(n.config(ipam), `"name":"net"`, `"name":"other"`, 1)
	n.add(attachment{id: "foreign", ifname: "net1"}, foreign)
	records := func() int {
		found, err := filepath.Glob(filepath.Join(n.dir, "ipam/space/10.0.0.0_24/10.*.json"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	gc := attachment{}.env("GC")
	for _, step := range []struct {
		keys string
		left int
	}{
		{`"x":1`, 3},
		{`"cni.dev/valid-attachments":[{"containerID":"kept","ifname":"net1"}],"cni.dev/attachments":[]`, 2},
		{`"cni.dev/attachments":[]`, 1},
	} {
		if _, err := run(gc, n.config(ipam, step.keys)); err != nil {
			t.Fatalf("%s: %v", step.keys, err)
		}
		if got := records(); got != step.left {
			t.Errorf("%s: %d records, want %d", step.keys, got, step.left)
		}
	}
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	config := n.config(`{"range":"10.0.0.0/30","gateway":"10.0.0.2"}`)
	status := attachment{}.env("STATUS")
	if _, err := run(status, config); err != nil {
		t.Errorf("free: %v", err)
	}
	n.add(attachment{id: "c1", ifname: "net1"}, config)
	if _, err := run(status, config); code(err) != 50 || !strings.Contains(err.Error(), "Could not allocate IP in range") {
		t.Errorf("full: %v", err)
	}
	n.del(attachment{id: "c1", ifname: "net1"}, config)
	if err := os.WriteFile(filepath.Join(n.dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"state directory": strings.Replace(config, n.dir, n.dir+"/x", 1),
		"config":          n.config(`{"range":"x"}`),
		"too small":       n.config(`{"range":"10.0.0.0/32"}`),
	} {
		if _, err := run(status, bad); code(err) != 50 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestVersionListsAll(t *testing.T) {
	out, err := run([]string{"CNI_COMMAND=VERSION"}, `{"cniVersion":"1.1.0"}`)
	if err != nil {
		t.Fatal(err)
	}
	same(t, out, `{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`)
}

func TestLogFile(t *testing.T) {
	n := newNode(t)
	log := filepath.Join(n.dir, "log")
	ipam := func(level string) string {
		return `{"range":"10.0.0.0/24","log_file":"` + log + `","log_level":"` + level + `"}`
	}
	read := func() string {
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	a := attachment{id: "c1", ifname: "net1"}
	n.add(a, n.config(ipam("error")))
	if text := read(); text != "" {
		t.Errorf("at error: %s", text)
	}
	n.add(a, n.config(ipam("verbose")))
	if text := read(); !strings.Contains(text, "verb=ADD containerID=c1 ifname=net1") {
		t.Errorf("at verbose: %s", text)
	}
	if _, err := run(a.env("ADD"), n.config(ipam("error"), `"runtimeConfig":{"ips":["10.9.9.9"]}`)); err == nil || !strings.Contains(read(), "10.9.9.9") {
		t.Errorf("a failure is not in the log: %s", read())
	}
	if _, err := run(a.env("ADD"), n.config(`{"range":"10.0.0.0/24","log_file":"`+n.dir+`"}`)); err != nil {
		t.Errorf("a log file that cannot be written: %v", err)
	}
}
