package store

import (
	"math/rand/v2"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// choose returns the address for j. If j requests an address, choose returns that address,
// or an error if it is not free. If j rotates, choose returns the next free address after
// the one that the node assigned last. Otherwise it returns the lowest free address.
//
// After one lost race it still returns the lowest free address: mostly the other node has
// its address by then, and pods that start together get neighboring addresses. After more
// lost races it begins the search at a random address above the lowest, because all the
// other losers try the lowest again.
func (t *turn) choose(j *job, state *api.PoolState, used *ipam.Set, lost int) (netip.Addr, error) {
	if j.Want.IsValid() {
		return j.Want, t.wanted(j, state, used)
	}
	both := union{used, &t.hidden}
	var last netip.Addr
	if j.Rotate {
		last = t.lastAddr()
	}
	addr, err := ipam.ChooseAfter(j.rng, both, last)
	if err != nil {
		return addr, failure.From(err, failure.IPAM, "").Cure("end attachments that are not needed, or widen the range")
	}
	for spread := widest(len(t.jobs), lost); lost > 1 && spread > 1; spread /= 4 {
		from := addr
		for range rand.IntN(spread) {
			if next := from.Next(); next.IsValid() {
				from = next
			}
		}
		if above, err := ipam.ChooseFrom(j.rng, both, from); err == nil {
			addr = above
			break
		}
	}
	if j.Rotate {
		t.last.addr = addr
	}
	return addr, nil
}

// widest returns how far above the lowest free address the search for one of several jobs
// may begin after so many lost races. The distance is so large that a dozen nodes with as
// many jobs each are unlikely to collide again.
func widest(jobs, lost int) int { return max(jobs, 4) << min(lost+2, 8) }

// wanted returns an error if j cannot have the address that it requests.
func (t *turn) wanted(j *job, state *api.PoolState, used *ipam.Set) error {
	why := j.rng.Why(j.Want)
	switch {
	case why != "":
	case used.Has(j.Want):
		why = "it is taken"
		if key, err := state.Key(j.Want); err == nil && state.Entries[key].PodRef != "" {
			why = state.Entries[key].PodRef + " holds it"
		}
	case t.hidden.Has(j.Want):
		why = "another pool of the same address space holds it"
	default:
		return nil
	}
	return cannotGive(j, why)
}

func cannotGive(j *job, why string) error {
	return failure.New(failure.IPAM, "cannot give %s the requested address %s: %s", j.Owner.PodRef, j.Want, why).
		Cure("ask for another address, or let the pool choose")
}

// union has the addresses of all its sets.
type union []*ipam.Set

// Page implements [ipam.Used].
func (u union) Page(base netip.Addr) (*ipam.Page, error) {
	var sum *ipam.Page
	for _, s := range u {
		page, err := s.Page(base)
		switch {
		case err != nil:
			return nil, err
		case sum == nil:
			sum = page
		case page != nil:
			sum = sum.Or(page)
		}
	}
	return sum, nil
}
