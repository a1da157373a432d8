package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.9, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{0, 10}, 0.9, 9},
		{[]float64{1, 2, 3}, 1, 3},
	} {
		if got := quantile(c.samples, c.q); got != c.want {
			t.Errorf("quantile(%v, %v) = %v, want %v", c.samples, c.q, got, c.want)
		}
	}
}

func TestPeakIsReadFromTheKernelsStatus(t *testing.T) {
	got, err := parsePeak([]byte("Name:\tx\nVmPeak:\t  9999 kB\nVmHWM:\t    5120 kB\n"))
	if err != nil || got != 5*mebi {
		t.Errorf("peak is %d (%v), want 5 MiB", got, err)
	}
	if _, err := parsePeak([]byte("Name:\tx\n")); err == nil {
		t.Error("a status without VmHWM gives no error")
	}
}

func TestMessageOfAFailedPlugin(t *testing.T) {
	for out, want := range map[string]string{
		`{"code":7,"msg":"no device","details":"tried eth9"}`:       "no device; tried eth9",
		`{"code":7,"msg":"no device"}`:                              "no device",
		"Cannot find device\n":                                      "Cannot find device",
		"{\"code\":7,\"msg\":\"no device\"}2026-01-01 INF delete\n": "no device",
	} {
		if got := message([]byte(out)); got != want {
			t.Errorf("message(%q) = %q, want %q", out, got, want)
		}
	}
}

