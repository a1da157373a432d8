package reconcile

import (
	"net/http"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// A reconciler's knowledge may be outdated when it acts. In these tests it
// decides, then something changes, and then it acts.

// The watch reported that a pod was deleted an hour ago. Another pod of that name has
// just ended, and has a grace period of its own for its DEL.
func TestReconcileWaitsForLaterPodOfTheSameName(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("job", 0), c)
	ref := l.owner("job", 0).PodRef
	r := l.reconciler(time.Minute)
	s, found := l.judged(nil)
	due := r.due(found, nil, map[string]time.Time{ref: time.Now().Add(-time.Hour)}, map[string]bool{ref: true}, "")
	if len(due) != 1 {
		t.Fatalf("due are %v", due)
	}
	l.createPod("job", nil)
	l.setPhase("job", "Succeeded", false)
	r.act(pooltest.Context(t), s, due)
	wantFindings(t, tally(t, found), "stale entry 10.0.0.1 "+Waiting)
	l.wantHeld("just ended", "10.0.0.0-24/1 job", "10.0.0.1 job")
}

// judged returns the findings of a scan.
func (l *reconcilerLab) judged(live map[string]*podState) (*api.Survey, []*Finding) {
	l.t.Helper()
	s, err := api.Inspect(pooltest.Context(l.t), l.client)
	if err != nil {
		l.t.Fatal(err)
	}
	return s, judge(s, live, 0)
}

// The entry may be of the sandbox in which a new pod is starting, and that pod may have
// the old one's annotations, from a controller's template.
func TestReconcileLeavesEntryOfNewPodWithTheSameName(t *testing.T) {
	l := newReconcilerLab(t)
	a, b := pooltest.Claim(t, "", "10.0.0.0/26"), pooltest.Claim(t, "", "10.0.0.64/26")
	a.Pool.Node, b.Pool.Node = "node-a", "node-b"
	l.add(l.owner("web-0", 0), a)
	l.add(l.owner("web-0", 1), b)
	create := func() map[string]*podState {
		l.createPod("web-0", networkStatus("net1", "10.0.0.65"))
		l.setPhase("web-0", "Running", true)
		ref := l.owner("web-0", 0).PodRef
		pods, failed := getPods(pooltest.Context(t), l.client, []string{ref})
		if len(failed) > 0 || pods[ref] == nil {
			t.Fatal(failed, pods)
		}
		return pods
	}
	live := create()
	r := l.reconciler(0)
	s, found := l.judged(live)
	due := r.due(found, live, nil, nil, "")
	if len(due) != 1 {
		t.Fatalf("due are %v", due)
	}
	l.deletePod("web-0")
	create()
	r.act(pooltest.Context(t), s, due)
	wantFindings(t, tally(t, found), "stale entry 10.0.0.1 "+Waiting)
	l.wantHeld("replaced", "node-a-10.0.0.0-26/1 web-0", "10.0.0.1 web-0", "node-b-10.0.0.64-26/1 web-0", "10.0.0.65 web-0")
}

func TestReconcileTakesBackAReservationWhoseEntryHasGone(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("whole", 0), c)
	half := c
	half.Exclusive = false
	l.add(l.owner("half", 1), half)
	for _, name := range []string{"whole", "half"} {
		l.createPod(name, nil)
	}
	refs := []string{l.owner("whole", 0).PodRef, l.owner("half", 0).PodRef}
	live, _ := getPods(pooltest.Context(t), l.client, refs)
	r := l.reconciler(0)
	s, found := l.judged(live)
	due := r.due(found, live, nil, nil, "")
	l.del(l.owner("half", 1), c.Pool)
	r.act(pooltest.Context(t), s, due)
	wantFindings(t, tally(t, found), "missing reservation 10.0.0.2 "+Changed)
	l.wantHeld("afterwards", "10.0.0.0-24/1 whole", "10.0.0.1 whole")
}

func TestReconcileLeavesAReservationThatWasChangedInPlace(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("web-0", 0), c)
	r := l.reconciler(0)
	_, found := l.judged(nil)
	found = r.freeEntries(pooltest.Context(t), found, 0)
	path := l.crs("overlappingrangeipreservations") + "/10.0.0.1"
	code, data, err := plane.Admin().Patch(pooltest.Context(t), path, controlplane.MergePatch, map[string]any{"spec": api.NewReservation("", "", l.owner("other", 1)).Spec})
	if err != nil || code != http.StatusOK {
		t.Fatal(code, string(data), err)
	}
	r.freeReservations(pooltest.Context(t), found, []string{c.Pool.Name()})
	wantFindings(t, tally(t, found), "stale entry 10.0.0.1 "+Changed)
	l.wantHeld("changed", "10.0.0.1 other")
}
