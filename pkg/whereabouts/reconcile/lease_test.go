package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// leaseLab is a Lease with a holder and a follower.
type leaseLab struct {
	*reconcilerLab
	holder, follower *lease
}

func newLeaseLab(t *testing.T) *leaseLab {
	t.Helper()
	l := newReconcilerLab(t)
	both := &leaseLab{l, &lease{client: l.client, identity: "holder"}, &lease{client: l.client, identity: "follower"}}
	if held, err := both.holder.acquire(pooltest.Context(t)); !held || err != nil {
		t.Fatal(held, err)
	}
	return both
}

// renew sets the Lease's time, as a holder with another clock does.
func (l *leaseLab) renew(at time.Time) {
	l.t.Helper()
	change := map[string]any{"spec": map[string]any{"renewTime": microTime{at}}}
	if _, err := l.client.MergePatch(pooltest.Context(l.t), l.holder.resource(), leaseName, change); err != nil {
		l.t.Fatal(err)
	}
}

// look has the follower look for the Lease.
func (l *leaseLab) look(what string, want bool) {
	l.t.Helper()
	if held, err := l.follower.acquire(pooltest.Context(l.t)); held != want || err != nil {
		l.t.Errorf("%s: the follower has the Lease: %v, want %v (%v)", what, held, want, err)
	}
}

// later makes the follower's last scan older.
func (l *leaseLab) later(d time.Duration) { l.follower.since = l.follower.since.Add(-d) }

// The clocks of two hosts may differ by any time.
func TestLeaseExpiresByTheFollowersOwnClock(t *testing.T) {
	for name, skew := range map[string]time.Duration{"as ours": 0, "ahead": 24 * time.Hour, "behind": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			l := newLeaseLab(t)
			l.renew(time.Now().Add(skew))
			l.look("the first look", false)
			l.later(leaseTime + time.Second)
			l.renew(time.Now().Add(skew))
			l.look("renewed", false)
			l.look("just now", false)
			l.later(leaseTime + time.Second)
			l.look("silent for longer than it lasts", true)
		})
	}
}

func TestWhoLostTheLeaseDoesNotGiveItAway(t *testing.T) {
	l := newLeaseLab(t)
	l.look("the first look", false)
	l.later(leaseTime + time.Second)
	l.look("silent for longer than it lasts", true)
	if err := l.holder.keep(pooltest.Context(t), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	data, err := l.client.Get(pooltest.Context(t), l.follower.resource(), leaseName)
	var is leaseObject
	if err != nil || json.Unmarshal(data, &is) != nil || is.Spec.Holder != "follower" {
		t.Errorf("who lost it gave it away: %s, %v", data, err)
	}
}

// With a reconciler on each of a thousand nodes, a scan a minute of each is 22 requests
// a second.
func TestFollowerOfALivingLeaderLooksSeldom(t *testing.T) {
	l := newLeaseLab(t)
	wantPause := func(what string, from, to time.Duration) {
		t.Helper()
		for range 100 {
			if p := l.follower.pause(); p < from || p > to {
				t.Fatalf("%s: a pause of %s, want %s to %s", what, p, from, to)
			}
		}
	}
	soon := func(what string) { t.Helper(); wantPause(what, leaseTime/2, leaseTime) }
	const skew = 24 * time.Hour
	at := time.Now().Add(skew)
	l.renew(at)
	l.look("the first look", false)
	soon("the first look")
	l.later(leaseTime)
	l.renew(at.Add(leaseTime))
	l.look("renewed", false)
	wantPause("renewed", followTime, 2*followTime)
	l.later(followTime)
	l.renew(at.Add(leaseTime + followTime))
	l.look("renewed again", false)
	wantPause("renewed again", followTime, 2*followTime)
	l.later(followTime)
	l.renew(at.Add(leaseTime + 2*followTime - leaseTime - time.Second)) // and no more since
	l.look("renewed, and silent since", false)
	soon("renewed, and silent since")
	l.later(leaseTime + time.Second)
	l.look("silent for longer than it lasts", true)
}

func TestRunningFollowerLeavesTheServerAlone(t *testing.T) {
	l := newLeaseLab(t)
	began := time.Now()
	stop := l.run(l.reconciler(time.Minute))
	pooltest.Eventually(t, "the first look at the Lease", func() bool { return leaseGets(t, began) > 0 })
	stop()
	if n := leaseGets(t, began); n != 1 {
		t.Errorf("%d looks at the Lease, want 1", n)
	}
}

// leaseGets returns the number of reads of Leases.
func leaseGets(t *testing.T, since time.Time) (n int) {
	t.Helper()
	for _, r := range pooltest.RequestsSince(t, plane, since) {
		if r.Resource == "leases" && r.Verb == "get" && r.Code < http.StatusInternalServerError {
			n++
		}
	}
	return n
}

// Metrics are made from surveys, and the surveys of a former leader are out of date.
func TestSurveysEndWithTheLease(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.createPod("web", nil)
	l.add(l.owner("web", 0), c)
	r := l.reconciler(time.Minute)
	var mu sync.Mutex
	var last *api.Survey
	r.Surveyed = func(s *api.Survey) {
		mu.Lock()
		defer mu.Unlock()
		last = s
	}
	stop := l.run(r)
	surveyed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return last != nil
	}
	pooltest.Eventually(t, "the first survey", surveyed)
	stop()
	if surveyed() {
		t.Error("the last survey stays")
	}
}

// A leader is ready once it has scanned everything. If a scan ends because another
// reconciler leads, that is no failure.
func TestLeaderIsReadyAfterItsFirstScan(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.createPod("web", nil)
	l.add(l.owner("web", 0), c)
	r := l.reconciler(time.Minute)
	first := make(chan error, 1)
	r.Surveyed = func(*api.Survey) {
		select {
		case first <- r.Ready():
		default:
		}
	}
	stop := l.run(r)
	pooltest.Eventually(t, "the first scan", func() bool { return r.Ready() == nil })
	stop()
	if err := <-first; !errors.Is(err, errNotScanned) {
		t.Errorf("before the first scan: %v", err)
	}

	r = l.reconciler(time.Minute)
	ctx, cancel := context.WithCancel(pooltest.Context(t))
	r.Surveyed = func(*api.Survey) { cancel() }
	if err := r.lead(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := r.Ready(); !errors.Is(err, errNotChecked) {
		t.Errorf("after the end of the Lease: %v", err)
	}
}
