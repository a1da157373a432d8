package store

import (
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// createSlices creates a NodeSlicePool with a slice for node.
func createSlices(t *testing.T, name, node, slice string) {
	t.Helper()
	pooltest.Create(t, plane, crPath("nodeslicepools", ""), map[string]any{
		"apiVersion": api.Group + "/" + api.Version, "kind": "NodeSlicePool",
		"metadata": map[string]any{"name": name, "namespace": testNamespace},
		"spec":     map[string]any{"range": "10.0.0.0/24", "sliceSize": "/26"},
		"status":   map[string]any{"allocations": []any{map[string]any{"nodeName": node, "sliceRange": slice}}},
	})
}

// ofNode returns c with the pool of a node.
func ofNode(c ipam.Claim, node string) ipam.Claim {
	c.Pool.Node = node
	return c
}

// If the node has lost its notes and the server does not answer, a DEL does not know
// the node's slice.
func TestDelWithoutASliceIsDoneOnceTheServerAnswers(t *testing.T) {
	for name, free := range map[string]func(t *testing.T, n *node, own ipam.Claim){
		"agent": func(t *testing.T, n *node, _ ipam.Claim) {
			if left, err := n.Replay(pooltest.Context(t)); left != 0 || err != nil {
				t.Errorf("%d are left: %v", left, err)
			}
		},
		"add": func(t *testing.T, n *node, own ipam.Claim) {
			if got, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), own.Pool.Space, "node1"); err != nil || got != own.Pool.Prefix {
				t.Error(got, err)
			}
			n.wantAdd(pooltest.Pod(1), "10.0.0.66/26", own)
			n.del(pooltest.Pod(1), own.Pool)
		},
	} {
		t.Run(name, func(t *testing.T) {
			space := "lostslice-" + name
			whole, own := ofNode(pooltest.Claim(t, space, "10.0.0.0/24"), "node1"), ofNode(pooltest.Claim(t, space, "10.0.0.64/26"), "node1")
			createSlices(t, space, "node1", "10.0.0.64/26")
			var away atomic.Bool
			url := pooltest.Between(t, plane, func(*http.Request, []byte) (int, string) {
				if away.Load() {
					return http.StatusServiceUnavailable, `{"kind":"Status","code":503}`
				}
				return 0, ""
			}, nil)
			kubeconfig := pooltest.Kubeconfig(t, plane, url, testNamespace)
			newNodeAt(t, kubeconfig, t.TempDir()).wantAdd(pooltest.Pod(0), "10.0.0.65/26", own) // its notes are lost
			n := newNodeAt(t, kubeconfig, t.TempDir())
			away.Store(true)
			if err := n.ReleaseSlice(pooltest.Context(t), pooltest.Pod(0), whole.Pool, space); err != nil {
				t.Fatal(err)
			}
			n.wantJournal("after the DEL", 1)
			away.Store(false)
			free(t, n, own)
			n.wantJournal("in the end", 0)
			wantEmpty(t, own.Pool)
		})
	}
}

func journalOf(t *testing.T, n *node) map[string]*deferred {
	t.Helper()
	all, err := n.journal.all()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// An entry completed later would free the address of a running pod.
func TestDeferredDelWithoutASliceDoesNotFreeTheNextAddsAddress(t *testing.T) {
	n, own := newNode(t), ofNode(pooltest.Claim(t, "sliceagain", "10.0.0.64/26"), "node1")
	whole := ofNode(pooltest.Claim(t, "sliceagain", "10.0.0.0/24"), "node1")
	createSlices(t, "sliceagain", "node1", "10.0.0.64/26")
	if err := (Journal{n.journal.Path}).AddSlice(Endpoint{Kubeconfig: n.kubeconfig}, pooltest.Pod(0), whole.Pool, "sliceagain"); err != nil {
		t.Fatal(err)
	}
	if got, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), "sliceagain", "node1"); err != nil || got != own.Pool.Prefix {
		t.Fatal(got, err)
	}
	n.wantAdd(pooltest.Pod(0), "10.0.0.65/26", own)
	if left, err := n.Replay(pooltest.Context(t)); left != 0 || err != nil {
		t.Errorf("%d are left: %v", left, err)
	}
	if got := entries(t, own.Pool); len(got) != 1 {
		t.Errorf("entries %v", got)
	}
}