func TestSandboxesAreReadFromContainerdsLog(t *testing.T) {
	const log = `time="2026-05-01T10:00:00.5Z" level=info msg="RunPodSandbox for &PodSandboxMetadata{Name:before,Uid:1,Namespace:default,Attempt:0,}"
time="2026-05-01T10:00:00.6Z" level=info msg="RunPodSandbox for &PodSandboxMetadata{Name:before,Uid:1,Namespace:default,Attempt:0,} returns sandbox id \"a1\""
time="2026-05-01T10:00:01.5Z" level=info msg="RunPodSandbox for &PodSandboxMetadata{Name:a,Uid:2,Namespace:default,Attempt:0,}"
time="2026-05-01T10:00:01.6Z" level=info msg="RunPodSandbox for &PodSandboxMetadata{Name:b,Uid:3,Namespace:default,Attempt:0,}"
time="2026-05-01T10:00:01.7Z" level=error msg="RunPodSandbox for &PodSandboxMetadata{Name:b,Uid:3,Namespace:default,Attempt:0,} failed, error"
time="2026-05-01T10:00:01.75Z" level=info msg="StopPodSandbox for \"a1\""
time="2026-05-01T10:00:01.8Z" level=info msg="RunPodSandbox for &PodSandboxMetadata{Name:a,Uid:2,Namespace:default,Attempt:0,} returns sandbox id \"b2\""
time="2026-05-01T10:00:01.85Z" level=info msg="StopPodSandbox for \"a1\" returns successfully"
time="2026-05-01T10:00:02Z" level=info msg="StopPodSandbox for \"b2\""
time="2026-05-01T10:00:02.25Z" level=info msg="StopPodSandbox for \"b2\" returns successfully"
time="2026-05-01T10:00:03Z" level=info msg="StopPodSandbox for \"b2\""
time="2026-05-01T10:00:03.5Z" level=info msg="StopPodSandbox for \"b2\" returns successfully"
`
	for text, want := range map[string]int{
		`time="2026-05-01T10:00:03Z" level=info msg="RemovePodSandbox for \"b2\""`:                  1,
		`time="2026-05-01T10:00:03Z" level=info msg="RemovePodSandbox \"b2\" returns successfully"`: 1,
		log: 0,
	} {
		if have := removals([]byte(text)); have != want {
			t.Errorf("%d removals in %s", have, text)
		}
	}
	var r podResult
	if err := r.sandboxes(strings.NewReader(log), time.Date(2026, 5, 1, 10, 0, 1, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Start.Sandbox, []float64{300}) || !slices.Equal(r.Delete.Sandbox, []float64{250}) {
		t.Errorf("made in %v ms, ended in %v ms", r.Start.Sandbox, r.Delete.Sandbox)
	}
	if r.Start.Failed != 1 || r.Delete.Failed != 0 {
		t.Errorf("%d failed to be made, %d to be ended", r.Start.Failed, r.Delete.Failed)
	}
}

func TestNetworksOfPodsNameInstalledPluginsAndRangesOfTheirOwn(t *testing.T) {
	paths, err := sideBySide(options{bin: "/ours", peers: "/peers"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	installed := map[string]string{}
	for _, path := range paths {
		if installed[filepath.Base(path)], err = os.Readlink(path); err != nil {
			t.Fatal(err)
		}
	}
	var list struct {
		Items []struct{ Spec struct{ Config string } }
	}
	if err := json.Unmarshal(networks(), &list); err != nil || len(list.Items) != 2*9+2*8+2 {
		t.Fatalf("%d networks (%v)", len(list.Items), err)
	}
	ranges := map[string]bool{}
	for _, item := range list.Items {
		var conf struct {
			Name, Type string
			IPAM       struct{ Type, Range string }
		}
		if err := json.Unmarshal([]byte(item.Spec.Config), &conf); err != nil {
			t.Fatal(err)
		}
		home := "/ours/"
		if strings.HasPrefix(conf.Name, upstream.id) {
			home = "/peers/"
		}
		for _, plugin := range []string{conf.Type, conf.IPAM.Type} {
			if !strings.HasPrefix(installed[plugin], home) {
				t.Errorf("network %s: the plugin %q is %q", conf.Name, plugin, installed[plugin])
			}
		}
		if ranges[conf.IPAM.Range] {
			t.Errorf("network %s: %s belongs to another as well", conf.Name, conf.IPAM.Range)
		}
		ranges[conf.IPAM.Range] = true
	}
}

func TestCPUTimeOfAProcessCountsItsChildren(t *testing.T) {
	const stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 200 0 0 150 50 1000 300 20 0 1 0 99 0 0"
	if got, err := cpuOf(stat); got != 15 || err != nil {
		t.Errorf("%v s (%v), want 15 s", got, err)
	}
	for _, broken := range []string{"", "42 (a) S 1"} {
		if got, err := cpuOf(broken); err == nil {
			t.Errorf("%q is %v s", broken, got)
		}
	}
}

func TestWhatRailsAddIsNotComparedBelowTheNoise(t *testing.T) {
	sc, v := scenes[0], podVerbs[0]
	r := &podReport{results: map[string]map[string]*podResult{sc.id: {}}}
	for s, all := range map[suite][]float64{noRails: {9, 10, 11}, upstream: {12, 12, 12}, ourSuite: {10, 11, 11}} {
		r.results[sc.id][s.id] = &podResult{Start: podTimes{All: all}}
	}
	if over, err := r.addedRatio(sc, ourSuite, v); over != 0.5 || err != nil {
		t.Errorf("%v, %v", over, err)
	}
	r.results[sc.id][upstream.id].Start.All = []float64{11, 10, 11}
	if over, err := r.addedRatio(sc, ourSuite, v); err == nil {
		t.Errorf("%v", over)
	}
}

func TestScenesAreChosenByName(t *testing.T) {
	for names, want := range map[string]int{"": len(scenes), "allocated": 1, "lent,shared": 2} {
		if chosen, err := scenesOf(names); err != nil || len(chosen) != want {
			t.Errorf("%q: %d scenes, %v", names, len(chosen), err)
		}
	}
	if _, err := scenesOf("lent,last"); err == nil || !strings.Contains(err.Error(), `"last" is not one of shared, lent, allocated`) {
		t.Error(err)
	}
}

func TestContendersRunAsARuntimeWould(t *testing.T) {
	p := places{bin: "/ours", peers: "/peers", ip: "/ip", rdma: "/rdma", state: "/run/state", disk: "/disk"}
	for name, list := range map[string][]*contender{
		"links": contenders(p), "shared": rdmaContenders(p, modeShared), "exclusive": rdmaContenders(p, modeExclusive),
	} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, c := range list {
				for _, name := range []string{c.id, c.nic, c.pod, c.address} {
					if seen[name] {
						t.Errorf("%s: %s belongs to another contender as well", c.id, name)
					}
					seen[name] = true
				}
				for _, id := range []string{c.base, c.floor} {
					if id != "" && find(list, id) == nil {
						t.Errorf("%s is compared with %s, which does not take part", c.id, id)
					}
				}
				runsAsARuntimeWould(t, c)
			}
		})
	}
}

// runsAsARuntimeWould looks at the processes of one contender.
func runsAsARuntimeWould(t *testing.T, c *contender) {
	t.Helper()
	if len(c.add) != len(c.del) {
		t.Errorf("%s: %d processes add, %d delete", c.id, len(c.add), len(c.del))
	}
	var before []byte // result of the plugin before
	for i, add := range c.add {
		added, err := add(before)
		if err != nil {
			t.Fatal(err)
		}
		deleted, err := c.del[len(c.del)-1-i]([]byte(`{"cniVersion":"1.0.0"}`))
		if err != nil {
			t.Fatal(err)
		}
		if added.path != deleted.path {
			t.Errorf("%s: %s is not undone in the reverse order", c.id, added)
		}
		if added.stdin == nil {
			continue // ip(8), rdma(8)
		}
		var addConf, delConf struct{ PrevResult, StateDir any }
		if err := json.Unmarshal(added.stdin, &addConf); err != nil || (addConf.PrevResult != nil) != (i > 0) {
			t.Errorf("%s: plugin %d gets %s (%v)", c.id, i, added.stdin, err)
		}
		if err := json.Unmarshal(deleted.stdin, &delConf); err != nil || delConf.PrevResult == nil {
			t.Errorf("%s: DEL does not get the result of ADD: %s (%v)", c.id, deleted.stdin, err)
		}
		if ours := strings.HasPrefix(added.path, "/ours/"); ours != (addConf.StateDir != nil) {
			t.Errorf("%s: stateDir is %v", c.id, addConf.StateDir)
		}
		before = []byte(`{"cniVersion":"1.0.0"}`)
	}
}

