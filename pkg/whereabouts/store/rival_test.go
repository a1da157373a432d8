package store

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

func TestAddWhoseSandboxEndsDuringThePatchPutsBackWhatItTook(t *testing.T) {
	for name, tc := range map[string]struct {
		was       map[string]api.Entry
		exclusive bool
	}{
		"a free address":                  {was: map[string]api.Entry{}},
		"a free address, to be reserved":  {was: map[string]api.Entry{}, exclusive: true},
		"the entry of another container":  {was: map[string]api.Entry{"1": {ContainerID: "other", PodRef: pooltest.Pod(0).PodRef, IfName: "net1"}}},
		"the entry of its own, once more": {was: map[string]api.Entry{"1": api.NewEntry(pooltest.Pod(0))}},
		"that of another one, to reserve": {was: map[string]api.Entry{"1": {ContainerID: "other", PodRef: pooltest.Pod(0).PodRef, IfName: "net1"}}, exclusive: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := pooltest.Claim(t, "endsduring"+strings.NewReplacer(" ", "", ",", "").Replace(name), "10.0.0.0/24")
			c.Exclusive = tc.exclusive
			createPool(t, c.Pool, tc.was)
			sandbox := testnet.NewNetns(t, "pod")
			kill := sync.OnceFunc(sandbox.Kill)
			url := pooltest.Between(t, plane, nil, func(r *http.Request) {
				if r.Method == http.MethodPatch || tc.was["1"] == api.NewEntry(pooltest.Pod(0)) {
					kill()
				}
			})
			n := newNodeFor(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir(), "/run/netns/"+sandbox.Name)
			if e := tc.was["1"]; e != (api.Entry{}) && e != api.NewEntry(pooltest.Pod(0)) { // it is known to be older
				known := &note{Pool: c.Pool, Owner: e.Owner(), Born: time.Now().Add(-time.Hour), Addr: c.Pool.Prefix.Addr().Next(), Key: "1"}
				if err := n.notes.put(known); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := n.Allocate(pooltest.Context(t), pooltest.Pod(0), []ipam.Claim{c}); failure.KindOf(err) != failure.InvalidNetns {
				t.Fatalf("%v, %v", got, err)
			}
			want := tc.was
			if want["1"] == api.NewEntry(pooltest.Pod(0)) {
				want = nil // its own entry is freed
			}
			if got := entries(t, c.Pool); len(got) != len(want) || got["1"] != want["1"] {
				t.Errorf("entries %v, want %v", got, want)
			}
			if r := reservations(t, c.Pool.Space); len(r) != 0 {
				t.Errorf("reservations %v", r)
			}
		})
	}
}

// Otherwise no sandbox of the pod gets an address until the clock is back at
// the time of the note.
func TestTakeoverGoesOnAfterTheClockWasSetBack(t *testing.T) {
	c := pooltest.Claim(t, "clocksetback", "10.0.0.0/24")
	former := pooltest.Pod(0)
	former.ContainerID = "former"
	createPool(t, c.Pool, map[string]api.Entry{"1": api.NewEntry(former)})
	n := newNode(t)
	of := &note{Pool: c.Pool, Owner: former, Born: time.Now().Add(time.Hour), Addr: c.Pool.Prefix.Addr().Next(), Key: "1"}
	if err := n.notes.put(of); err != nil {
		t.Fatal(err)
	}
	spec := c.Range.Spec()
	got, err := n.submit(pooltest.Context(t), c.Pool, &ask{Owner: pooltest.Pod(0), Range: &spec, Born: time.Now().Add(-2 * minSuccessorAge)})
	if err != nil || got.Addr != of.Addr {
		t.Errorf("%v, %v", got, err)
	}
	if got := entries(t, c.Pool); got["1"] != api.NewEntry(pooltest.Pod(0)) {
		t.Errorf("entries %v", got)
	}
}

