package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Two pods of a job that start together on two nodes get neighboring addresses, even if
// one node loses the race for the lowest one, or the race to make the pool.
func TestWhoLosesOneRaceGetsTheNextAddress(t *testing.T) {
	for _, lost := range []string{http.MethodPatch, http.MethodPost} {
		t.Run(lost, func(t *testing.T) {
			c := pooltest.Claim(t, fmt.Sprintf("race-%08x", rand.Uint32()), "10.0.0.0/24")
			if lost == http.MethodPatch {
				createPool(t, c.Pool, map[string]api.Entry{})
			}
			winner := newNode(t)
			win := sync.OnceFunc(func() {
				if got, err := winner.Allocate(pooltest.Context(t), pooltest.Pod(0), []ipam.Claim{c}); err != nil || got[0].String() != "10.0.0.1/24" {
					t.Errorf("the winner got %v, %v", got, err)
				}
			})
			url := pooltest.Between(t, plane, func(r *http.Request, _ []byte) (int, string) {
				if r.Method == lost {
					win() // between the loser's read and its write
				}
				return 0, ""
			}, nil)
			loser := newNodeAt(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir())
			loser.wantAdd(pooltest.Pod(1), "10.0.0.2/24", c)
			winner.del(pooltest.Pod(0), c.Pool)
			loser.del(pooltest.Pod(1), c.Pool)
			wantEmpty(t, c.Pool)
		})
	}
}

// Keys count from the address that spec.range begins with, which may have host bits.
func TestPoolThatIsMadeAnewBetweenReadAndPatchIsReadAgain(t *testing.T) {
	c := pooltest.Claim(t, "anew", "10.0.0.0/24")
	createPool(t, c.Pool, map[string]api.Entry{})
	replace := sync.OnceFunc(func() {
		if code, answer, err := plane.Admin().Delete(context.Background(), poolPath(c.Pool.Name())); err != nil || code != http.StatusOK {
			t.Error(code, string(answer), err)
		}
		pooltest.Create(t, plane, poolPath(""), api.NewIPPool(c.Pool.Name(), testNamespace, "10.0.0.1/24", map[string]api.Entry{}))
	})
	url := pooltest.Between(t, plane, func(r *http.Request, _ []byte) (int, string) {
		if r.Method == http.MethodPatch {
			replace()
		}
		return 0, ""
	}, nil)
	n := newNodeAt(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir())
	got := n.add(pooltest.Pod(0), c)
	state, err := n.readPool(pooltest.Context(t), c.Pool)
	if err != nil {
		t.Fatal(err)
	}
	addr, _, ok := state.Find(func(_ netip.Addr, e api.Entry) bool { return e == api.NewEntry(pooltest.Pod(0)) })
	if !ok || addr != got[0].Addr() {
		t.Errorf("the ADD got %s, the pool has %s", got[0], addr)
	}
	n.del(pooltest.Pod(0), c.Pool)
	wantEmpty(t, c.Pool)
}

// Neighbors go on sending to the MAC of an address that they know.
func TestFreedAddressIsTheLastToBeHandedOutAgainWithRotation(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "rotates", "10.0.0.0/29") // .1 to .6
	c.Rotate = true
	for i := range 8 {
		n.wantAdd(pooltest.Pod(i), fmt.Sprintf("10.0.0.%d/29", i%6+1), c)
		n.wantAdd(pooltest.Pod(i), fmt.Sprintf("10.0.0.%d/29", i%6+1), c) // the same pod keeps it
		n.del(pooltest.Pod(i), c.Pool)
	}
	// Several pods ask in one turn, and pods of another node ask in between.
	other := newNode(t)
	other.wantAdd(pooltest.Pod(20), "10.0.0.1/29", c)
	waiting, unlock := n.holdTurn(c.Pool)
	got := make([]netip.Addr, 3)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i] = n.add(pooltest.Pod(i), c)[0].Addr() })
	}
	waiting(len(got))
	unlock()
	all.Wait()
	slices.SortFunc(got, netip.Addr.Compare)
	if text := fmt.Sprint(got); text != "[10.0.0.3 10.0.0.4 10.0.0.5]" {
		t.Errorf("three at once got %s", text)
	}
	n.wantAdd(pooltest.Pod(3), "10.0.0.6/29", c)
	n.wantAdd(pooltest.Pod(4), "10.0.0.2/29", c) // comes around, and passes over the other node's
	lowest := c
	lowest.Rotate = false
	n.del(pooltest.Pod(0), c.Pool)
	n.del(pooltest.Pod(4), c.Pool)
	n.wantAdd(pooltest.Pod(5), "10.0.0.2/29", lowest)
	for i := range 6 {
		n.del(pooltest.Pod(i), c.Pool)
	}
	other.del(pooltest.Pod(20), c.Pool)
	wantEmpty(t, c.Pool)
}
