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
	// slowPatch is the shortest time of a patch that begins the node's note. A server
	// that is not busy needs 10 ms for a pool of a few hundred addresses.
	slowPatch = 200 * time.Millisecond
	// slowMean is the average from which the node warns: many nodes change the pool at
	// once, or it is very large.
	slowMean = time.Second
	// latencyKept is how long a noted time counts.
	latencyKept = 2 * time.Minute
)

// latency is the node's note of how long patches of a pool take, in the pool's queue.
// The server repeats a patch that races with another's by itself, so the time is the
// only sign of many writers.
type latency struct {
	Patched time.Time     `json:"at"`   // of the last patch
	Mean    time.Duration `json:"mean"` // moving average, in nanoseconds
}

// latencyOf returns the note about pool, zero if there is none that counts.
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

// patched notes that a patch of the pool took so long, and warns if patches are slow.
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

// warnIfSlow warns of the pool if its patches are slow by the node's note.
func (s *Store) warnIfSlow(pool ipam.Pool, last latency) {
	if last.Mean < slowMean || s.slow == nil {
		return
	}
	s.slow(failure.New(failure.TryAgain, "a patch of IPPool %s takes %s on average", pool.Name(), last.Mean.Round(10*time.Millisecond)).
		Cure("let each node assign addresses of its own part of the range (block_size or node_slice_size), or split the range over several networks"))
}
