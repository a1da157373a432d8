package store

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

const (
	latencyFile = "latency"
	// slowPatch is the shortest time of a patch for which the node begins a note. A server
	// that is not busy needs 10 ms for a pool of a few hundred addresses.
	slowPatch = 200 * time.Millisecond
	// slowMean is the average time from which on the node warns. If patches are that slow,
	// many nodes change the pool at once, or the pool is very large.
	slowMean = time.Second
	// latencyKept is how long a noted time counts.
	latencyKept = 2 * time.Minute
)

// latency is the node's note of how long patches of a pool take. It is a file in the pool's
// queue. If a patch races with another one, the server repeats the patch by itself, so the
// time is the only sign of many writers.
type latency struct {
	Patched time.Time     `json:"at"`   // of the last patch
	Mean    time.Duration `json:"mean"` // moving average, in nanoseconds
}

// latencyOf returns the note about pool, or zero if there is no note or the note is too
// old.
func (s *Store) latencyOf(pool ipam.Pool) (last latency) {
	dir, err := s.queueDir(pool)
	if err != nil {
		return latency{}
	}
	defer dir.Close()
	data, err := dir.Read(latencyFile)
	if err != nil || json.Unmarshal(data, &last) != nil {
		return latency{}
	}
	if age := time.Since(last.Patched); age < 0 || age > latencyKept { // the clock may have been set back
		return latency{}
	}
	return last
}

// patched notes that a patch of the pool took the time took. It warns if patches of the
// pool are slow.
func (t *turn) patched(took time.Duration) {
	last := t.s.latencyOf(t.pool)
	if last.Patched.IsZero() && took < slowPatch {
		return
	}
	if last.Mean < slowMean/2 {
		took = min(took, slowMean) // so that one slow patch alone does not warn
	}
	now := latency{time.Now(), (last.Mean + took) / 2}
	data, err := json.Marshal(now)
	if err == nil {
		dir, openErr := t.s.queueDir(t.pool)
		if err = openErr; err == nil {
			err = errors.Join(dir.Write(latencyFile, data), dir.Close())
		}
	}
	t.s.warnIf(err)
	t.s.warnIfSlow(t.pool, now)
}

// warnIfSlow warns if patches of the pool are slow according to the note last.
func (s *Store) warnIfSlow(pool ipam.Pool, last latency) {
	if last.Mean < slowMean || s.slow == nil {
		return
	}
	s.slow(failure.New(failure.TryAgain, "a patch of IPPool %s takes %s on average", pool.Name(), last.Mean.Round(10*time.Millisecond)).
		Cure("let each node assign addresses of its own part of the range (block_size or node_slice_size), or split the range over several networks"))
}
