package doctor

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

var update = flag.Bool("update", false, "write the expected reports in testdata")

// sick returns facts with several problems, and with facts that are missing.
func sick() *fact.Facts {
	f := healthy()
	f.Cluster, f.Configs, f.Pods = nil, nil, nil
	f.Host.Modules.Value = []string{"ib_core", "ib_umad", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "rdma_cm"}
	nic(f, 3).Carrier.Value, nic(f, 3).Mbps.Value = false, 0
	nic(f, 5).PCIe.Value.Width = 8
	for i := range 9 {
		away(&nic(f, i).Flaps)
	}
	away(&f.Host.Memlock)
	return f
}

func TestTextReportReadsWell(t *testing.T) {
	one := rule.Judge(rule.Select(Rules(), rule.NodeScope), sick())
	other := sick()
	other.Node = "node-2"
	other.Host.Modules.Value = append(other.Host.Modules.Value, "rdma_ucm", "nvidia_peermem")
	several := append(rule.Judge(rule.Select(Rules(), rule.NodeScope), sick()), rule.Judge(rule.Select(Rules(), rule.NodeScope), other)...)
	fine := rule.Judge(slices.DeleteFunc(Rules(), func(r rule.Rule) bool { return groupOf(r.ID) > 0 }), healthy())
	rule.Skip(fine, []string{"HOST-SWAP"})
	for name, c := range map[string]struct {
		results []rule.Result
		options TextOptions
	}{
		"node":    {one, TextOptions{}},
		"nodes":   {several, TextOptions{}},
		"color":   {one, TextOptions{Color: true}},
		"verbose": {fine, TextOptions{Verbose: true}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := WriteText(&b, c.results, c.options); err != nil {
				t.Fatal(err)
			}
			path := "testdata/report-" + name + ".txt"
			if *update {
				if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("the report is not %s (go test -update writes it):\n%s", path, b.String())
			}
		})
	}
}

func TestTextReportShowsTenFindingsOfARule(t *testing.T) {
	r := rule.Result{ID: "A-A", Status: rule.Status(rule.Fail)}
	for i := range 12 {
		r.Findings = append(r.Findings, rule.Finding{Object: fmt.Sprint(i), Evidence: "broken"})
	}
	for verbose, want := range map[bool]int{false: 10, true: 12} {
		var b strings.Builder
		if err := WriteText(&b, []rule.Result{r}, TextOptions{Verbose: verbose}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(b.String(), ": broken\n"); got != want || strings.Contains(b.String(), "and 2 more") == verbose {
			t.Errorf("verbose %v: %d findings:\n%s", verbose, got, b.String())
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		statuses     []rule.Status
		want, strict int
	}{
		{nil, 0, 0},
		{[]rule.Status{rule.OK, rule.Skipped}, 0, 0},
		{[]rule.Status{rule.OK, rule.Status(rule.Warn)}, 0, 1},
		{[]rule.Status{rule.OK, rule.Unknown}, 0, 2},
		{[]rule.Status{rule.Status(rule.Warn), rule.Unknown}, 0, 1},
		{[]rule.Status{rule.Status(rule.Fail), rule.Unknown, rule.OK}, 1, 1},
		{[]rule.Status{rule.Unknown, rule.Skipped}, 2, 2},
	} {
		var results []rule.Result
		for _, s := range c.statuses {
			results = append(results, rule.Result{Status: s})
		}
		if got := ExitCode(results, false); got != c.want {
			t.Errorf("%v: %d, not %d", c.statuses, got, c.want)
		}
		if got := ExitCode(results, true); got != c.strict {
			t.Errorf("strict, %v: %d, not %d", c.statuses, got, c.strict)
		}
	}
}

func TestJSONReportHasTheResults(t *testing.T) {
	f := sick()
	var b bytes.Buffer
	if err := NewDocument(f, rule.Judge(rule.Select(Rules(), rule.NodeScope), f)).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var d Document
	if err := json.Unmarshal(b.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.Schema != ResultSchema || d.Status != rule.Status(rule.Fail) || d.Node != "node-1" || d.Counts[rule.Status(rule.Fail)] == 0 || !d.Taken.Equal(f.Taken) {
		t.Errorf("%+v", d)
	}
	for _, r := range d.Results {
		if r.ID == "NIC-CARRIER" && (r.Status != rule.Status(rule.Fail) || r.Findings[0].Object != "NIC ens4np0" || r.Cure == "") {
			t.Errorf("%+v", r)
		}
	}
}

func TestEqualFindingsOfNodesAreOne(t *testing.T) {
	var results []rule.Result
	for i := range 6 {
		results = append(results, rule.Result{
			ID: "HOST-PEERMEM", Node: fmt.Sprintf("n%d", i), Status: rule.Status(rule.Warn), Expects: "e", Consequence: "c", Cure: "c",
			Findings: []rule.Finding{{Evidence: "it is not loaded", Fix: "modprobe x"}, {Object: "NIC a", Evidence: fmt.Sprint("odd ", i/5)}},
		})
	}
	for verbose, wants := range map[bool][]string{
		false: {"* n0, n1, n2 and 3 more nodes: it is not loaded\n", "* n0, n1, n2 and 2 more nodes: NIC a: odd 0\n", "* n5: NIC a: odd 1\n", "fix          n0, n1, n2 and 3 more nodes: modprobe x\n"},
		true:  {"* n0, n1, n2, n3, n4, n5: it is not loaded\n"},
	} {
		var out strings.Builder
		if err := WriteText(&out, results, TextOptions{Verbose: verbose}); err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if strings.Count(out.String(), want) != 1 {
				t.Errorf("verbose %v: %q is not there once:\n%s", verbose, want, out.String())
			}
		}
	}
}
