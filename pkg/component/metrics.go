package component

import (
	"slices"
	"sync"
	"time"
)

// Metrics receives the metrics of one scrape. labels are pairs of a name and a value. A pair with
// an empty value is left out. Package agent implements this interface with Prometheus' library.
type Metrics interface {
	Gauge(name, help string, value float64, labels ...string)
	Counter(name, help string, value float64, labels ...string)
	Histogram(name, help string, h *Histogram, labels ...string)
}

// Histogram counts durations. Its methods may be called concurrently.
type Histogram struct {
	bounds []float64 // in seconds, ascending

	mu     sync.Mutex
	counts []uint64 // counts[i] is the number of durations above bounds[i-1] and up to bounds[i]; the last one is for durations above all bounds
	sum    float64  // seconds
}

// NewHistogram returns a histogram whose buckets have these upper bounds. The bounds are in seconds
// and must be in ascending order.
func NewHistogram(bounds ...float64) *Histogram {
	return &Histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

// Observe counts a duration. A negative duration counts as zero. It can occur if the clock was set.
func (h *Histogram) Observe(d time.Duration) {
	seconds := max(d, 0).Seconds()
	i, _ := slices.BinarySearch(h.bounds, seconds)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[i]++
	h.sum += seconds
}

// Read returns the number of counted durations and their sum in seconds. upTo has, for each bound,
// the number of durations that are not larger than the bound.
func (h *Histogram) Read() (count uint64, sum float64, upTo map[float64]uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	upTo = map[float64]uint64{}
	for i, bound := range h.bounds {
		count += h.counts[i]
		upTo[bound] = count
	}
	return count + h.counts[len(h.bounds)], h.sum, upTo
}

// Bool returns 1 if b is true, and otherwise 0.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