func TestReportSaysWhatBecameOfEachGoal(t *testing.T) {
	p := places{bin: "/ours", peers: "/peers", ip: "/ip", state: "/run/state"}
	list := contenders(p)
	m := &measurement{results: map[string]*result{}, processes: map[string]*process{}}
	for _, c := range list {
		m.results[c.id] = &result{Add: []float64{10}, Del: []float64{10}}
	}
	m.results["hd-up"] = &result{Add: []float64{40}, Del: []float64{16}}
	m.results["mv"] = &result{Err: errors.New("no such NIC")}
	files := binaries(p)
	for _, b := range files {
		m.processes[b.path] = &process{Start: []float64{2}, RSS: 20 * mebi, Size: 4 * mega}
	}
	r := newReport(about{Label: "v0"}, list, files, m)

	want := map[string]string{
		"host-device ADD, ours, over upstream":                        "met",
		"host-device DEL, ours, over upstream":                        "MISSED by 0.12 × (25 %)",
		"host-device ADD, ours, over the bare move":                   "met",
		"host-device DEL, ours, over the bare move":                   "met",
		"macvlan ADD, ours + whereabouts, local store, over upstream": "not measured",
		"macvlan DEL, ours + whereabouts, local store, over upstream": "not measured",
		"ours host-device, peak memory":                               "MISSED by 4.00 MiB (25 %)",
		"ours host-device, size of the binary":                        "met",
	}
	got := map[string]string{}
	for _, v := range r.verdicts {
		got[v.Goal] = v.String()
	}
	for goal, words := range want {
		if got[goal] != words {
			t.Errorf("%s: %q, want %q", goal, got[goal], words)
		}
	}

	var text, md, js strings.Builder
	r.text(&text)
	r.markdown(&md)
	if err := r.json(&js); err != nil {
		t.Fatal(err)
	}
	for name, out := range map[string]string{"text": text.String(), "markdown": md.String(), "json": js.String()} {
		for _, words := range []string{"v0", "no such NIC", "ours + static"} {
			if !strings.Contains(out, words) {
				t.Errorf("the %s lacks %q:\n%s", name, words, out)
			}
		}
	}
	if missing := r.unmeasured(); len(missing) != 1 {
		t.Errorf("unmeasured: %v", missing)
	}
}

func TestNetlinkRequestsAreCountedInATrace(t *testing.T) {
	for _, c := range []struct {
		text string
		want kernel
	}{
		{"", kernel{}},
		{"7 +++ exited with 0 +++\n", kernel{}},
		{"7 sendto(3<NETLINK:[ROUTE:7]>, [{nlmsg_len=32}], 32, 0, {sa_family=AF_NETLINK}, 12) = 32 <0.000210>\n", kernel{1, 0}},
		{"7 sendto(3<NETLINK:[ROUTE:7]>, [{nlmsg_len=32}], 32, 0, NULL, 0) = 32 <0.012100>\n", kernel{1, 1}},
		{"7 sendto(3<NETLINK:[GENERIC:7]>, [[{nlmsg_len=40}, \"\\x11\"], [{nlmsg_len=40}, \"\\x0f\"]], 80, 0, NULL, 0) = 80 <0.000210>\n", kernel{2, 0}},
		{"7 sendto(3<UNIX-STREAM:[1->2]>, \"<NETLINK:\", 9, 0, NULL, 0) = 9 <0.5>\n", kernel{}},
		{"7 sendmsg(3<NETLINK:[4026]>, {msg_name=NULL}, 0) = -1 EBUSY (Device or resource busy) <0.000020>\n", kernel{1, 0}},
		{
			"7   sendto(3<NETLINK:[ROUTE:7]>, [{nlmsg_len=32}], 32, 0, NULL, 0 <unfinished ...>\n" +
				"8   sendto(4<UNIX-STREAM:[1->2]>, \"x\", 1, 0, NULL, 0 <unfinished ...>\n" +
				"8   <... sendto resumed>) = 1 <0.100000>\n" +
				"7   <... sendto resumed>) = 32 <0.015000>\n",
			kernel{1, 1},
		},
	} {
		if got, err := readTrace(c.text); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.text, got, err, c.want)
		}
	}
	if _, err := readTrace("7 sendto(3<NETLINK:[ROUTE:7]>, NULL, 0, 0, NULL, 0) = 0\n"); err == nil {
		t.Error("a line without a time is accepted")
	}
}
