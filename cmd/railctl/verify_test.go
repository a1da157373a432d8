package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

// railsLab has nodes with rails to verify.
type railsLab struct {
	*testnet.Rails
	t *testing.T
}

func newRailsLab(t *testing.T, nodes, rails int, address func(node, rail int) string) *railsLab {
	t.Helper()
	return &railsLab{testnet.NewRails(t, nodes, rails, address), t}
}

// verify runs "railctl verify" and returns its result. railctl must exit with this code and print
// nothing to stderr.
func (l *railsLab) verify(code int, args ...string) *verify.Result {
	l.t.Helper()
	var out, errOut bytes.Buffer
	cmd := l.command(append(args, "-o", "json")...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != code || errOut.Len() > 0 {
		l.t.Fatalf("railctl verify: %v, not exit code %d\n%s\n%s", err, code, &errOut, &out)
	}
	var r verify.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		l.t.Fatalf("not JSON: %v\n%s", err, &out)
	}
	return &r
}

func (l *railsLab) command(args ...string) *exec.Cmd {
	all := []string{"verify", "--fabric", "isolated"}
	for _, n := range l.Nodes {
		all = append(all, "--netns", n.Name)
	}
	return exec.Command(filepath.Join(testnet.Bin(l.t), "railctl"), append(all, args...)...)
}

// found returns the findings as "kind n1/3", with nodes by their number in the lab.
func (l *railsLab) found(r *verify.Result) (all []string) {
	for _, f := range r.Findings {
		var ends []string
		for _, e := range f.Ends {
			node := slices.IndexFunc(l.Nodes, func(n *testnet.Netns) bool { return n.Name == e.Node })
			ends = append(ends, fmt.Sprintf("n%d/%d", node, e.Rail))
		}
		join := ", "
		if f.Either {
			join = " or "
		}
		all = append(all, string(f.Kind)+" "+strings.Join(ends, join))
	}
	return all
}

// states returns the state of all namespaces, and the processes in those of nodes.
func (l *railsLab) states() (all string) {
	for _, n := range append(slices.Clone(l.Nodes), l.Fabric) {
		all += n.Name + "\n" + n.State()
	}
	return all + l.processes()
}

// processes returns the processes in the namespaces of the nodes.
func (l *railsLab) processes() (all string) {
	l.t.Helper()
	for _, n := range l.Nodes {
		out, err := exec.Command("ip", "netns", "pids", n.Name).Output()
		if err != nil {
			l.t.Fatal(err)
		}
		all += string(out)
	}
	return all
}

func TestVerifyFindsNothingOnHealthyRails(t *testing.T) {
	for name, address := range map[string]func(node, rail int) string{"IPv4": testnet.RailIPv4, "IPv6": testnet.RailIPv6} {
		t.Run(name, func(t *testing.T) {
			l := newRailsLab(t, 2, 8, address)
			before := l.states()
			r := l.verify(verify.ExitHealthy)
			t.Logf("2 nodes × 8 rails: %.1f s", r.Seconds)
			if r.Status != verify.Healthy || len(r.Findings) > 0 || len(r.Paths) != 16 || r.Tested != 56 {
				t.Errorf("%s, %d paths, %d crossings, %+v", r.Status, len(r.Paths), r.Tested, r.Findings)
			}
			for _, p := range r.Paths {
				if p.Small.Times == nil || p.Full.Received != p.Full.Sent || p.Full.Size != 9000 || p.Route == nil || p.Route.MAC == "" {
					t.Errorf("%+v", p)
				}
			}
			if diff := testnet.Diff(before, l.states()); diff != "" {
				t.Errorf("it left behind:\n%s", diff)
			}
		})
	}
}

