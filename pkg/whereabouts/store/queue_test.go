package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

func testQueue(t *testing.T) queue {
	t.Helper()
	dir, err := statefile.Open(t.TempDir() + "/queue")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return queue{dir}
}

func TestWhoWaitsIsAnsweredByTheWriter(t *testing.T) {
	q := testQueue(t)
	var mu sync.Mutex
	var turns []int
	const askers = 50
	write := func(_ context.Context, _ *job, jobs []*job) error {
		mu.Lock()
		turns = append(turns, len(jobs))
		first := len(turns) == 1
		mu.Unlock()
		if first {
			for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
				if others, err := q.dir.List(askSuffix); err != nil || len(others) == askers { // including the writer's own
					break
				}
			}
		}
		for _, p := range jobs {
			p.finish(netip.MustParseAddr("10.0.0.1"), nil)
		}
		return nil
	}
	pooltest.Parallel(askers, func(i int) {
		if a, err := q.submit(pooltest.Context(t), &ask{Owner: pooltest.Pod(i)}, write); err != nil || a.Addr.String() != "10.0.0.1" {
			t.Error(a, err)
		}
	})
	sum := 0
	for _, n := range turns {
		sum += n
	}
	if sum != askers || len(turns) > askers/2 {
		t.Errorf("%d asks carried out in turns of %v", sum, turns)
	}
	if names, err := q.dir.List(""); err != nil || !slices.Equal(names, []string{queueLock}) {
		t.Errorf("left in the queue: %v, %v", names, err)
	}
}

func TestWhatTheDeadHavePostedIsNotCarriedOut(t *testing.T) {
	q := testQueue(t)
	data, err := json.Marshal(ask{Owner: pooltest.Pod(7)})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(q.dir.Write("0"+askSuffix, data), q.dir.Write("0"+answerSuffix, data)); err != nil {
		t.Fatal(err) // its lock is free
	}
	if _, err := q.submit(pooltest.Context(t), &ask{Owner: pooltest.Pod(0)}, func(_ context.Context, _ *job, jobs []*job) error {
		for _, p := range jobs {
			if p.Owner != pooltest.Pod(0) {
				t.Errorf("carried out for %v", p.Owner)
			}
			p.finish(netip.Addr{}, nil)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if names, err := q.dir.List(""); err != nil || !slices.Equal(names, []string{queueLock}) {
		t.Errorf("left in the queue: %v, %v", names, err)
	}
}

func TestAnErrorReachesWhoWaits(t *testing.T) {
	q := testQueue(t)
	release := make(chan struct{})
	write := func(_ context.Context, _ *job, jobs []*job) error {
		<-release
		for _, p := range jobs {
			p.finish(netip.Addr{}, errors.New("no luck for "+p.Owner.PodRef))
		}
		return nil
	}
	time.AfterFunc(100*time.Millisecond, func() { close(release) })
	pooltest.Parallel(5, func(i int) {
		if _, err := q.submit(pooltest.Context(t), &ask{Owner: pooltest.Pod(i)}, write); err == nil || !strings.HasSuffix(err.Error(), "no luck for "+pooltest.Pod(i).PodRef) {
			t.Error(err)
		}
	})
}

func TestDelWithoutRightsIsDoneWhenTheRightsAreThere(t *testing.T) {
	c := pooltest.Claim(t, "rights", "10.0.0.0/24")
	state := t.TempDir()
	newNodeAt(t, plane.AdminKubeconfig(), state).wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
	nobody, err := plane.CertificateFor("nobody")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := plane.Kubeconfig(nobody, controlplane.Form{})
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeAt(t, kubeconfig, state)
	pooltest.Parallel(3, func(int) { n.del(pooltest.Pod(0), c.Pool) })
	if len(entries(t, c.Pool)) != 1 {
		t.Error("freed without a right to")
	}
	if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(1), []ipam.Claim{c}); err == nil || !strings.Contains(err.Error(), "allow it by a rule") {
		t.Errorf("ADD: %v", err)
	}
	again := newNodeAt(t, plane.AdminKubeconfig(), state)
	again.wantAdd(pooltest.Pod(2), "10.0.0.2/24", c)
	again.del(pooltest.Pod(2), c.Pool)
	wantEmpty(t, c.Pool)
}

func TestAWriterWithoutRightsFailsNobodyElse(t *testing.T) {
	nobody, err := plane.CertificateFor("nobody")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := plane.Kubeconfig(nobody, controlplane.Form{Path: t.TempDir() + "/kubeconfig"})
	if err != nil {
		t.Fatal(err)
	}
	for _, adds := range []bool{true, false} { // the writer's own ask
		state, c := t.TempDir(), pooltest.Claim(t, fmt.Sprint("rightsof", adds), "10.0.0.0/24")
		bad, good := newNodeAt(t, kubeconfig, state), newNodeAt(t, plane.AdminKubeconfig(), state)
		for i := range 2 {
			good.add(pooltest.Pod(i), c)
		}
		waiting, unlock := good.holdTurn(c.Pool)
		var all sync.WaitGroup
		all.Go(func() {
			if !adds {
				bad.del(pooltest.Pod(0), c.Pool)
			} else if _, err := bad.Allocate(pooltest.Context(t), pooltest.Pod(2), []ipam.Claim{c}); err == nil || !strings.Contains(err.Error(), "allow it by a rule") {
				t.Errorf("ADD without rights: %v", err)
			}
		})
		waiting(1)
		all.Go(func() { good.del(pooltest.Pod(1), c.Pool) })
		waiting(2)
		all.Go(func() { good.add(pooltest.Pod(3), c) })
		waiting(3)
		unlock()
		all.Wait()
		held := entries(t, c.Pool)
		for _, e := range held {
			if e == api.NewEntry(pooltest.Pod(1)) {
				t.Error("the DEL with rights was not done")
			}
		}
		good.add(pooltest.Pod(4), c)
		for _, i := range []int{0, 3, 4} {
			good.del(pooltest.Pod(i), c.Pool)
		}
		good.wantJournal("in the end", 0)
		wantEmpty(t, c.Pool)
	}
}

func TestADelBesideARefusedAddIsDone(t *testing.T) {
	for name, tc := range map[string]struct {
		code   int
		answer string
		says   string
	}{
		"too large": {500, `{"kind":"Status","status":"Failure","message":"etcdserver: request is too large","code":500}`, "cannot hold more"},
		"not valid": {422, `{"kind":"Status","status":"Failure","message":"a policy denies it","reason":"Invalid","details":{"kind":"IPPool"},"code":422}`, "a policy denies it"},
	} {
		t.Run(name, func(t *testing.T) {
			c := pooltest.Claim(t, "beside"+strings.ReplaceAll(name, " ", ""), "10.0.0.0/24")
			url := pooltest.Between(t, plane, func(r *http.Request, body []byte) (int, string) {
				if r.Method == http.MethodPatch && strings.Contains(string(body), pooltest.Pod(9).PodRef) {
					return tc.code, tc.answer
				}
				return 0, ""
			}, nil)
			n := newNodeAt(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir())
			n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
			n.wantAdd(pooltest.Pod(1), "10.0.0.2/24", c)
			if err := n.notes.drop(pooltest.Pod(1), c.Pool.Name()); err != nil {
				t.Fatal(err)
			}
			waiting, unlock := n.holdTurn(c.Pool)
			var all sync.WaitGroup
			all.Go(func() {
				if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(9), []ipam.Claim{c}); err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("ADD: %v", err)
				}
			})
			waiting(1)
			for i := range 2 {
				all.Go(func() { n.del(pooltest.Pod(i), c.Pool) })
				waiting(2 + i)
			}
			unlock()
			all.Wait()
			n.wantJournal("afterwards", 0)
			wantEmpty(t, c.Pool)
		})
	}
}

