package store

import (
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// sliceReads counts the reads of a NodeSlicePool: of the whole object, and of its
// metadata only.
type sliceReads struct{ whole, meta atomic.Int64 }

// newSliceNode returns a node whose reads of NodeSlicePools are counted.
func newSliceNode(t *testing.T) (*node, *sliceReads) {
	t.Helper()
	reads := &sliceReads{}
	url := pooltest.Between(t, plane, func(r *http.Request, _ []byte) (int, string) {
		switch {
		case !strings.Contains(r.URL.Path, "nodeslicepools"):
		case strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata"):
			reads.meta.Add(1)
		default:
			reads.whole.Add(1)
		}
		return 0, ""
	}, nil)
	return newNodeAt(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir()), reads
}

// want checks the reads since the last call.
func (r *sliceReads) want(t *testing.T, what string, whole, meta int64) {
	t.Helper()
	if w, m := r.whole.Swap(0), r.meta.Swap(0); w != whole || m != meta {
		t.Errorf("%s: %d reads of the whole object and %d of its metadata, want %d and %d", what, w, m, whole, meta)
	}
}

func deleteSlices(t *testing.T, name string) {
	t.Helper()
	if code, answer, err := plane.Admin().Delete(t.Context(), crPath("nodeslicepools", name)); err != nil || code != http.StatusOK {
		t.Fatal(code, string(answer), err)
	}
}

// The whole object has the slices of all nodes. A node that went on with an old slice
// would hand out another node's addresses.
func TestSliceIsReadAsAWholeOnlyAfterAChange(t *testing.T) {
	n, reads := newSliceNode(t)
	const name = "slicechange"
	createSlices(t, name, "node1", "10.0.0.64/26")
	wantSlice := func(what, want string, whole, meta int64) {
		t.Helper()
		if got, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), name, "node1"); err != nil || got != netip.MustParsePrefix(want) {
			t.Errorf("%s: %s, %v, want %s", what, got, err, want)
		}
		reads.want(t, what, whole, meta)
	}
	if is, err := newNode(t).client.GetMeta(t.Context(), api.Slices(testNamespace), name); err != nil || is.UID == "" || is.ResourceVersion == "" {
		t.Errorf("metadata from the server itself: %+v, %v", is, err)
	}
	wantSlice("first", "10.0.0.64/26", 1, 0)
	wantSlice("unchanged", "10.0.0.64/26", 0, 1)

	give := func(node, slice string) {
		t.Helper()
		code, answer, err := plane.Admin().Patch(t.Context(), crPath("nodeslicepools", name), controlplane.MergePatch, map[string]any{
			"status": map[string]any{"allocations": []any{map[string]any{"nodeName": node, "sliceRange": slice}}},
		})
		if err != nil || code != http.StatusOK {
			t.Fatal(code, string(answer), err)
		}
	}
	give("node1", "10.0.0.128/26")
	wantSlice("another slice", "10.0.0.128/26", 1, 1)
	wantSlice("unchanged again", "10.0.0.128/26", 0, 1)

	deleteSlices(t, name)
	createSlices(t, name, "node1", "10.0.0.192/26")
	wantSlice("made anew", "10.0.0.192/26", 1, 1)

	give("node2", "10.0.0.192/26")
	if got, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), name, "node1"); failure.KindOf(err) != failure.NotAvailable {
		t.Errorf("another node's by now: %s, %v", got, err)
	}
	deleteSlices(t, name)
	if got, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), name, "node1"); failure.KindOf(err) != failure.NotAvailable || !strings.Contains(err.Error(), "check that whereabouts' node slice controller runs") {
		t.Errorf("deleted: %s, %v", got, err)
	}
}

func TestDamagedSliceIsReadAgain(t *testing.T) {
	n, reads := newSliceNode(t)
	createSlices(t, "slicedamaged", "node1", "10.0.0.64/26")
	for _, text := range []string{"", "{", "null", `{"slice":"","uid":"","revision":"7"}`} {
		if err := n.keepSlice("slicedamaged", "node1", n.lastSlice("slicedamaged", "node1")); err != nil { // makes the directory
			t.Fatal(err)
		}
		path := n.dir.Path() + "/" + slicesDir + "/slicedamaged@node1"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), "slicedamaged", "node1"); err != nil || got.String() != "10.0.0.64/26" {
			t.Errorf("%q: %s, %v", text, got, err)
		}
		reads.want(t, text, 1, 0)
	}
}

// A runtime repeats the DEL of each attachment. The first one dropped the note.
func TestDelWithoutANoteDoesNotAskForTheSliceAgain(t *testing.T) {
	n, reads := newSliceNode(t)
	whole, own := ofNode(pooltest.Claim(t, "slicedel", "10.0.0.0/24"), "node1"), ofNode(pooltest.Claim(t, "slicedel", "10.0.0.64/26"), "node1")
	createSlices(t, "slicedel", "node1", "10.0.0.64/26")
	if _, err := n.Slice(pooltest.Context(t), pooltest.Pod(0), "slicedel", "node1"); err != nil {
		t.Fatal(err)
	}
	n.wantAdd(pooltest.Pod(0), "10.0.0.65/26", own)
	reads.want(t, "ADD", 1, 0)
	if err := n.notes.drop(pooltest.Pod(0), own.Pool.Name()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.ReleaseSlice(pooltest.Context(t), pooltest.Pod(0), whole.Pool, "slicedel"); err != nil {
			t.Fatal(err)
		}
	}
	reads.want(t, "DEL", 0, 0)
	wantEmpty(t, own.Pool)
}
