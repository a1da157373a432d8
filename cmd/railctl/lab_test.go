package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// lab is a node with a NIC to lend and one to share, and its pods.
type lab struct {
	t     *testing.T
	node  *testnet.Netns
	wire  *testnet.Netns // the other ends of the NICs' cables
	state string         // state directory
	path  string         // CNI_PATH
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, node: testnet.NewNetns(t, "node"), wire: testnet.NewNetns(t, "wire"), state: filepath.Join(t.TempDir(), "state"), path: t.TempDir()}
	l.node.NIC("ens12np0", l.wire)
	l.node.NIC("ens2f0", l.wire)
	for _, plugin := range []string{"host-device", "macvlan", "whereabouts"} {
		if err := os.Symlink(filepath.Join(testnet.Bin(t), plugin), filepath.Join(l.path, plugin)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// railctl runs railctl on the node.
func (l *lab) railctl(args ...string) (stdout, stderr string, code int) {
	l.t.Helper()
	return railctlIn(l.node, append(args, "--state-dir", l.state)...)
}

func railctlIn(node *testnet.Netns, args ...string) (stdout, stderr string, code int) {
	var out, errOut bytes.Buffer
	node.Inside(func() { code = run(args, &out, &errOut) })
	return out.String(), errOut.String(), code
}

// must runs railctl and returns its output. It fails the test if railctl does not exit with 0, or
// prints to stderr.
func (l *lab) must(args ...string) string {
	l.t.Helper()
	out, errOut, code := l.railctl(args...)
	if code != 0 || errOut != "" {
		l.t.Fatalf("railctl %v: exit code %d, stderr:\n%s", args, code, errOut)
	}
	return out
}

// lend makes pod web-0, which has the NIC ens12np0 as net1.
func (l *lab) lend() *testnet.Netns {
	l.t.Helper()
	return l.attach("web-0", "c-web-0", `{"cniVersion": "1.1.0", "name": "roce-net1", "type": "host-device", "device": "ens12np0",
		"stateDir": "`+l.state+`", "ipam": {"type": "whereabouts", "store": "local", "range": "172.31.1.0/24", "gateway": "172.31.1.1"}}`)
}

// share makes a pod with a macvlan on ens2f0 as net1.
func (l *lab) share(pod, containerID string) *testnet.Netns {
	l.t.Helper()
	return l.attach(pod, containerID, `{"cniVersion": "1.1.0", "name": "rdma-net", "type": "macvlan", "master": "ens2f0", "mtu": 4000,
		"stateDir": "`+l.state+`"}`)
}

func (l *lab) attach(pod, containerID, config string) *testnet.Netns {
	l.t.Helper()
	var plugin struct{ Type string }
	if err := json.Unmarshal([]byte(config), &plugin); err != nil {
		l.t.Fatal(err)
	}
	netns := testnet.NewNetns(l.t, "pod")
	args := ""
	if pod != "" {
		args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod
	}
	l.node.MustRun(testnet.Call{
		Plugin: plugin.Type, Verb: "ADD", ContainerID: containerID, IfName: "net1", Netns: netns.Path, Args: args,
		Path: l.path, Config: config,
	})
	return netns
}

// listed decodes a command's output with -o json.
func listed[T any](t *testing.T, out string) []T {
	t.Helper()
	var list []T
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, out)
	}
	return list
}

var ages = regexp.MustCompile(` +\d+s +`)

// squeezed replaces each age in a table, and each group of blanks between columns, by one blank.
func squeezed(table string) string {
	table = ages.ReplaceAllString(table, " AGE ")
	var lines []string
	for line := range strings.Lines(table) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func equal(t *testing.T, what, have, want string) {
	t.Helper()
	if have != want {
		t.Errorf("%s\nis:\n%s\nshould be:\n%s", what, have, want)
	}
}

func contains(t *testing.T, what, have string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(have, want) {
			t.Errorf("%s lacks %q:\n%s", what, want, have)
		}
	}
}
