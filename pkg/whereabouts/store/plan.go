package store

import (
	"errors"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// giveUp plans to remove the entry that j does not keep. If the entry replaced the entry of
// a former container, giveUp plans to restore that entry.
func giveUp(c *api.PoolPatch, j *job) {
	if j.former == (api.Entry{}) {
		c.Remove(j.drop.key, j.drop.entry)
	} else if !c.Tests(j.drop.key) {
		c.Replace(j.drop.key, j.drop.entry, j.former)
	}
}

// plan makes the next patch. It plans every job whose entries in the pool are not yet
// right, except jobs that must wait because an earlier job changes the same entry.
func (t *turn) plan(state *api.PoolState, lost int) *api.PoolPatch {
	c := &api.PoolPatch{}
	t.last.addr = t.last.kept // the last patch may have been refused
	var used *ipam.Set
	if state != nil {
		used = state.Used()
	}
	var takers []*job
	for i, j := range t.jobs {
		if j.plannable() {
			j.phase = phaseWaiting // the last patch may have been refused
		}
		if j.phase != phaseWaiting || t.waitsFor(j, i) {
			continue
		}
		if j.Range != nil {
			takers = append(takers, j)
			continue
		}
		j.phase = phasePlanned
		t.giveBack(j, state, c)
	}
	for _, j := range takers {
		j.phase = phasePlanned
		if j.drop != nil && state.Entries[j.drop.key] == j.drop.entry {
			giveUp(c, j)
		}
		if j.failed == nil && j.canceled() {
			j.failed = errLeft
		}
		if j.failed != nil {
			continue
		}
		frees := !c.OnlyAdds()
		if j.refused = t.take(j, state, used, lost, c); j.refused != nil && (frees || j.rival != nil) {
			// The addresses that this patch frees are available for the next patch.
			j.phase, j.refused = phaseWaiting, nil
		}
	}
	return c
}

// waitsFor reports whether an open job before j is about the same interface of the same
// pod. Such jobs are carried out one after the other. i is j's index among the turn's jobs.
func (t *turn) waitsFor(j *job, i int) bool {
	for _, q := range t.jobs[:i] {
		if q.open() && j.Owner.Same(q.Owner) {
			return true
		}
	}
	return false
}

// giveBack finds the entries that j releases, and plans to remove them. If state is nil, it
// uses j's note instead.
func (t *turn) giveBack(j *job, state *api.PoolState, c *api.PoolPatch) {
	j.freed = nil
	if state == nil {
		j.freed = []held{j.Note.held()}
		c.Remove(j.freed[0].key, j.freed[0].entry)
		return
	}
	for key, e := range state.Entries {
		if e.PodRef == "" || !j.Owner.Ends(e.Owner()) {
			continue
		}
		addr, err := state.Addr(key)
		if err != nil {
			continue
		}
		h := held{addr: addr, key: key, entry: e, reserved: true}
		if j.Note != nil && j.Note.Key == key {
			h = j.Note.held()
			h.entry = e
		}
		j.freed = append(j.freed, h)
		c.Remove(h.key, h.entry)
	}
	switch {
	case len(j.freed) == 0 && j.Note != nil && !j.Note.Owner.Same(state.Entries[j.Note.Key].Owner()):
		// The entry is gone already, but the reservation may still exist. If the pod's
		// new container has taken over the entry, that container needs the reservation.
		// The note names the pod, which not every DEL does.
		j.freed = []held{j.Note.held()}
	case len(j.freed) > 0 && j.Note == nil:
		// The note is for the process that continues if this one dies, or if the answer is
		// lost.
		j.Note = t.noteOf(j, j.freed[0])
		t.s.warnIf(t.s.notes.put(j.Note))
	}
}

// errTouched means that an earlier job in this patch already changes the entry. plan then
// leaves the job to the next patch. It does so with every job that is refused in a patch
// that frees something.
var errTouched = errors.New("the same patch changes the entry")

// errLeft is the error of an ask without a waiting process.
var errLeft = failure.New(failure.InvalidNetns, "the pod's network namespace is gone, or the call has ended")

// take plans an address for j: the one that j's pod already has for this interface, or a
// new one.
func (t *turn) take(j *job, state *api.PoolState, used *ipam.Set, lost int, c *api.PoolPatch) error {
	if err := state.Guarded(); err != nil {
		return err
	}
	wanted := api.NewEntry(j.Owner)
	addr, entry, ok := state.Find(func(a netip.Addr, e api.Entry) bool {
		return j.Owner.Same(e.Owner()) && (j.drop == nil || j.drop.addr != a)
	})
	if j.needsJudging(ok, addr, entry) {
		return errRival
	}
	if ok && j.Want.IsValid() && j.Want != addr && entry.ContainerID != j.Owner.ContainerID {
		// The entry is of the pod's former container, whose DEL has not come. The new
		// container requests another address.
		h := held{addr: addr, entry: entry, reserved: true}
		var err error
		if h.key, err = state.Key(addr); err != nil {
			return err
		}
		c.Remove(h.key, h.entry)
		j.freed, ok = []held{h}, false
	}
	if ok {
		if j.Want.IsValid() && j.Want != addr {
			return failure.New(failure.IPAM, "%s asks for %s and already holds %s", j.Owner.PodRef, j.Want, addr).
				Cure("end the attachment first, or ask for the same address")
		}
		key, err := state.Key(addr)
		if c.Tests(key) {
			return errTouched
		}
		if err == nil && entry != wanted {
			c.Replace(key, entry, wanted)
			j.former = entry
		}
		j.addr, j.key = addr, key
		return err
	}
	addr, err := t.choose(j, state, used, lost)
	if err != nil {
		return err
	}
	key, err := state.Key(addr)
	if err != nil {
		return failure.From(err, failure.BadRecord, "IPPool %s/%s cannot hold %s", state.Namespace, state.Name, addr).
			Cure("remove the host bits from spec.range when the pool is empty")
	}
	if state.Bytes += len(key) + wanted.Size(); state.Bytes > maxPoolSize {
		return t.tooLarge(state)
	}
	used.Add(addr)
	j.addr, j.key, j.former = addr, key, api.Entry{}
	c.Add(key, wanted)
	return nil
}
