package main

import (
	"bytes"
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

func TestDoctorOfAPodIsAboutNoOther(t *testing.T) {
	one, two := 1, 2
	nic := func(name, holder string, rail *int) fact.NIC {
		return fact.NIC{Name: name, Holder: holder, Rail: rail, AdminUp: fact.Known(true, "test"), Carrier: fact.Known(false, "test")}
	}
	f := &fact.Facts{
		Schema: fact.Schema,
		NICs:   &fact.NICs{List: fact.Known([]fact.NIC{nic("ens1", "default/a", &one), nic("ens10", "default/b", &two), nic("ens2", "", nil)}, "test")},
		Pods:   []fact.Pod{{Namespace: "default", Name: "a"}, {Namespace: "default", Name: "b"}},
	}
	results, err := judgePod(doctor.Rules(), f, "default/a")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, r := range results {
		for _, finding := range r.Findings {
			found = true
			if finding.Object != "NIC ens1" {
				t.Errorf("%s is about %q", r.ID, finding.Object)
			}
		}
		if r.Scope != rule.PodScope && len(r.Findings) == 0 {
			t.Errorf("%s of the node is listed without a finding", r.ID)
		}
	}
	if !found {
		t.Error("nothing is found about the pod's NIC, which has no carrier")
	}
	for name, want := range map[string]string{"default/c": "holds no NIC on this node", "c": "default/c", "a/b/c": "NAMESPACE/NAME"} {
		if _, err := judgePod(doctor.Rules(), f, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("pod %s: %v", name, err)
		}
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

// TestColorIsForTerminals opens a pseudo terminal.
func TestColorIsForTerminals(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer main.Close()
	if colored(&bytes.Buffer{}) || newProgress(&bytes.Buffer{}) != nil {
		t.Error("a buffer is a terminal")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if colored(file) || newProgress(file) != nil {
		t.Error("a file is a terminal")
	}
	if !colored(main) || newProgress(main) == nil {
		t.Error("a terminal has no color and no progress")
	}
	t.Setenv("NO_COLOR", "1")
	if colored(main) {
		t.Error("color in spite of NO_COLOR")
	}
}

const goodNAD = `apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: roce, annotations: {k8s.v1.cni.cncf.io/resourceName: rdma/roce}}
spec:
  config: '{"cniVersion": "1.0.0", "name": "roce", "type": "host-device", "device": "ens1", "ipam": {"type": "whereabouts", "range": "10.1.0.0/24"}}'
`

func TestCheckKnowsFilesByTheirContent(t *testing.T) {
	const shared = `{"configList": [{"resourceName": "hca", "rdmaHcaMax": 8, "selectors": {"ifNames": ["ens1"]}}]}`
	nad := fact.Config{
		Kind: fact.NADConfig, Name: "default/roce", Resource: "rdma/roce",
		Text: `{"cniVersion": "1.0.0", "name": "roce", "type": "host-device", "device": "ens1", "ipam": {"type": "whereabouts", "range": "10.1.0.0/24"}}`,
	}
	at := func(c fact.Config, source string) fact.Config { c.Source = source; return c }
	second := nad
	second.Name = "gpu/other"
	both := goodNAD + "---\n# nothing\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: gpu}\n---\n" + strings.Replace(goodNAD, "name: roce,", "name: other, namespace: gpu,", 1)
	for name, c := range map[string]struct {
		text string
		want []fact.Config
		err  string
	}{
		"a NAD":         {goodNAD, []fact.Config{at(nad, "f")}, ""},
		"two documents": {both, []fact.Config{at(nad, "f, document 1"), at(second, "f, document 4")}, ""},
		"a list": {
			"apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(goodNAD), "\n", "\n  ") + "\n",
			[]fact.Config{at(nad, "f, item 1")},
			"",
		},
		"a configuration":   {nad.Text, []fact.Config{{Kind: fact.NADConfig, Name: "f", Source: "f", Text: nad.Text}}, ""},
		"a node file":       {"rails: auto\n", []fact.Config{{Kind: fact.NodeFile, Name: "f", Source: "f", Text: "rails: auto\n"}}, ""},
		"a device plugin's": {shared, []fact.Config{{Kind: fact.SharedConfig, Name: "f", Source: "f", Text: shared}}, ""},
		"in a ConfigMap":    {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rdma-devices, namespace: kube-system}\ndata: {config.json: '" + shared + "', note: x}\n", []fact.Config{{Kind: fact.SharedConfig, Name: "kube-system/rdma-devices/config.json", Source: "f", Text: shared}}, ""},
		"a node file's": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nodes, namespace: kube-system}\ndata: {node.yaml: 'rials: auto, paths: {}', gpu: 'rails: auto', plugin: 'resources: {}\n\n  version: v1'}\n", []fact.Config{
			{Kind: fact.NodeFile, Name: "kube-system/nodes/gpu", Source: "f", Text: "rails: auto"},
		}, ""},
		"objects of others":    {"apiVersion: opentelemetry.io/v1beta1\nkind: OpenTelemetryCollector\nspec: {config: {receivers: {}}}\n---\napiVersion: apps/v1\nkind: ControllerRevision\ndata: {spec: {template: {}}}\n---\n" + goodNAD, []fact.Config{at(nad, "f, document 3")}, ""},
		"too many documents":   {strings.Repeat("---\na: b\n", maxDocuments+1), nil, "more than"},
		"another ConfigMap":    {"apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n", nil, "nothing to check"},
		"a pod":                {"apiVersion: v1\nkind: Pod\n", nil, "nothing to check"},
		"nothing":              {"", nil, "nothing to check"},
		"other keys":           {"nic: ens1\n", nil, `"nic"`},
		"a text":               {"hello\n", nil, "nothing to check"},
		"a JSON list":          {"[1, 2]", nil, "nothing to check"},
		"a key twice":          {"rails: auto\nrails: auto\n", nil, "already defined"},
		"neither YAML nor so":  {"a: b: c\n", nil, "neither YAML nor JSON"},
		"a configuration YAML": {"type: macvlan\nname: x\n", nil, "is JSON"},
		"data with a number":   {"apiVersion: v1\nkind: ConfigMap\ndata: [1]\n", nil, "cannot unmarshal"},
	} {
		have, _, err := configsIn("f", []byte(c.text))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, not %q", name, err, c.err)
			}
			continue
		}
		if err != nil || !slices.Equal(have, c.want) {
			t.Errorf("%s: %v\n%+v\nnot\n%+v", name, err, have, c.want)
		}
	}
}

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
