package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
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
