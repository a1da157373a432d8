package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
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

func TestWhoWaitsIsAnsweredByWhoLeads(t *testing.T) {
	q := testQueue(t)
	var mu sync.Mutex
	var turns []int
	lead := func(_ context.Context, _ *pending, asks []*pending) error {
		mu.Lock()
		turns = append(turns, len(asks))
		first := len(turns) == 1
		mu.Unlock()
		if first {
			time.Sleep(200 * time.Millisecond) // the others arrive
		}
		for _, p := range asks {
			p.settle(netip.MustParseAddr("10.0.0.1"), nil)
		}
		return nil
	}
	const askers = 50
	parallel(askers, func(i int) {
		if a, err := q.submit(testContext(t), &ask{Owner: pod(i)}, lead); err != nil || a.Addr.String() != "10.0.0.1" {
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
	data, err := json.Marshal(ask{Owner: pod(7)})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(q.dir.Write("0"+askSuffix, data), q.dir.Write("0"+answerSuffix, data)); err != nil {
		t.Fatal(err) // nobody holds the lock on it
	}
	if _, err := q.submit(testContext(t), &ask{Owner: pod(0)}, func(_ context.Context, _ *pending, asks []*pending) error {
		for _, p := range asks {
			if p.Owner != pod(0) {
				t.Errorf("carried out for %v", p.Owner)
			}
			p.settle(netip.Addr{}, nil)
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
	lead := func(_ context.Context, _ *pending, asks []*pending) error {
		<-release
		for _, p := range asks {
			p.settle(netip.Addr{}, errors.New("no luck for "+p.Owner.PodRef))
		}
		return nil
	}
	time.AfterFunc(100*time.Millisecond, func() { close(release) })
	parallel(5, func(i int) {
		if _, err := q.submit(testContext(t), &ask{Owner: pod(i)}, lead); err == nil || !strings.HasSuffix(err.Error(), "no luck for "+pod(i).PodRef) {
			t.Error(err)
		}
	})
}

func TestDelWithoutRightsIsDoneWhenTheRightsAreThere(t *testing.T) {
	c := claim(t, "rights", "10.0.0.0/24")
	state := t.TempDir()
	newNodeAt(t, plane.AdminKubeconfig(), state).wantAdd(pod(0), "10.0.0.1/24", c)
	nobody, err := plane.CertificateFor("nobody")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := plane.Kubeconfig(nobody, controlplane.Form{})
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeAt(t, kubeconfig, state)
	parallel(3, func(int) { n.del(pod(0), c.Pool) })
	if len(entries(t, c.Pool)) != 1 {
		t.Error("freed without a right to")
	}
	if _, err := n.Allocate(testContext(t), pod(1), []ipam.Claim{c}); err == nil || !strings.Contains(err.Error(), "allow it by a rule") {
		t.Errorf("ADD: %v", err)
	}
	again := newNodeAt(t, plane.AdminKubeconfig(), state)
	again.wantAdd(pod(2), "10.0.0.2/24", c)
	again.del(pod(2), c.Pool)
	wantEmpty(t, c.Pool)
}
