package store

import (
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// phase is how far a job is.
type phase int

const (
	phaseWaiting   phase = iota // for a patch
	phasePlanned                // the next patch is made with it
	phaseCommitted              // the pool is as it should be; reservations are left to do
	phaseAnswered
)

// job is an ask that the writer of a turn carries out, and how far it is.
type job struct {
	*ask
	name string // of the ask's file
	// journalFile is the journal's file that the ask comes from: nobody waits for its
	// answer.
	journalFile string
	// join returns the asks that were posted since its last call. Only the writer's
	// own job has it.
	join func() ([]*job, error)

	phase  phase
	answer answer // once it is answered
	err    error  // of answer

	// freed is what is taken out of the pool for good.
	freed []held

	// For a job that wants an address:
	rng     *ipam.Range
	addr    netip.Addr // in the pool, once committed
	key     string     // of addr
	former  api.Entry  // addr's entry before, if another container had it
	drop    *held      // in the pool, and to be taken out again
	foreign int        // how many addresses others had reserved
	// refused is why the patch has no address for it; the next one may have.
	refused error
	// failed is why it gets no address, whatever the pool says.
	failed error

	// For [turn.judge]:
	saw   *api.Entry // what its pod held when the pool was first read; nil before
	rival *held      // the entry of another container, which may be newer
	older api.Entry  // the rival's entry, once it was found to be older
}

// held is an entry of the pool.
type held struct {
	addr     netip.Addr
	key      string
	entry    api.Entry
	reserved bool   // there may be a reservation
	uid      string // of the reservation, "" when it must be looked up
}

// open reports whether j has no answer yet.
func (j *job) open() bool { return j.phase != phaseAnswered }

// plannable reports whether the pool is not yet as j needs it.
func (j *job) plannable() bool { return j.phase < phaseCommitted }

// settle answers j.
func (j *job) settle(addr netip.Addr, err error) {
	j.phase, j.err = phaseAnswered, err
	j.answer = answer{Addr: addr}
	if err != nil {
		j.answer = answer{Code: cnierr.Code(err), Error: err.Error()}
	}
}
