package kubernetes

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// between returns the URL of a server that hands requests on to the plane. What
// refuse answers before, and after is called before the answer goes back; both
// may be nil.
func between(t *testing.T, refuse func(r *http.Request, body []byte) (code int, answer string), after func(r *http.Request)) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		if refuse != nil {
			if code, answer := refuse(r, body); code != 0 {
				w.WriteHeader(code)
				_, _ = io.WriteString(w, answer)
				return
			}
		}
		code, answer, err := plane.Admin().Do(r.Context(), r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if after != nil {
			after(r)
		}
		w.WriteHeader(code)
		_, _ = w.Write(answer)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestAddWhoseSandboxEndsDuringThePatchPutsBackWhatItTook(t *testing.T) {
	for name, tc := range map[string]struct {
		was       map[string]Entry
		exclusive bool
	}{
		"a free address":                  {was: map[string]Entry{}},
		"a free address, to be reserved":  {was: map[string]Entry{}, exclusive: true},
		"the entry of another container":  {was: map[string]Entry{"1": {ContainerID: "other", PodRef: pod(0).PodRef, IfName: "net1"}}},
		"the entry of its own, once more": {was: map[string]Entry{"1": entryOf(pod(0))}},
		"that of another one, to reserve": {was: map[string]Entry{"1": {ContainerID: "other", PodRef: pod(0).PodRef, IfName: "net1"}}, exclusive: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := claim(t, "endsduring"+strings.NewReplacer(" ", "", ",", "").Replace(name), "10.0.0.0/24")
			c.Exclusive = tc.exclusive
			createPool(t, c.Pool, tc.was)
			sandbox := testnet.NewNetns(t, "pod")
			kill := sync.OnceFunc(sandbox.Kill)
			url := between(t, nil, func(r *http.Request) {
				if r.Method == http.MethodPatch || tc.was["1"] == entryOf(pod(0)) {
					kill()
				}
			})
			n := newNodeFor(t, otherKubeconfig(t, url, testNamespace), t.TempDir(), "/run/netns/"+sandbox.Name)
			if e := tc.was["1"]; e != (Entry{}) && e != entryOf(pod(0)) { // it is known to be older
				known := &note{Pool: c.Pool, Owner: e.Owner(), Born: time.Now().Add(-time.Hour), Addr: c.Pool.Prefix.Addr().Next(), Key: "1"}
				if err := n.notes.put(known); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := n.Allocate(testContext(t), pod(0), []ipam.Claim{c}); cnierr.Code(err) != cnierr.InvalidNetns {
				t.Fatalf("%v, %v", got, err)
			}
			want := tc.was
			if want["1"] == entryOf(pod(0)) {
				want = nil // what is its own is freed
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

// Otherwise no sandbox of the pod gets an address until the clock shows again
// what it showed when the note was made.
func TestTakeoverGoesOnAfterTheClockWasSetBack(t *testing.T) {
	c := claim(t, "clocksetback", "10.0.0.0/24")
	former := pod(0)
	former.ContainerID = "former"
	createPool(t, c.Pool, map[string]Entry{"1": entryOf(former)})
	n := newNode(t)
	of := &note{Pool: c.Pool, Owner: former, Born: time.Now().Add(time.Hour), Addr: c.Pool.Prefix.Addr().Next(), Key: "1"}
	if err := n.notes.put(of); err != nil {
		t.Fatal(err)
	}
	spec := c.Range.Spec()
	got, err := n.submit(testContext(t), c.Pool, &ask{Owner: pod(0), Range: &spec, Born: time.Now().Add(-2 * minSuccessorAge)})
	if err != nil || got.Addr != of.Addr {
		t.Errorf("%v, %v", got, err)
	}
	if got := entries(t, c.Pool); got["1"] != entryOf(pod(0)) {
		t.Errorf("entries %v", got)
	}
}

// A late ADD makes the holder's reservation if it is missing. If the holder's DEL looks
// for it earlier, only the ADD can free it again.
func TestReservationForHolderThatEndedMeanwhileIsFreed(t *testing.T) {
	for name, reservedBy := range map[string]string{"none": "", "of an earlier container": "earlier"} {
		t.Run(name, func(t *testing.T) {
			c := claim(t, "endsmeanwhile"+reservedBy, "10.0.0.0/24")
			holder := pod(0)
			holder.ContainerID = "holder"
			createPool(t, c.Pool, map[string]Entry{"1": entryOf(holder)})
			if reservedBy != "" {
				createReservation(t, c.Pool.ReservationName(netip.MustParseAddr("10.0.0.1")),
					reservationSpec{PodRef: holder.PodRef, IfName: holder.IfName, ContainerID: reservedBy})
			}
			away := newNode(t)
			end := sync.OnceFunc(func() {
				if err := away.Release(testContext(t), holder, []ipam.Pool{c.Pool}); err != nil {
					t.Error(err)
				}
			})
			url := between(t, func(r *http.Request, body []byte) (int, string) {
				if r.Method == http.MethodPost && strings.Contains(string(body), holder.ContainerID) {
					end()
				}
				return 0, ""
			}, nil)
			n := newNodeAt(t, otherKubeconfig(t, url, testNamespace), t.TempDir())
			spec := c.Range.Spec()
			late := &ask{Owner: pod(0), Range: &spec, Exclusive: true, Born: time.Now().Add(-2 * minSuccessorAge)}
			if _, err := n.submit(testContext(t), c.Pool, late); err != nil {
				t.Errorf("the address is nobody's: %v", err)
			}
			if got := entries(t, c.Pool); len(got) != 1 || got["1"] != entryOf(pod(0)) {
				t.Errorf("entries %v", got)
			}
			n.del(pod(0), c.Pool)
			wantEmpty(t, c.Pool)
		})
	}
}

func TestWhatTheDeadAskedForIsNotCarriedOutByALeaderWhoLostARace(t *testing.T) {
	c := claim(t, "leftinrace", "10.0.0.0/24")
	createPool(t, c.Pool, map[string]Entry{})
	var once sync.Once
	var leave context.CancelFunc
	asked := make(chan struct{})
	url := between(t, func(r *http.Request, body []byte) (int, string) {
		refuse := false
		if r.Method == http.MethodPatch && strings.Contains(string(body), pod(1).PodRef) {
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
	state, kubeconfig := t.TempDir(), otherKubeconfig(t, url, testNamespace)
	first, second := newNodeAt(t, kubeconfig, state), newNodeAt(t, kubeconfig, state)
	waiting, unlock := first.holdTurn(c.Pool)
	ctx, cancel := context.WithCancel(testContext(t))
	leave = cancel
	var all sync.WaitGroup
	all.Go(func() { first.add(pod(0), c) })
	waiting(1)
	all.Go(func() {
		defer close(asked)
		spec := c.Range.Spec() // without the undoing of Allocate
		if _, err := second.submit(ctx, c.Pool, &ask{Owner: pod(1), Range: &spec, Exclusive: true}); !errors.Is(err, context.Canceled) {
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

func TestSandboxIsGoneWhenItsPathLeadsElsewhere(t *testing.T) {
	pod := testnet.NewNetns(t, "pod")
	path := "/run/netns/" + pod.Name
	before := time.Now()
	alive, none, file := openSandbox(path), openSandbox("/nonexistent/netns"), openSandbox(os.Args[0])
	if alive.born.IsZero() || !alive.born.Before(before) || !none.born.IsZero() || !file.born.IsZero() {
		t.Errorf("born %s, %s, %s; it is %s", alive.born, none.born, file.born, before)
	}
	for _, s := range []sandbox{alive, none, file, openSandbox("/proc/self/ns/net")} {
		if s.gone() {
			t.Errorf("%s is gone", s.path)
		}
	}
	pod.Kill()
	if !alive.gone() {
		t.Error("it is not gone")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil { // as between umount and unlink
		t.Fatal(err)
	}
	defer os.Remove(path)
	if !alive.gone() {
		t.Error("a file is taken for the namespace")
	}
}