func TestDeferredDelForASliceThatIsGoneIsDropped(t *testing.T) {
	n := newNode(t)
	createSlices(t, "slicegone", "node2", "10.0.0.64/26")
	for i, name := range []string{"slicegone", "slicegone-all"} { // no slice of the node, and no NodeSlicePool
		pool := ipam.Pool{Space: name, Node: "node1", Prefix: netip.MustParsePrefix("10.0.0.0/24")}
		if err := (Journal{n.journal.Path}).AddSlice(Endpoint{Kubeconfig: n.kubeconfig}, pooltest.Pod(i), pool, name); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := pooltest.Kubeconfig(t, plane, "http://127.0.0.1:1", testNamespace)
	pool := ipam.Pool{Node: "node2", Prefix: netip.MustParsePrefix("10.0.0.0/24")}
	if err := (Journal{n.journal.Path}).AddSlice(Endpoint{Kubeconfig: elsewhere}, pooltest.Pod(2), pool, "slicegone"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Replay(pooltest.Context(t)); err != nil {
		t.Error(err)
	}
	for _, d := range journalOf(t, n) {
		if d.Kubeconfig != elsewhere {
			t.Errorf("%+v stays", d)
		}
	}
	n.wantJournal("of another server", 1)
}

func TestSliceThatIsNotThereIsAnError(t *testing.T) {
	n := newNode(t)
	createSlices(t, "slice-of-another", "node2", "10.0.0.64/26")
	for _, name := range []string{"slice-of-another", "slice-of-nobody"} {
		got, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), name, "node1")
		if err == nil || got.IsValid() || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	n.wantJournal("of nothing", 0)
}

// waitForSlice writes the ends of the attachments of pods below many to n's
// journal.
func waitForSlice(t *testing.T, n *node, whole ipam.Pool, slices string, many int) {
	t.Helper()
	for i := range many {
		if err := (Journal{n.journal.Path}).AddSlice(Endpoint{Kubeconfig: n.kubeconfig}, pooltest.Pod(i), whole, slices); err != nil {
			t.Fatal(err)
		}
	}
}

// waiting returns the number of entries of n's journal that wait for a slice.
func (n *node) waiting() (count int) {
	for _, d := range journalOf(n.t, n) {
		if d.Slices != "" {
			count++
		}
	}
	return count
}

// Thousands of entries may wait after an outage. A call that completed all of them would
// have no time left for itself.
func TestACallEntersItsSliceOnlyForItsOwnAttachment(t *testing.T) {
	n, whole, own := newNode(t), ofNode(pooltest.Claim(t, "sliceown", "10.0.0.0/24"), "node1"), ofNode(pooltest.Claim(t, "sliceown", "10.0.0.64/26"), "node1")
	createSlices(t, "sliceown", "node1", "10.0.0.64/26")
	waitForSlice(t, n, whole.Pool, "sliceown", 5)
	if got, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), "sliceown", "node1"); err != nil || got != own.Pool.Prefix {
		t.Fatal(got, err)
	}
	if left := n.waiting(); left != 4 {
		t.Errorf("%d wait after an ADD, want 4", left)
	}
	if err := n.ReleaseSlice(pooltest.Context(t), pooltest.Pod(1), whole.Pool, "sliceown"); err != nil {
		t.Fatal(err)
	}
	if left := n.waiting(); left != 3 {
		t.Errorf("%d wait after a DEL, want 3", left)
	}
	if left, err := n.Replay(pooltest.Context(t)); left != 0 || err != nil {
		t.Errorf("%d are left: %v", left, err)
	}
}

// A later replay of the entry would take the address from the running pod.
func TestAddFailsThatCannotEnterItsSlice(t *testing.T) {
	n, whole := newNode(t), ofNode(pooltest.Claim(t, "slicefails", "10.0.0.0/24"), "node1")
	createSlices(t, "slicefails", "node1", "10.0.0.64/26")
	waitForSlice(t, n, whole.Pool, "slicefails", 1)
	if err := os.Mkdir(filepath.Join(n.journal.Path, sliceLock), 0o700); err != nil { // the lock cannot be taken
		t.Fatal(err)
	}
	if _, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), "slicefails", "node1"); failure.KindOf(err) != failure.TryAgain {
		t.Errorf("got %v, want that it is tried again", err)
	}
	if _, err := n.Slice(pooltest.Context(t), pooltest.Pod(1), "slicefails", "node1"); err != nil {
		t.Errorf("another attachment: %v", err)
	}
}

func TestReplayReadsEachSliceOnce(t *testing.T) {
	createSlices(t, "sliceonce", "node1", "10.0.0.64/26")
	var asked atomic.Int64
	var refuses atomic.Bool
	url := pooltest.Between(t, plane, func(r *http.Request, _ []byte) (int, string) {
		if !strings.Contains(r.URL.Path, "nodeslicepools") {
			return 0, ""
		}
		asked.Add(1)
		if refuses.Load() {
			return http.StatusForbidden, `{"kind":"Status","status":"Failure","message":"not for you","reason":"Forbidden","code":403}`
		}
		return 0, ""
	}, nil)
	n, whole := newNodeAt(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir()), ofNode(pooltest.Claim(t, "sliceonce", "10.0.0.0/24"), "node1")
	waitForSlice(t, n, whole.Pool, "sliceonce", 5)
	refuses.Store(true)
	if left, err := n.Replay(pooltest.Context(t)); left != 5 || err == nil || strings.Count(err.Error(), "not for you") != 1 || asked.Load() != 1 {
		t.Errorf("refused: %d requests, %d entries left: %v", asked.Load(), left, err)
	}
	refuses.Store(false)
	if left, err := n.Replay(pooltest.Context(t)); left != 0 || err != nil || asked.Load() != 2 {
		t.Errorf("%d requests, %d entries left: %v", asked.Load(), left, err)
	}
}

// The other entry may name more addresses to free.
func TestWhatWaitsForASliceReplacesNoEntryOfThePool(t *testing.T) {
	n, whole, own := newNode(t), ofNode(pooltest.Claim(t, "slicenote", "10.0.0.0/24"), "node1"), ofNode(pooltest.Claim(t, "slicenote", "10.0.0.64/26"), "node1")
	createSlices(t, "slicenote", "node1", "10.0.0.64/26")
	waitForSlice(t, n, whole.Pool, "slicenote", 1)
	noted := &deferred{
		Kubeconfig: n.kubeconfig, Server: n.client.Server(), Namespace: n.client.Namespace(), Pool: own.Pool, Owner: pooltest.Pod(0),
		Note: &note{Owner: pooltest.Pod(0), Pool: own.Pool, Addr: netip.MustParseAddr("10.0.0.65")},
	}
	if err := n.journal.put(noted); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), "slicenote", "node1"); err != nil {
		t.Fatal(err)
	}
	n.wantJournal("entered", 1)
	for _, d := range journalOf(t, n) {
		if d.Note == nil || d.Note.Addr != noted.Note.Addr {
			t.Errorf("left: %+v", d)
		}
	}
}