// TestVerifyNamesTheNodeAndTheRailOfADefect does not use netem, because this machine's kernel may
// lack it. The rig has a test with netem.
func TestVerifyNamesTheNodeAndTheRailOfADefect(t *testing.T) {
	for _, c := range need.Sample(t, 4, []struct {
		name       string
		plant      func(l *railsLab) (end func())
		two, three string // findings with two and three nodes
	}{
		{
			"MTU of an interface",
			func(l *railsLab) func() {
				l.Nodes[1].IP("link", "set", "net4", "mtu", "1500")
				return func() { l.Nodes[1].IP("link", "set", "net4", "mtu", "9000") }
			},
			"mtu n1/3", "mtu n1/3",
		},
		{
			"MTU of a bridge's port",
			func(l *railsLab) func() {
				l.Fabric.IP("link", "set", "n1r3", "mtu", "1500")
				return func() { l.Fabric.Batch(nil, "link set n1r3 mtu 9000", "link set br3 mtu 9000") }
			},
			"mtu n0/3 or n1/3", "mtu n1/3",
		},
		{
			"delay",
			func(l *railsLab) func() { return l.Nodes[1].Slow("net6") },
			"latency n1/5", "latency n1/5",
		},
		{
			"loss",
			func(l *railsLab) func() { return l.Nodes[0].Drop("net2", 5) },
			"loss n0/1", "loss n0/1",
		},
		{
			"loss behind the node",
			func(l *railsLab) func() { return l.Fabric.Drop("n1r7", 5) },
			"loss n0/7 or n1/7", "loss n1/7",
		},
		{
			"a swapped pair",
			func(l *railsLab) func() {
				l.Fabric.Batch(nil, "link set n1r1 master br2", "link set n1r2 master br1")
				return func() {
					l.Fabric.Batch(nil, "link set n1r1 master br1", "link set n1r2 master br2")
					for _, n := range l.Nodes { // the other rail has answered for the addresses meanwhile
						n.IP("neigh", "flush", "all")
					}
				}
			},
			"swapped n0/1 or n0/2 or n1/1 or n1/2", "swapped n1/1, n1/2",
		},
		{
			"a rail that is down",
			func(l *railsLab) func() {
				l.Fabric.IP("link", "set", "n1r0", "down")
				return func() { l.Fabric.IP("link", "set", "n1r0", "up") }
			},
			"down n1/0", "down n1/0",
		},
	}) {
		t.Run(c.name, func(t *testing.T) {
			for _, nodes := range need.Sample(t, 1, []int{2, 3}) {
				want := map[int]string{2: c.two, 3: c.three}[nodes]
				l := newRailsLab(t, nodes, 8, testnet.RailIPv4)
				end := c.plant(l)
				r := l.verify(verify.ExitDefects)
				if have := l.found(r); !slices.Equal(have, []string{want}) {
					t.Errorf("%d nodes: %q, not %q\n%+v", nodes, have, want, r.Findings)
				}
				for _, f := range r.Findings {
					t.Logf("%d nodes: %s: %s", nodes, f.Kind, f.Evidence)
				}
				end()
				eventually(t, "the carrier", func() bool { return !strings.Contains(l.Nodes[1].IP("-o", "link"), "NO-CARRIER") })
				if r := l.verify(verify.ExitHealthy); len(r.Findings) > 0 {
					t.Errorf("%d nodes, after its end: %+v", nodes, r.Findings)
				}
			}
		})
	}
}

func TestVerifyFindsRailsThatReachEachOther(t *testing.T) {
	l := newRailsLab(t, 3, 3, testnet.RailIPv4)
	l.Fabric.Exec("ip", "link", "add", "between", "mtu", "9000", "master", "br0", "type", "veth", "peer", "name", "them", "mtu", "9000")
	l.Fabric.Batch(nil, "link set them master br2", "link set between up", "link set them up")
	r := l.verify(verify.ExitDefects)
	if len(r.Findings) != 1 || r.Findings[0].Kind != verify.KindCrossed || !strings.Contains(r.Findings[0].Evidence, "rails 0 and 2") {
		t.Errorf("%+v", r.Findings)
	}
}

func TestVerifyLeavesNothingBehindWhenItIsKilled(t *testing.T) {
	l := newRailsLab(t, 2, 2, testnet.RailIPv4)
	before := l.states()
	cmd := l.command("--probes", "10000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a prober in each namespace", func() bool { return strings.Count(l.processes(), "\n") == 2 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the end of the probers", func() bool { return l.processes() == "" })
	if diff := testnet.Diff(before, l.states()); diff != "" {
		t.Errorf("it left behind:\n%s", diff)
	}
}

// eventually waits until done returns true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting for %s", what)
		}
	}
}

func TestVerifyWritesATableAndAPage(t *testing.T) {
	l := newRailsLab(t, 2, 2, testnet.RailIPv4)
	l.Nodes[1].IP("link", "set", "net2", "mtu", "1500")
	page := filepath.Join(t.TempDir(), "rails.html")
	out, err := l.command("--html", page).Output()
	if exit := (&exec.ExitError{}); !errors.As(err, &exit) || exit.ExitCode() != verify.ExitDefects {
		t.Fatalf("%v\n%s", err, out)
	}
	contains(t, "the table", string(out), "MTU  "+l.Nodes[1].Name+" rail 1 (net2): ", "RAIL 1", "✗ mtu 1500", "2 nodes × 2 rails, 4 paths", "defects, 1 finding")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, "the page", string(text), "✗ mtu 1500", "</html>")
}

func TestVerifyCannotJudge(t *testing.T) {
	l := newRailsLab(t, 2, 1, testnet.RailIPv4)
	l.Nodes[1].IP("link", "del", "net1")
	a, b := l.Nodes[0].Name, l.Nodes[1].Name
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"one namespace":    {[]string{"--netns", a}, "at least two namespaces"},
		"one twice":        {[]string{"--netns", a, "--netns", "/run/netns/" + a}, "twice"},
		"none of the name": {[]string{"--netns", a, "--netns", "none"}, "/run/netns/none"},
		"a bad fabric":     {[]string{"--netns", a + "," + b, "--fabric", "torus"}, "isolated, routed, flat"},
		"few probes":       {[]string{"--netns", a + "," + b, "--probes", "19"}, "20 to 10000"},
		"a bad format":     {[]string{"--netns", a + "," + b, "-o", "xml"}, "table, json"},
		"no such flag":     {[]string{"--netns", a + "," + b, "--bogus"}, "--bogus"},
		"a cluster's flag": {[]string{"--netns", a + "," + b, "--timeout", "5s"}, "--timeout applies only to a cluster"},
		"no rails":         {[]string{"--netns", a + "," + b}, "--interfaces"},
	} {
		cmd := exec.Command(filepath.Join(testnet.Bin(t), "railctl"), append([]string{"verify"}, c.args...)...)
		var out, errOut bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != verify.ExitUnknown || out.Len() > 0 || !strings.Contains(errOut.String(), c.want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", name, code, &out, &errOut)
		}
	}
}
