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
	// slowPatch is the time from which on a patch is noted. A server that has time
	// needs 10 ms for a pool of a few hundred addresses.
	slowPatch = 200 * time.Millisecond
	// hotPatch is the average time from which on a pool is hot: many nodes change it
	// at once, or it is very large.
	hotPatch = time.Second
	// hotFor is how long a noted time counts.
	hotFor = 2 * time.Minute
)

// latency is the node's note of how long patches of a pool take, in the pool's queue.
// The server repeats a patch that races with another's by itself, so the time is the
// only sign of many writers.
type latency struct {
	At   time.Time     `json:"at"`   // of the last patch
	Mean time.Duration `json:"mean"` // moving average, in nanoseconds
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
	if age := time.Since(last.At); age < 0 || age > hotFor { // the clock may have been set back
		return latency{}
	}
	return last
}

// patched notes that a patch of the pool took so long, and warns of a hot pool.
func (t *turn) patched(took time.Duration) {
	last := t.s.latencyOf(t.pool)
	if last.At.IsZero() && took < slowPatch {
		return
	}
	mean := took
	if !last.At.IsZero() {
		mean = (3*last.Mean + took) / 4
	}
	data, err := json.Marshal(latency{time.Now(), mean})
	if err == nil {
		dir, openErr := t.s.queueDir(t.pool)
		if err = openErr; err == nil {
			err = errors.Join(dir.Write(latencyFile, data), dir.Close())
		}
	}
	t.s.warnIf(err)
	t.s.warnIfHot(t.pool)
}

// warnIfHot warns of the pool if it is hot.
func (s *Store) warnIfHot(pool ipam.Pool) {
	last := s.latencyOf(pool)
	if last.Mean < hotPatch || s.hot == nil {
		return
	}
	s.hot(failure.WithCure(failure.New(failure.TryAgain, "a patch of IPPool %s takes %s on average", pool.Name(), last.Mean.Round(10*time.Millisecond)),
		"give each node a slice of the range (node_slice_size), or split the range over several networks"))
}
