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
	phaseWaiting   phase = iota // the job waits for a patch
	phasePlanned                // the next patch contains the job's change
	phaseCommitted              // the pool is changed; the reservations are still to be changed
	phaseAnswered
)

// job is an ask that the writer of a turn carries out, and its state.
type job struct {
	*ask
	name string // of the ask's file
	// journalFile is the name of the journal's file if the ask is an entry of the journal.
	// Then no process waits for the answer.
	journalFile string
	// join returns the asks that were posted since its last call. Only the writer's
	// own job has it.
	join func() ([]*job, error)

	phase  phase
	answer answer // once it is answered
	err    error  // of answer

	// freed has the entries that the job removes from the pool and does not replace.
	freed []held

	// For a job that needs an address:
	rng     *ipam.Range
	addr    netip.Addr // in the pool, once the job is committed
	key     string     // of addr
	former  api.Entry  // addr's entry before, if another container had it
	drop    *held      // an entry of the job in the pool that must be removed again
	foreign int        // number of chosen addresses that others had reserved
	// refused is the reason why the planned patch has no address for the job. The next
	// patch may have one.
	refused error
	// failed is the reason why the job will never get an address.
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

// finish ends j with an answer: with err, or with addr if err is nil.
func (j *job) finish(addr netip.Addr, err error) {
	j.phase, j.err = phaseAnswered, err
	j.answer = answer{Addr: addr}
	if err != nil {
		j.answer = answer{Code: cnierr.Code(err), Error: err.Error()}
	}
}
