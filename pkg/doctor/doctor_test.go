package doctor

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// healthy returns the facts of a node on which all rules are ok: no rule finds anything, is skipped
// or is unknown.
func healthy() *fact.Facts {
	f := &fact.Facts{Schema: fact.Schema, Node: "node-1", Version: "v1"}
	healthyNode(f)
	healthyPod(f)
	healthyConfigs(f)
	healthyCluster(f)
	return f
}

// fixture has changes of the healthy facts that prove that a rule works.
type fixture struct {
	fires   func(*fact.Facts)
	missing func(*fact.Facts) // one fact is away, and nothing is found
	also    []string          // the other rules that find something in fires, rightly
}

// fixtures has a fixture for each rule, by its ID.
var fixtures = map[string]fixture{}

func add(id string, f fixture) { fixtures[id] = f }

func statusOf(results []rule.Result, id string) rule.Status {
	i := slices.IndexFunc(results, func(r rule.Result) bool { return r.ID == id })
	if i < 0 {
		return "no such rule"
	}
	return results[i].Status
}

// TestRulesThatNeedTheAPIServerSaySo: rail-agent may not read from the API server, so it leaves
// these rules out.
func TestRulesThatNeedTheAPIServerSaySo(t *testing.T) {
	f := healthy()
	away(&f.Kubelet.Allocatable)
	away(&f.Kubelet.Capacity)
	away(&f.Kubelet.Labels)
	for i := range f.Pods {
		away(&f.Pods[i].Status)
	}
	rules := rule.Select(Rules(), rule.NodeScope, rule.PodScope)
	for i, r := range rule.Judge(rules, f) {
		if rules[i].API != (r.Status == rule.Unknown) {
			t.Errorf("%s: %s, API is %t", r.ID, r.Status, rules[i].API)
		}
	}
}

// TestPodsThatAreNotKnownAreUnknown: without the attachments it is not known which pods hold a NIC.
func TestPodsThatAreNotKnownAreUnknown(t *testing.T) {
	f := healthy()
	f.Pods = nil
	away(&f.Ledger.Attachments)
	for _, r := range rule.Judge(rule.Select(Rules(), rule.PodScope), f) {
		if r.Status != rule.Unknown {
			t.Errorf("%s is %s", r.ID, r.Status)
		}
	}
}

// TestFlapsThatNobodyRemembersAreNotJudged: only rail-agent remembers losses of a carrier. If facts
// have no losses, this does not prove that there were none.
func TestFlapsThatNobodyRemembersAreNotJudged(t *testing.T) {
	f := healthy()
	list := f.NICs.List.Value
	list[1].Flaps = fact.Fact[fact.Flaps]{}
	if have := statusOf(rule.Judge(Rules(), f), "NIC-FLAP"); have != rule.Unknown {
		t.Errorf("of one NIC: %s", have)
	}
	for i := range list {
		list[i].Flaps = fact.Fact[fact.Flaps]{}
	}
	if have := statusOf(rule.Judge(Rules(), f), "NIC-FLAP"); have != rule.Skipped {
		t.Errorf("of no NIC: %s", have)
	}
}

// TestNetworksThatAreNotKnownAreUnknown: networks that could not be read must not count as ok. If
// there are no networks, there is nothing to check.
func TestNetworksThatAreNotKnownAreUnknown(t *testing.T) {
	for _, c := range []struct {
		nads fact.Fact[[]fact.Config]
		want rule.Status
	}{{fact.Failed[[]fact.Config]("API server", errors.New("no kubeconfig")), rule.Unknown}, {fact.Known([]fact.Config{}, "API server"), rule.Skipped}, {fact.Fact[[]fact.Config]{}, rule.Skipped}} {
		f := &fact.Facts{Schema: fact.Schema, Configs: &fact.Configs{Files: fact.Known([]fact.Config{}, "test"), NADs: c.nads}}
		results := rule.Judge(Rules(), f)
		for _, id := range []string{"CNI-NAD", "CNI-KEY", "IPAM-GW", "IPAM-OVERLAP"} {
			if have := statusOf(results, id); have != c.want {
				t.Errorf("%+v: %s is %s", c.nads, id, have)
			}
		}
		if have := statusOf(results, "NODE-FILE"); have != rule.Skipped {
			t.Errorf("NODE-FILE without a node file is %s", have)
		}
	}
}

func TestEachRuleHasItsFixtures(t *testing.T) {
	rules := Rules()
	for _, r := range rule.Judge(rules, healthy()) {
		if r.Status != rule.OK {
			t.Errorf("healthy facts: %s is %s: %+v %v", r.ID, r.Status, r.Findings, r.Missing)
		}
	}
	for _, one := range rules {
		t.Run(one.ID, func(t *testing.T) {
			x, ok := fixtures[one.ID]
			if !ok {
				t.Fatal("the rule has no fixture")
			}
			f := healthy()
			x.fires(f)
			results := rule.Judge(rules, f)
			for _, r := range results {
				fired := len(r.Findings) > 0
				if want := r.ID == one.ID || slices.Contains(x.also, r.ID); fired != want {
					t.Errorf("%s is %s: %+v", r.ID, r.Status, r.Findings)
				}
			}
			if got := statusOf(results, one.ID); got != rule.Status(one.Severity) {
				t.Errorf("the status is %s", got)
			}

			f = healthy()
			x.missing(f)
			if got := statusOf(rule.Judge(rules, f), one.ID); got != rule.Unknown {
				t.Errorf("without a fact the status is %s", got)
			}

			// The facts are written to a document and read again.
			text, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			read, err := fact.Decode(strings.NewReader(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			if got := statusOf(rule.Judge(rules, read), one.ID); got != rule.Unknown {
				t.Errorf("from a file: %s", got)
			}
		})
	}
	for id := range fixtures {
		if !slices.ContainsFunc(rules, func(r rule.Rule) bool { return r.ID == id }) {
			t.Errorf("the fixture %s has no rule", id)
		}
	}
}

func TestRulesAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rules() {
		if !regexp.MustCompile(`^[A-Z0-9]+(-[A-Z0-9]+)+$`).MatchString(r.ID) || seen[r.ID] {
			t.Errorf("the ID %q is not well-formed, or there twice", r.ID)
		}
		seen[r.ID] = true
		if !slices.Contains(rule.Scopes, r.Scope) || r.Severity != rule.Warn && r.Severity != rule.Fail || r.Check == nil {
			t.Errorf("%s has no scope, severity or check", r.ID)
		}
		for _, text := range []string{r.Expects, r.Consequence, r.Cure} {
			if !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %q is not a sentence", r.ID, text)
			}
		}
	}
}

