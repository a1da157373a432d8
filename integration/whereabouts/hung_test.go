package whereabouts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

const (
	rails = 8
	// delsGoal is for the DELs of all rails of a pod together, which run one after another:
	// the first may take the time of one request, 10 s, and the work before it.
	delsGoal = 11 * time.Second
	// waited is half of the least time of a DEL that waits for the server or a lock. One that
	// does not wait takes some 20 ms.
	waited = store.RetryFor / 2
)

// rail is the call of a pod's rail. Each rail has a pool of its own.
func (n *node) rail(t *testing.T, i int, ipam string) call {
	t.Helper()
	id, args := identity(1)
	return call{
		binary: ours(t), verb: "ADD", id: id, ifname: fmt.Sprint("net", i), args: args,
		stdin: n.config(t, "1.0.0", fmt.Sprintf(`{"range":"10.%d.0.0/24","network_name":"rail%d"%s}`, i, i, ipam), ""),
	}
}

// makeSlice makes the NodeSlicePool of a rail, with a slice for node1.
func makeSlice(t *testing.T, namespace string, i int) {
	t.Helper()
	mustCreate(t, group+namespace+"/"+slicePools, map[string]any{
		"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "NodeSlicePool",
		"metadata": map[string]any{"name": fmt.Sprint("rail", i)},
		"spec":     map[string]any{"range": fmt.Sprintf("10.%d.0.0/24", i), "sliceSize": "/26"},
		"status": map[string]any{"allocations": []any{
			map[string]any{"nodeName": "node1", "sliceRange": fmt.Sprintf("10.%d.0.64/26", i)},
		}},
	})
}

// TestDelsOfAllRailsDoNotWaitForTheClusterOneByOne ends a pod with eight rails,
// each by a process of its own and one after another as Multus does it, while
// none of them can reach the cluster. Together they take the time of one. All
// are written to the journal, and done when the cluster is reachable again.
func TestDelsOfAllRailsDoNotWaitForTheClusterOneByOne(t *testing.T) {
	slices := `,"node_slice_size":"/26"`
	for name, tc := range map[string]struct {
		ipam    string
		unknown bool // the node has lost its notes
		locked  bool // a lock hangs, not the server
		// requests is the largest total number of held requests
		requests int
	}{
		"the server accepts and never answers":   {requests: 1},
		"another process holds the pools' locks": {locked: true},
		"node slices":                            {ipam: slices, requests: 1},
		"the notes are lost":                     {unknown: true, requests: 1},
		"node slices, and the notes are lost":    {ipam: slices, unknown: true, requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace, g := newNamespace(t), newGate(t)
			n := newNodeBehind(t, namespace, g)
			var dels []call
			var unlock []func()
			for i := range rails {
				if tc.ipam != "" {
					makeSlice(t, namespace, i)
				}
				c := n.rail(t, i, tc.ipam)
				c.node = "node1"
				mustAdd(t, c)
				c.verb = "DEL"
				dels = append(dels, c)
				if tc.locked {
					unlock = append(unlock, n.lockPool(t, fmt.Sprintf("rail%d-10.%d.0.0-24", i, i)))
				}
			}
			if tc.unknown {
				if err := os.RemoveAll(filepath.Join(n.dir, "state", "ipam-kubernetes")); err != nil {
					t.Fatal(err)
				}
			}
			if !tc.locked {
				g.shut("")
			}
			began, waits := time.Now(), 0
			for i, c := range dels {
				start := time.Now()
				if _, err := c.run(); err != nil {
					t.Errorf("DEL of rail %d: %v", i, err)
				}
				if time.Since(start) > waited {
					waits++
				}
			}
			timing.Check(t, fmt.Sprintf("%d DELs, with %d requests,", rails, g.holds()), time.Since(began), delsGoal)
			if waits > 1 {
				t.Errorf("%d of %d DELs waited", waits, rails)
			}
			if g.holds() > tc.requests {
				t.Errorf("%d requests waited for their time-out, want at most %d", g.holds(), tc.requests)
			}
			if journalled := n.glob(t, "state", "ipam-journal", "*.*"); len(journalled) != rails {
				t.Errorf("the journal has %d of %d addresses", len(journalled), rails)
			}
			g.open()
			for _, u := range unlock {
				u()
			}
			n.settleJournal(t)
			wantEmpty(t, namespace)
		})
	}
}

const (
	// addGoal is for an ADD for which the sandbox has no time left: 5 s, and 10 s to take
	// back what it may have got.
	addGoal = 16 * time.Second
	// ofItself is the time of an ADD whose sandbox has time left.
	ofItself = 2 * time.Minute
)

// TestAddsOfAllRailsShareTheSandboxsTime: the kubelet allows a sandbox four minutes, not
// two for each rail.
func TestAddsOfAllRailsShareTheSandboxsTime(t *testing.T) {
	t.Parallel()
	namespace, g := newNamespace(t), newGate(t)
	n := newNodeBehind(t, namespace, g)
	first, second := n.rail(t, 1, ""), n.rail(t, 2, "")
	mustAdd(t, first)
	notes := n.glob(t, "state", "ipam-kubernetes", "*", "notes", "*.note")
	if len(notes) != 1 {
		t.Fatalf("notes %q", notes)
	}
	makeOlder(t, notes[0], "born", 3*time.Minute)
	g.shut("")
	began := time.Now()
	_, err := second.run()
	took := time.Since(began)
	if err == nil || !strings.Contains(err.Error(), "all ADDs of a pod's sandbox together have 3m0s") {
		t.Errorf("the second ADD: %v", err)
	}
	timing.Check(t, "the second ADD", took, addGoal)
	if took > ofItself {
		t.Errorf("it had the time of an ADD by itself: %v", took)
	}
	g.open()
	for _, c := range []call{first, second} {
		c.verb = "DEL"
		if _, err := c.run(); err != nil {
			t.Error(err)
		}
	}
	n.settleJournal(t)
	wantEmpty(t, namespace)
}

// makeOlder sets back a time in a file.
func makeOlder(t *testing.T, path, key string, by time.Duration) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	fields[key] = time.Now().Add(-by)
	if data, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAddsAskAServerThatWasSilent: an ADD does not wait because of earlier
// DELs' timeouts, and the first one that gets an answer ends this state.
func TestAddsAskAServerThatWasSilent(t *testing.T) {
	namespace, g := newNamespace(t), newGate(t)
	n := newNodeBehind(t, namespace, g)
	silent := func(want int) {
		t.Helper()
		if found := n.glob(t, "state", "ipam-kubernetes", "*", "silent"); len(found) != want {
			t.Errorf("remembered: %q, want %d", found, want)
		}
	}
	first, second := n.rail(t, 1, ""), n.rail(t, 2, "")
	mustAdd(t, first)
	g.shut("")
	first.verb = "DEL"
	if _, err := first.run(); err != nil {
		t.Fatal(err)
	}
	silent(1)
	g.open()
	mustAdd(t, second)
	silent(0)
	second.verb = "DEL"
	if _, err := second.run(); err != nil {
		t.Fatal(err)
	}
	if entries, _ := holders(t, namespace); len(entries) != 1 {
		t.Errorf("the second DEL was not done at once: %q", entries)
	}
	n.settleJournal(t)
	wantEmpty(t, namespace)
}
