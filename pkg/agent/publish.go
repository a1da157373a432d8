package agent

import (
	"slices"
	"time"
)

// publishSeconds are the upper bounds of the buckets of rail_cni_publish_seconds.
var publishSeconds = [...]float64{0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}

// PublishMetrics are the values of the metrics of the publisher, which tells pods of their
// rails (package publish).
type PublishMetrics struct {
	Pods               int // whose files are there
	FileFailures       uint64
	AnnotationFailures uint64
	Panics             uint64

	took    [len(publishSeconds) + 1]uint64 // pods by bucket; the last bucket has no upper bound
	tookSum float64                         // seconds
}

// Wrote counts a pod whose first files were written, the given time after its first rail was
// lent.
func (m *PublishMetrics) Wrote(after time.Duration) {
	seconds := max(after, 0).Seconds() // the clock may have been set
	i, _ := slices.BinarySearch(publishSeconds[:], seconds)
	m.took[i]++
	m.tookSum += seconds
}

// collectPublished adds the metrics of the publisher.
func (a *agent) collectPublished(e *exposition) {
	if a.Published == nil {
		return
	}
	m := a.Published()
	e.add("rail_cni_published_pods", gauge, "Pods that are told of their rails.", float64(m.Pods), nil)
	for _, f := range []struct {
		of    string
		count uint64
	}{{"files", m.FileFailures}, {"annotation", m.AnnotationFailures}} {
		e.add("rail_cni_publish_failures_total", counter, "Failed tries to tell a pod of its rails, by what was not written.", float64(f.count), labels{"what", f.of})
	}
	e.distribution("rail_cni_publish_seconds", "Time from when a pod's first rail was lent to its first files.", publishSeconds[:], m.took[:], m.tookSum, nil)
	e.add("rail_cni_publish_panics_total", counter, "Panics of the publisher, which tells pods of their rails.", float64(m.Panics), nil)
}
