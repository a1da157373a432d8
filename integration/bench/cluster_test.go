package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

func TestNetworksOfTheClusterDifferInWhatIsMeasured(t *testing.T) {
	dir := t.TempDir()
	l := &clusterLab{plane: &controlplane.Plane{}, dir: dir, confs: dir + "/confs", path: map[string]string{}}
	for _, name := range clusterPlugins {
		l.path[name] = ""
	}
	if err := l.configure(places{state: dir + "/state"}); err != nil {
		t.Fatal(err)
	}
	names, states := map[string]string{}, map[string]bool{}
	for _, name := range clusterPlugins {
		for node := range clusterNodes {
			conf := readNetwork(t, l.confDir(name, node))
			if was, ok := names[conf.Name]; ok && was != name {
				t.Errorf("%s has the network of %s", name, was)
			}
			names[conf.Name] = name
			if state := conf.Plugins[0].StateDir; nodefile.IsBelow(state, dir+"/state") {
				t.Errorf("%s is in another state directory, which plugins refuse", state)
			}
			states[conf.Plugins[0].StateDir] = true
			ipam := conf.Plugins[0].IPAM
			if blocks := name == oursBlocks; blocks != (ipam.BlockSize == clusterBlock) {
				t.Errorf("%s: block_size %d", name, ipam.BlockSize)
			}
			if onServer := !knowsOneNode(name); onServer != (ipam.Kubernetes.Kubeconfig != "") {
				t.Errorf("%s: kubeconfig %q", name, ipam.Kubernetes.Kubeconfig)
			}
		}
	}
	if len(states) != clusterNodes {
		t.Errorf("%d state directories", len(states))
	}
}

type testNetwork struct {
	Name    string
	Plugins []struct {
		StateDir string
		IPAM     struct {
			BlockSize  int `json:"block_size"`
			Kubernetes struct{ Kubeconfig string }
		}
	}
}

func readNetwork(t *testing.T, dir string) (conf testNetwork) {
	t.Helper()
	data, err := os.ReadFile(dir + "/net.conflist")
	if err == nil {
		err = json.Unmarshal(data, &conf)
	}
	if err != nil || len(conf.Plugins) != 1 {
		t.Fatalf("%s: %s (%v)", dir, data, err)
	}
	return conf
}

func TestReportOfTheClusterJudgesBlocks(t *testing.T) {
	run := &clusterRun{versions: "etcd", add: map[string]map[workload]*clusterResult{}, del: map[string]map[workload]*clusterResult{}}
	each := map[string]float64{hostLocal: 10, whereabouts: 100, ours: 20, oursBoth: 20, oursLocal: 11, oursBlocks: 14}
	for name, ms := range each {
		run.add[name], run.del[name] = map[workload]*clusterResult{}, map[workload]*clusterResult{}
		for _, w := range workloads {
			if w.nodes > 1 && knowsOneNode(name) {
				run.add[name][w], run.del[name][w] = &clusterResult{}, &clusterResult{}
				continue
			}
			r := &clusterResult{each: []float64{ms}, wall: []float64{10 * ms}, requests: []float64{0}, plugins: []float64{1}, servers: []float64{1}}
			run.add[name][w], run.del[name][w] = r, r
		}
	}
	run.add[oursBlocks][firsts] = run.add[oursBlocks][spread]
	got := map[string]string{}
	for _, v := range run.verdicts() {
		got[v.Goal] = v.String()
	}
	for goal, want := range map[string]string{
		"ADD, one after another, blocks over the local store": "MISSED by 0.07 × (6 %)",
		"ADD, one after another, blocks less host-local":      "met",
		"ADD, 50 at once, blocks over host-local":             "MISSED by 0.30 × (27 %)",
	} {
		if got[goal] != want {
			t.Errorf("%s: %q, want %q", goal, got[goal], want)
		}
	}
	var text strings.Builder
	(&clusterReport{runs: []*clusterRun{run}}).text(&text)
	for _, row := range []string{
		"the first on each of 10 nodes: ours, blocks", "50 at once, on 10 nodes: ours, blocks", "10, one after another: ours, local store",
	} {
		if !strings.Contains(text.String(), row) {
			t.Errorf("the report lacks %q:\n%s", row, &text)
		}
	}
	rows := run.table("ADD", run.add).rows
	if slices.ContainsFunc(rows, func(row []string) bool { return strings.HasSuffix(row[0], "on 10 nodes: "+oursLocal) }) {
		t.Error("the local store of one node has a row of ten nodes")
	}
}
