package store

import (
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// phase is the phase of a job.
type phase int

const (
	phaseWaiting   phase = iota // for a patch
	phasePlanned                // the next patch is made with it
	phaseCommitted              // the pool is done; the reservations are left
	phaseAnswered
)

// job is an ask that the writer of a turn carries out, and its state.
type job struct {
	*ask
	name string // of the ask's file
	// journalFile is the journal's file of the ask. No process waits for its
	// answer.
	journalFile string
	// join returns the asks that were posted since its last call. Only the writer's
	// own job has it.
	join func() ([]*job, error)

	phase  phase
	answer answer // once it is answered
	err    error  // of answer

	// freed is what is removed from the pool for good.
	freed []held

	// For a job that needs an address:
	rng     *ipam.Range
	addr    netip.Addr // in the pool, once committed
	key     string     // of addr
	former  api.Entry  // addr's entry before, if another container had it
	drop    *held      // in the pool, and to be removed
	foreign int        // number of its addresses that others had reserved
	// refused is the reason why the patch has no address for it; the next one
	// may.
	refused error
	// failed is the reason why it never gets an address.
	failed error

	// For [turn.judge]:
	saw   *api.Entry // its pod's entry when the pool was first read; nil before
	rival *held      // the entry of another container, which may be newer
	older api.Entry  // the rival's entry, if it proved to be older
}

// held is an entry of the pool.
type held struct {
	addr     netip.Addr
	key      string
	entry    api.Entry
	reserved bool   // there may be a reservation
	uid      string // of the reservation, "" if it must be read
}

// open reports whether j has no answer yet.
func (j *job) open() bool { return j.phase != phaseAnswered }

// plannable reports whether the pool must still be changed for j.
func (j *job) plannable() bool { return j.phase < phaseCommitted }

// finish answers j.
func (j *job) finish(addr netip.Addr, err error) {
	j.phase, j.err = phaseAnswered, err
	j.answer = answer{Addr: addr}
	if err != nil {
		j.answer = answer{Code: cnierr.Code(err), Error: err.Error()}
	}
}