// A late ADD makes the holder's reservation if it is missing. If the holder's DEL has
// looked for the reservation before that, only the ADD can free it again.
func TestReservationForHolderThatEndedMeanwhileIsFreed(t *testing.T) {
	for name, reservedBy := range map[string]string{"none": "", "of an earlier container": "earlier"} {
		t.Run(name, func(t *testing.T) {
			c := pooltest.Claim(t, "endsmeanwhile"+reservedBy, "10.0.0.0/24")
			holder := pooltest.Pod(0)
			holder.ContainerID = "holder"
			createPool(t, c.Pool, map[string]api.Entry{"1": api.NewEntry(holder)})
			if reservedBy != "" {
				createReservation(t, c.Pool.ReservationName(netip.MustParseAddr("10.0.0.1")),
					ipam.Owner{PodRef: holder.PodRef, IfName: holder.IfName, ContainerID: reservedBy})
			}
			away := newNode(t)
			end := sync.OnceFunc(func() {
				if err := away.Release(pooltest.Context(t), holder, []ipam.Pool{c.Pool}); err != nil {
					t.Error(err)
				}
			})
			url := pooltest.Between(t, plane, func(r *http.Request, body []byte) (int, string) {
				if r.Method == http.MethodPost && strings.Contains(string(body), holder.ContainerID) {
					end()
				}
				return 0, ""
			}, nil)
			n := newNodeAt(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir())
			spec := c.Range.Spec()
			late := &ask{Owner: pooltest.Pod(0), Range: &spec, Exclusive: true, Born: time.Now().Add(-2 * minSuccessorAge)}
			if _, err := n.submit(pooltest.Context(t), c.Pool, late); err != nil {
				t.Errorf("the address is nobody's: %v", err)
			}
			if got := entries(t, c.Pool); len(got) != 1 || got["1"] != api.NewEntry(pooltest.Pod(0)) {
				t.Errorf("entries %v", got)
			}
			n.del(pooltest.Pod(0), c.Pool)
			wantEmpty(t, c.Pool)
		})
	}
}

func TestWhatTheDeadAskedForIsNotCarriedOutByAWriterWhoLostARace(t *testing.T) {
	c := pooltest.Claim(t, "leftinrace", "10.0.0.0/24")
	createPool(t, c.Pool, map[string]api.Entry{})
	var once sync.Once
	var leave context.CancelFunc
	asked := make(chan struct{})
	url := pooltest.Between(t, plane, func(r *http.Request, body []byte) (int, string) {
		refuse := false
		if r.Method == http.MethodPatch && strings.Contains(string(body), pooltest.Pod(1).PodRef) {
			once.Do(func() {
				leave()
				<-asked
				refuse = true
			})
		}
		if refuse {
			return http.StatusConflict, `{"kind":"Status","reason":"Conflict","code":409}`
		}
		return 0, ""
	}, nil)
	state, kubeconfig := t.TempDir(), pooltest.Kubeconfig(t, plane, url, testNamespace)
	first, second := newNodeAt(t, kubeconfig, state), newNodeAt(t, kubeconfig, state)
	waiting, unlock := first.holdTurn(c.Pool)
	ctx, cancel := context.WithCancel(pooltest.Context(t))
	leave = cancel
	var all sync.WaitGroup
	all.Go(func() { first.add(pooltest.Pod(0), c) })
	waiting(1)
	all.Go(func() {
		defer close(asked)
		spec := c.Range.Spec() // without the rollback of Allocate
		if _, err := second.submit(ctx, c.Pool, &ask{Owner: pooltest.Pod(1), Range: &spec, Exclusive: true}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	waiting(2)
	unlock()
	all.Wait()
	if got := entries(t, c.Pool); len(got) != 1 || len(reservations(t, c.Pool.Space)) != 1 {
		t.Errorf("entries %v, reservations %v", got, reservations(t, c.Pool.Space))
	}
}
