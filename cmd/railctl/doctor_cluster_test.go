package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// clusterFacts writes the facts of two nodes to a file. Their rail has different MTUs. One network
// cannot be parsed, and another network is only in the facts of the second node.
func clusterFacts(t *testing.T) string {
	t.Helper()
	rail := 0
	bad := fact.Config{Kind: fact.NADConfig, Name: "default/roce", Text: `{"cniVersion": "1.0.0", "name": "roce", "type": "host-device", "device": 7}`}
	node := func(name string, mtu int, files ...fact.Config) *fact.Facts {
		return &fact.Facts{
			Schema: fact.Schema, Node: name, Configs: &fact.Configs{Files: fact.Known(files, "test"), NADs: fact.Known([]fact.Config{bad}, "test")},
			NICs: &fact.NICs{List: fact.Known([]fact.NIC{{Name: "ens1", Rail: &rail, MTU: fact.Known(mtu, "test"), AdminUp: fact.Known(true, "test"), Carrier: fact.Known(name == "node-a", "test")}}, "test")},
		}
	}
	file := fact.Config{Kind: fact.NodeFile, Name: "/etc/rail-cni/node.yaml", Text: "railz: auto"}
	f := &fact.Facts{Schema: fact.Schema, Cluster: &fact.Cluster{
		Nodes:  []*fact.Facts{node("node-a", 9000), nil, node("node-b", 1500, file)},
		Silent: fact.Known(map[string]string{"node-c": "no answer within 8s"}, "test"),
	}}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "facts.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDoctorClusterJudgesEachNodeAndAllTogether(t *testing.T) {
	file := clusterFacts(t)
	out, errOut, code := plainRun("doctor", "cluster", "--facts", file, "-o", "json", "--only", "NIC-CARRIER,CLUSTER-MTU,CLUSTER-SILENT,CNI-NAD,NODE-FILE")
	if code != doctor.ExitProblem || errOut != "" {
		t.Fatalf("exit code %d, %q\n%s", code, errOut, out)
	}
	var d doctor.Document
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, r := range d.Results {
		var objects []string
		for _, f := range r.Findings {
			objects = append(objects, f.Object)
		}
		have[r.ID+"@"+r.Node] = string(r.Status) + " " + strings.Join(objects, ",")
	}
	for key, want := range map[string]string{
		"CLUSTER-MTU@": "fail node node-b", "CLUSTER-SILENT@": "warn node node-c", "NIC-CARRIER@node-a": "ok ", "NIC-CARRIER@node-b": "fail NIC ens1",
		"CNI-NAD@": "fail NAD default/roce", "NODE-FILE@node-b": "fail node file /etc/rail-cni/node.yaml",
	} {
		if have[key] != want {
			t.Errorf("%s: %q, not %q", key, have[key], want)
		}
	}
	if _, ok := have["NODE-FILE@node-a"]; !ok || len(have) != 7 {
		t.Errorf("results: %q", have)
	}
	text, _, _ := plainRun("doctor", "cluster", "--facts", file)
	if lines := strings.Split(strings.TrimSpace(text), "\n"); !strings.Contains(lines[len(lines)-1], " rules on 2 nodes: ") || !strings.Contains(text, "node-b: NIC ens1") {
		t.Errorf("the report is\n%s", text)
	}
}

func TestDoctorClusterWithoutACluster(t *testing.T) {
	one := filepath.Join(t.TempDir(), "facts.json")
	if err := os.WriteFile(one, []byte(`{"schema": "`+fact.Schema+`", "ledger": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"doctor", "cluster", "--facts", one}, "of one node"},
		{[]string{"doctor", "cluster", "--kubeconfig", filepath.Join(t.TempDir(), "none")}, "no such file"},
		{[]string{"doctor", "collect", "--cluster", "--kubeconfig", filepath.Join(t.TempDir(), "none")}, "no such file"},
	} {
		out, errOut, code := plainRun(c.args...)
		if code != doctor.ExitUnknown || out != "" || !strings.Contains(errOut, c.want) {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", c.args, code, out, errOut)
		}
	}
}