// TestNothingIsOKWithoutFacts judges documents that contain no facts.
func TestNothingIsOKWithoutFacts(t *testing.T) {
	for _, text := range []string{
		`{"schema": "` + fact.Schema + `", "host": {}, "nics": {}, "ledger": {}, "cni": {}, "kubelet": {}, "agent": {}, "configs": {}, "pods": [{}], "cluster": {}}`,
		`{"schema": "` + fact.Schema + `", "nics": {"list": {"value": [{}]}}}`,
	} {
		f, err := fact.Decode(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rule.Judge(Rules(), f) {
			if r.Status == rule.OK || len(r.Findings) > 0 {
				t.Errorf("%s: %s is %s", text, r.ID, r.Status)
			}
		}
	}
}

func FuzzJudge(f *testing.F) {
	// The engine is slow with large inputs.
	for _, part := range []func(*fact.Facts){
		func(f *fact.Facts) { f.Cluster, f.Configs = nil, nil },
		func(f *fact.Facts) { *f = fact.Facts{Configs: f.Configs} },
		func(f *fact.Facts) { *f = fact.Facts{Cluster: f.Cluster} },
	} {
		facts := healthy()
		part(facts)
		facts.Schema = fact.Schema
		for _, n := range []*fact.Facts{facts, at2(facts, 0), at2(facts, 1)} {
			if n != nil && n.NICs != nil {
				n.NICs.List.Value = []fact.NIC{*nic(n, 0), *nic(n, 8)}
				n.NICs.GPUs.Value = n.NICs.GPUs.Value[:1]
			}
		}
		text, err := json.Marshal(facts)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		facts, err := fact.Decode(strings.NewReader(string(text)))
		if err != nil {
			return
		}
		for _, r := range rule.Judge(Rules(), facts) {
			for _, m := range r.Missing {
				if strings.Contains(m, "panicked") {
					t.Error(m)
				}
			}
		}
	})
}

// at2 reduces the cluster to two nodes and returns one of them. It returns nil if there is no
// cluster.
func at2(f *fact.Facts, i int) *fact.Facts {
	if f.Cluster == nil {
		return nil
	}
	f.Cluster.Nodes = f.Cluster.Nodes[:2]
	return at(f, i)
}

// TestFindingsOfANodeHaveDifferentParts: rail-agent reports each finding once, so several findings
// about the same object need different parts.
func TestFindingsOfANodeHaveDifferentParts(t *testing.T) {
	f := healthy()
	f.Host.Modules.Value = nil
	f.Host.CharDevices.Value = nil
	f.Host.LimitsConf.Value = []string{"* soft memlock 64", "* hard memlock 64"}
	f.Host.KernelLog.Value = []string{"mlx5_core 0000:99:00.0: Port module event: Cable error 1", "mlx5_core 0000:98:00.0: insufficient power 2"}
	f.NICs.Problems.Value = []string{"rail 1: no NIC is called a", "rail 2: no NIC is called b"}
	f.Ledger.Unreadable.Value = []string{"a.json: bad", "b.json: bad"}
	f.Ledger.Changed.Value = []string{"ens1: [mtu] (a.json)", "ens2: [mtu] (b.json)"}
	for i := range f.Pods {
		for k := range f.Pods[i].Interfaces.Value {
			in := &f.Pods[i].Interfaces.Value[k]
			in.Carrier, in.MTU = false, 1280
		}
		for k := range f.Pods[i].Containers.Value {
			c := &f.Pods[i].Containers.Value[k]
			c.Env = map[string]string{"NCCL_IB_HCA": "x", "NCCL_IB_GID_INDEX": "99", "UCX_IB_GID_INDEX": "99", "NCCL_SOCKET_IFNAME": "net", "GLOO_SOCKET_IFNAME": "net1"}
		}
	}
	several := 0
	for _, r := range rule.Judge(rule.Select(Rules(), rule.NodeScope, rule.PodScope), f) {
		seen := map[string]string{}
		for _, found := range r.Findings {
			key := found.Object + "|" + found.Part
			if before, ok := seen[key]; ok {
				t.Errorf("%s: %q and %q have the key %s", r.ID, before, found.Evidence, key)
			}
			seen[key] = found.Evidence
			if found.Part != "" && len(seen) > 1 {
				several++
			}
		}
	}
	if several < 10 {
		t.Errorf("%d findings with a part", several)
	}
}
