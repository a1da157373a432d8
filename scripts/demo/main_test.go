package main

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig"
)

// TestDemo is the acceptance test of the users' files: the demo checks all that
// it shows. The part with RDMA has a test in the rig. It needs the binaries in
// bin/, which `make test` builds.
func TestDemo(t *testing.T) {
	need.Root(t)
	notInRig(t)
	cmd := exec.Command("../demo.sh")
	cmd.Env = append(os.Environ(), "RIG=no")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "demo passed, part 1 only") {
		t.Errorf("the last line is %q", last)
	}
	if n := bytes.Count(out, []byte("before and after: empty (")); n != 6 {
		t.Errorf("%d empty diffs, not those of two nodes and two pods, and of the two nodes once more:\n%s", n, out)
	}
}

func TestDemoFailsLoudly(t *testing.T) {
	need.Root(t)
	notInRig(t)
	cmd := exec.Command("go", "run", ".", "-bin", t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("a demo without binaries passed")
	}
	if !strings.Contains(string(out), "demo FAILED: ") || !strings.Contains(string(out), "cnitool") {
		t.Errorf("it does not say what is missing:\n%s", out)
	}
}

func notInRig(t *testing.T) {
	t.Helper()
	if os.Getenv(rig.Mark) != "" {
		t.Skip("it builds the demo, and the rig has no compiler")
	}
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		name                string
		before, after, want []string
	}{
		{"equal", []string{"a", "b"}, []string{"a", "b"}, nil},
		{"nothing at all", nil, nil, nil},
		{"lost", []string{"a", "b", "c"}, []string{"a", "c"}, []string{"- b"}},
		{"left behind", []string{"a"}, []string{"a", "b"}, []string{"+ b"}},
		{"changed", []string{"a", "b 1", "c"}, []string{"a", "b 2", "c"}, []string{"- b 1", "+ b 2"}},
		{"one of two alike", []string{"a", "a"}, []string{"a"}, []string{"- a"}},
		{"all", []string{"a"}, nil, []string{"- a"}},
	} {
		if have := diff(c.before, c.after); !slices.Equal(have, c.want) {
			t.Errorf("%s: %q, not %q", c.name, have, c.want)
		}
	}
}

func TestLinesOfLeavesOutWhatChangesByItself(t *testing.T) {
	have := linesOf("link", map[string]any{"ifname": "ens1", "ifindex": 7, "mtu": 9000, "stats64": map[string]any{"rx": 1}})
	if want := []string{"link ens1: ifname = \"ens1\"", "link ens1: mtu = 9000"}; !slices.Equal(slices.Sorted(slices.Values(have)), want) {
		t.Errorf("is %q, not %q", have, want)
	}
	have = linesOf("route", map[string]any{"dst": "default", "dev": "eno1"})
	if want := []string{`route {"dev":"eno1","dst":"default"}`}; !slices.Equal(have, want) {
		t.Errorf("is %q, not %q", have, want)
	}
}

func TestExpectedNoticesEveryDifference(t *testing.T) {
	want := expected{ifname: "net1", altname: "enp4s0np0", address: "172.31.1.2/24", broadcast: "172.31.1.255"}
	good := func() seen {
		return seen{
			Ifname: "net1", Mtu: 9000, Flags: []string{"BROADCAST", "MULTICAST", "UP", "LOWER_UP"}, Altnames: []string{"enp4s0np0"},
			AddrInfo: []seenAddress{
				{Family: "inet", Local: "172.31.1.2", Prefixlen: 24, Broadcast: "172.31.1.255", Scope: "global"},
				{Family: "inet6", Local: "fe80::1", Prefixlen: 64, Scope: "link"},
			},
		}
	}
	if err := want.check([]seen{{Ifname: "lo"}, good()}); err != nil {
		t.Errorf("the right interface: %v", err)
	}
	for name, spoil := range map[string]func(*seen){
		"does not exist": func(s *seen) { s.Ifname = "net2" },
		"MTU":            func(s *seen) { s.Mtu = 1500 },
		"flag UP":        func(s *seen) { s.Flags = []string{"BROADCAST", "MULTICAST", "LOWER_UP"} },
		"altname":        func(s *seen) { s.Altnames = nil },
		"addresses":      func(s *seen) { s.AddrInfo = nil },
		"address is":     func(s *seen) { s.AddrInfo[0].Local = "172.31.1.1" },
		"broadcast":      func(s *seen) { s.AddrInfo[0].Broadcast = "" },
		"scope":          func(s *seen) { s.AddrInfo[0].Scope = "link" },
	} {
		s := good()
		spoil(&s)
		if err := want.check([]seen{s}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}
