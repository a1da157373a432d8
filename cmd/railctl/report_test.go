package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// storedFacts returns facts of a node with eight rails, of which rail 3 has no carrier. The pod that
// has rail 4 is gone.
func storedFacts(name string) *fact.Facts {
	const source = "test"
	var nics []fact.NIC
	for rail := range 8 {
		nics = append(nics, fact.NIC{
			Name: fmt.Sprintf("ens%dnp0", 12+rail), PCI: fmt.Sprintf("0000:%02x:00.0", 0x40+rail), Kind: "pf", Driver: "mlx5_core", Rail: &rail,
			AdminUp: fact.Known(true, source), Carrier: fact.Known(rail != 3, source), Mbps: fact.Known(int64(400000), source),
		})
	}
	f := &fact.Facts{Schema: fact.Schema, Node: name, Version: "v1", NICs: &fact.NICs{}, Ledger: &fact.Ledger{}}
	f.NICs.List = fact.Known(nics, source)
	f.Ledger.Attachments = fact.Known([]fact.Attachment{{Pod: "training/llama-worker-1", NIC: nics[4].Name, PCI: nics[4].PCI}}, source)
	return f
}

func TestReportWritesThePageOfStoredFacts(t *testing.T) {
	dir := t.TempDir()
	store := func(name string, f *fact.Facts) string {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name+".json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two := store("one", storedFacts("node-1")), store("two", storedFacts("node-2"))
	cluster := store("cluster", &fact.Facts{Schema: fact.Schema, Cluster: &fact.Cluster{Nodes: []*fact.Facts{nil, storedFacts("node-1"), storedFacts("node-2")}}})
	short := storedFacts("node-3")
	short.NICs.List.Value = short.NICs.List.Value[1:]
	for _, c := range []struct {
		facts []string
		want  []string
	}{
		{[]string{one}, []string{"Rails of node-1", "NIC-CARRIER", "ens15np0: ", "llama-worker-1"}},
		{[]string{one, two, store("three", short)}, []string{"Rails of 3 nodes", "Rail 7", "RAIL-ABSENT", "on 3 nodes", "node-1, node-2, node-3"}},
		{[]string{cluster}, []string{"Rails of 2 nodes", "Rail 7"}},
	} {
		args := []string{"report", "--html"}
		file := filepath.Join(dir, "page.html")
		args = append(args, file)
		for _, f := range c.facts {
			args = append(args, "--facts", f)
		}
		if out, errOut, code := plainRun(args...); code != 0 || out != "" || errOut != "" {
			t.Fatalf("%v: exit code %d, stdout %q, stderr %q", args, code, out, errOut)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		contains(t, strings.Join(args, " "), html.UnescapeString(string(data)), c.want...)
		if bytes.Contains(data, []byte("<svg")) {
			t.Errorf("%v: facts have no topology, and the page has a picture", args)
		}
	}
	if out, _, code := plainRun("report", "--html", "-", "--facts", one); code != 0 || !strings.HasPrefix(out, "<!DOCTYPE html>") {
		t.Errorf("to stdout: exit code %d\n%s", code, out)
	}
	for want, args := range map[string][]string{
		"two files have the facts of node node-1": {"--html", "-", "--facts", one, "--facts", one},
		`"html" not set`: {"--facts", one},
		"no such file":   {"--html", "-", "--facts", filepath.Join(dir, "none")},
	} {
		if out, errOut, code := plainRun(append([]string{"report"}, args...)...); code == 0 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q", args, code, out, errOut)
		}
	}
}

// TestReportOfANodeHasItsPicture runs on a real node, with a pod that holds a NIC.
func TestReportOfANodeHasItsPicture(t *testing.T) {
	l := newLab(t)
	l.lend()
	shown := html.UnescapeString(l.must("report", "--html", "-"))
	contains(t, "the page", shown, "GPUs and NICs of this node", "ens12np0", "→ default/web-0", `default/web-0 <span class="none">0s</span>`)
}