func TestWhoAsksWhileTheWriterLosesARaceJoinsItsNextPatch(t *testing.T) {
	c := pooltest.Claim(t, "joins", "10.0.0.0/24")
	createPool(t, c.Pool, map[string]api.Entry{})
	posted := make(chan struct{})
	var mu sync.Mutex
	var patches []string
	url := pooltest.Between(t, plane, func(r *http.Request, body []byte) (int, string) {
		if r.Method != http.MethodPatch {
			return 0, ""
		}
		mu.Lock()
		patches = append(patches, string(body))
		first := len(patches) == 1
		mu.Unlock()
		if !first {
			return 0, ""
		}
		<-posted
		return http.StatusConflict, `{"kind":"Status","reason":"Conflict","code":409}`
	}, nil)
	n := newNodeAt(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir())
	waiting, unlock := n.holdTurn(c.Pool)
	var all sync.WaitGroup
	all.Go(func() { n.add(pooltest.Pod(0), c) })
	waiting(1)
	unlock()
	pooltest.Eventually(t, "the writer has patched", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(patches) == 1
	})
	all.Go(func() { n.add(pooltest.Pod(1), c) })
	waiting(2)
	close(posted)
	all.Wait()
	if len(patches) != 2 || !strings.Contains(patches[1], pooltest.Pod(0).PodRef) || !strings.Contains(patches[1], pooltest.Pod(1).PodRef) {
		t.Errorf("patches %q", patches)
	}
	for i := range 2 {
		n.del(pooltest.Pod(i), c.Pool)
	}
	wantEmpty(t, c.Pool)
}
