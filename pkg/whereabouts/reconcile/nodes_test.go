package reconcile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const nodesPath = "/api/v1/nodes"

// createNode creates a Node whose condition Ready has the status ready. If ready is "", the
// Node has no such condition. The returned function deletes the Node.
func createNode(t *testing.T, ready string) (name string, remove func()) {
	t.Helper()
	name = fmt.Sprintf("node-%08x", rand.Uint32())
	conditions := []any{map[string]any{"type": "MemoryPressure", "status": "False"}}
	if ready != "" {
		conditions = append(conditions, map[string]any{"type": "Ready", "status": ready})
	}
	pooltest.Create(t, plane, nodesPath, map[string]any{"metadata": map[string]any{"name": name}, "status": map[string]any{"conditions": conditions}})
	remove = func() {
		if code, answer, err := plane.Admin().Delete(context.Background(), nodesPath+"/"+name); err != nil || code != http.StatusOK && code != http.StatusNotFound {
			t.Error(code, string(answer), err)
		}
	}
	t.Cleanup(remove)
	return name, remove
}

// A node that lost its connection goes on running a pod that was deleted by force, or
// together with its Node. Another pod must not get the address of that pod so soon.
func TestReconcileWaitsLongerWhileAPodThatIsGoneMayStillRun(t *testing.T) {
	for what, tc := range map[string]struct {
		ready   string
		begun   bool // just now
		removed bool // the other Node, since the last scan
		denied  bool // the list of Nodes
		why     string
	}{
		"all nodes are ready":      {ready: "True"},
		"one is not ready":         {ready: "False", why: "was not ready"},
		"one is silent":            {ready: "Unknown", why: "was not ready"},
		"one has never been ready": {why: "was not ready"},
		"one was removed":          {ready: "True", removed: true, why: "was removed"},
		"it has just begun":        {ready: "True", begun: true, why: "has just begun"},
		"it may not list nodes":    {ready: "True", denied: true, why: "the nodes are unknown"},
	} {
		t.Run(what, func(t *testing.T) {
			l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
			createNode(t, tc.ready)
			_, removeOther := createNode(t, "True")
			l.add(l.owner("gone", 0), c)
			url := pooltest.Between(t, plane, func(r *http.Request, _ []byte) (int, string) {
				if tc.denied && r.URL.Path == nodesPath {
					return http.StatusForbidden, `{"kind":"Status","reason":"Forbidden","code":403}`
				}
				return 0, ""
			}, nil)
			client, err := kube.Open(kube.Config{Kubeconfig: pooltest.Kubeconfig(t, plane, url, l.ns)})
			if err != nil {
				t.Fatal(err)
			}
			r := New(Options{Client: client, NodeGrace: time.Hour})
			r.nodes = &nodes{grace: r.NodeGrace}
			if !tc.begun {
				r.nodes.mayRunBecause(pooltest.Context(t), r.Client)
				r.nodes.until = time.Time{}
			}
			if tc.removed {
				removeOther()
			}
			found, err := r.scan(pooltest.Context(t), nil)
			if err != nil || len(found) != 1 {
				t.Fatal(found, err)
			}
			want := Freed
			if tc.why != "" {
				want = Waiting
				if next := time.Until(r.someAt(0)); next < r.NodeGrace-time.Minute {
					t.Errorf("the next look is in %s: each costs a list of all pools", next)
				}
			}
			if f := found[0]; f.Outcome != want || !strings.Contains(f.Why, tc.why) || strings.Contains(f.Why, "may still run") != (tc.why != "") {
				t.Errorf("%s, because %s; want %s", f.Outcome, f.Why, want)
			}
			for key := range r.marks { // the time passes
				m := r.marks[key]
				m.since = m.since.Add(-r.NodeGrace)
				r.marks[key] = m
			}
			if found, err = r.scan(pooltest.Context(t), nil); err != nil {
				t.Fatal(err)
			}
			if tc.why != "" && (len(found) != 1 || found[0].Outcome != Freed) {
				t.Errorf("after the longer time: %v", found)
			}
			l.wantHeld("in the end")
		})
	}
}

// The node of such a pod has told the cluster of its new sandbox.
func TestDoubtAboutNodesDoesNotDelayWhatIsNotAboutPodsThatAreGone(t *testing.T) {
	r := New(Options{NodeGrace: time.Hour})
	f := &Finding{Kind: StaleEntry, PodRef: "default/web", holding: &api.Holding{Key: "1"}}
	if due := r.due([]*Finding{f}, map[string]*podState{"default/web": {uid: "1"}}, nil, nil, "a node is not ready"); len(due) != 1 {
		t.Errorf("due are %v", due)
	}
}
