package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// doctored runs railctl and returns the results that it prints. railctl must exit with this code.
func doctored(t *testing.T, code int, run func(args ...string) (string, string, int), args ...string) map[string]rule.Result {
	t.Helper()
	out, errOut, have := run(append(args, "-o", "json")...)
	if have != code || errOut != "" {
		t.Fatalf("railctl %v: exit code %d, not %d, stderr %q\n%s", args, have, code, errOut, out)
	}
	var d doctor.Document
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, out)
	}
	found := map[string]rule.Result{}
	for _, r := range d.Results {
		found[r.ID] = r
	}
	return found
}

// factsOf writes the facts of the lab's node to a file.
func (l *lab) factsOf() string {
	l.t.Helper()
	file := filepath.Join(l.t.TempDir(), "facts.json")
	if err := os.WriteFile(file, []byte(l.must("doctor", "collect")), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return file
}

func TestDoctorFindsALostCarrier(t *testing.T) {
	l := newLab(t)
	l.lend()
	const ids = "NIC-CARRIER,LEDGER-ORPHAN,LEDGER-LOST,POD-DOWN"
	for id, r := range doctored(t, 0, l.railctl, "doctor", "--only", ids) {
		if r.Status != rule.OK {
			t.Errorf("%s of a sound node is %s: %v %v", id, r.Status, r.Findings, r.Missing)
		}
	}
	for id, r := range doctored(t, 0, l.railctl, "doctor", "pod", "default/web-0", "--only", ids) {
		if r.Status != rule.OK {
			t.Errorf("%s of a sound pod is %s: %v %v", id, r.Status, r.Findings, r.Missing)
		}
	}
	l.wire.IP("link", "set", "ens12np0-sw", "down")
	live := doctored(t, 1, l.railctl, "doctor", "--only", ids)
	if r := live["POD-DOWN"]; r.Status != rule.Status(rule.Fail) || len(r.Findings) != 1 || r.Findings[0].Object != "pod default/web-0" {
		t.Errorf("POD-DOWN: %+v", r)
	}
	pod := doctored(t, 1, l.railctl, "doctor", "pod", "default/web-0", "--only", ids)
	if r := pod["POD-DOWN"]; r.Status != rule.Status(rule.Fail) {
		t.Errorf("POD-DOWN of the pod: %+v", r)
	}
	// On another machine the same facts must have the same results.
	file := l.factsOf()
	for id, r := range doctored(t, 1, plainRun, "doctor", "--facts", file, "--only", ids) {
		if r.Status != live[id].Status || len(r.Findings) != len(live[id].Findings) {
			t.Errorf("%s by --facts is %+v, not %+v", id, r, live[id])
		}
	}
	if r := doctored(t, 0, plainRun, "doctor", "--facts", file, "--only", ids, "--ignore", "pod-down,NIC-CARRIER")["POD-DOWN"]; r.Status != rule.Skipped {
		t.Errorf("POD-DOWN with --ignore: %+v", r)
	}
}

// TestHostileFactsAreAClearError also reads facts from stdin.
func TestHostileFactsAreAClearError(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{fifo: "facts", filepath.Join(dir, "none"): "no such file", dir: "is a directory"}
	for name, c := range map[string]struct{ text, want string }{
		"empty":        {"", "EOF"},
		"no JSON":      {"\x1b[2J facts", "line 1"},
		"cut":          {`{"schema": "` + fact.Schema + `", "nics": {`, "EOF"},
		"other schema": {`{"schema": "\u001b[2J"}`, "schema"},
		"no facts":     {`{"schema": "` + fact.Schema + `"}`, "has none"},
		"other types":  {`{"schema": "` + fact.Schema + `", "nics": [1]}`, "nics"},
		"deep":         {strings.Repeat("[", 200_000), "line 1"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		files[file] = c.want
	}
	for file, want := range files {
		for _, args := range [][]string{{"doctor", "--facts", file}, {"doctor", "pod", "default/a", "--facts", file}} {
			out, errOut, code := plainRun(args...)
			if code != doctor.ExitUnknown || out != "" || !strings.HasPrefix(errOut, "railctl: ") || !strings.Contains(errOut, want) || strings.Contains(errOut, "\x1b") || len(errOut) > 1000 {
				t.Errorf("%v: exit code %d, stdout %q, stderr %q, not %q", args, code, out, errOut, want)
			}
		}
	}
	var out, errOut bytes.Buffer
	root := newRoot()
	root.SetArgs([]string{"doctor", "--facts", "-"})
	root.SetIn(strings.NewReader(`{"schema": "x"}`))
	root.SetOut(&out)
	root.SetErr(&errOut)
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "schema") {
		t.Errorf("from stdin: %v", err)
	}
}

// TestHostileNamesInFactsDoNotReachTheTerminal puts names with control characters into each fact
// that can appear in a finding.
func TestHostileNamesInFactsDoNotReachTheTerminal(t *testing.T) {
	const name = "\x1b[2Jens1\u202e"
	rail := 0
	f := &fact.Facts{
		Schema: fact.Schema, Node: name, Version: name,
		NICs: &fact.NICs{List: fact.Known([]fact.NIC{{Name: name, Rail: &rail, AdminUp: fact.Known(true, name), Carrier: fact.Known(false, name)}}, name)},
		Pods: []fact.Pod{{Namespace: name, Name: name, Interfaces: fact.Failed[[]fact.Interface](name, fmt.Errorf("%s", name))}},
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "facts.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"doctor", "-v"}, {"doctor", "-o", "json"}, {"doctor", "pod", name + "/" + name, "-v"}, {"doctor", "pod", "default/" + name}} {
		out, errOut, _ := plainRun(append(args, "--facts", file)...)
		if strings.ContainsAny(out+errOut, "\x1b\u202e") || out+errOut == "" {
			t.Errorf("%q: stdout %q, stderr %q", args, out, errOut)
		}
	}
}

func TestUnknownRulesAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "facts.json")
	if err := os.WriteFile(file, []byte(`{"schema": "`+fact.Schema+`", "ledger": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--only", "--ignore"} {
		_, errOut, code := plainRun("doctor", "--facts", file, flag, "NIC-CARRIER,NIC-CARIER")
		if code != doctor.ExitUnknown || !strings.Contains(errOut, "NIC-CARIER") {
			t.Errorf("%s: exit code %d, %s", flag, code, errOut)
		}
	}
	if have := doctored(t, 0, plainRun, "doctor", "--facts", file, "--only", "nic-carrier"); len(have) != 1 || have["NIC-CARRIER"].Status != rule.Skipped {
		t.Errorf("--only: %+v", have)
	}
}

// goodNAD is a NetworkAttachmentDefinition with which nothing is wrong.
//
//go:embed diagnose/testdata/nad.yaml
var goodNAD string

func TestCheckJudgesFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("nad.yaml", goodNAD)
	for id, r := range doctored(t, 0, plainRun, "check", "-f", good, "--strict") {
		if r.Scope != rule.ConfigScope || r.Status != rule.OK && r.Status != rule.Skipped {
			t.Errorf("%s of a sound network is %s: %v %v", id, r.Status, r.Findings, r.Missing)
		}
	}
	unknown := write("unknown.yaml", strings.Replace(goodNAD, `"device"`, `"deviceName"`, 1))
	out, errOut, code := plainRun("check", "--strict", "-f", good, "-f", unknown)
	if code != doctor.ExitProblem || errOut != "" || !strings.Contains(out, "deviceName") {
		t.Errorf("an unknown key: exit code %d, stderr %q\n%s", code, errOut, out)
	}
	overlap := write("overlap.yaml", strings.NewReplacer("name: roce,", "name: other,", "10.1.0.0/24", "10.1.0.128/25", "ens1", "ens2").Replace(goodNAD))
	if r := doctored(t, 1, plainRun, "check", "--strict", "-f", good, "-f", overlap)["IPAM-OVERLAP"]; len(r.Findings) == 0 {
		t.Errorf("ranges that overlap in two files: %+v", r)
	}
	hostile := write("hostile.yaml", `apiVersion: "\e[2J\n"`+"\nkind: ConfigMap\ndata: \"\\e[2J\"\n")
	if _, errOut, code := plainRun("check", "-f", hostile); code != doctor.ExitUnknown || strings.Contains(errOut, "\x1b") || !strings.Contains(errOut, "[2J") {
		t.Errorf("a file with control characters: exit code %d, stderr %q", code, errOut)
	}
	broken := write("broken.yaml", strings.Replace(goodNAD, "10.1.0.0/24", "10.1.0.0/44", 1))
	if r := doctored(t, 1, plainRun, "check", "-f", broken)["CNI-NAD"]; len(r.Findings) != 1 || r.Findings[0].Object != "NAD default/roce" {
		t.Errorf("a range that is none: %+v", r)
	}
	for _, args := range [][]string{
		{"check"},
		{"check", "x"},
		{"check", "--no-such-flag"},
		{"doctor", "bogus"},
		{"doctor", "pod"},
		{"doctor", "pod", "a", "b"},
		{"check", "-f", filepath.Join(dir, "none")},
		{"check", "-f", write("pod.yaml", "apiVersion: v1\nkind: Pod\n")},
	} {
		if out, errOut, code := plainRun(args...); code != doctor.ExitUnknown || out != "" || errOut == "" {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q", args, code, out, errOut)
		}
	}
}

func TestDoctorPageNamesRealRules(t *testing.T) {
	const page = "docs/guide/doctor.md"
	var ids []string
	for _, r := range doctor.Rules() {
		ids = append(ids, r.ID)
	}
	named := regexp.MustCompile(`\b(HOST|NIC|IB|RAIL|LEDGER|AGENT|CNI|IPAM|NODE|DP|K8S|POD|CLUSTER|VER)-[A-Z0-9]+\b`).FindAllString(docs.Page(t, page), -1)
	for _, id := range named {
		if !slices.Contains(ids, id) {
			t.Errorf("%s: there is no rule %s", page, id)
		}
	}
	if len(named) < 20 {
		t.Errorf("%s names %d rules only", page, len(named))
	}
}

// TestOrdinaryUserHasNoRuleAboutPodsThatIsWell judges facts that have nothing from the ledger.
func TestOrdinaryUserHasNoRuleAboutPodsThatIsWell(t *testing.T) {
	f := &fact.Facts{Schema: fact.Schema, Ledger: &fact.Ledger{Attachments: fact.Failed[[]fact.Attachment]("test", os.ErrPermission)}}
	unknown := 0
	for _, r := range rule.Judge(rule.Select(doctor.Rules(), rule.PodScope), f) {
		switch r.Status {
		case rule.Unknown:
			unknown++
		case rule.Skipped: // it needs other facts as well
		default:
			t.Errorf("%s is %s", r.ID, r.Status)
		}
	}
	if unknown < 10 {
		t.Errorf("only %d rules are unknown", unknown)
	}
}
