package agent

// PublishMetrics are the values of the metrics of the publisher, which tells pods of their
// rails (package publish).
type PublishMetrics struct {
	Pods               int // whose files are there
	FileFailures       uint64
	AnnotationFailures uint64
	Panics             uint64
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
	e.add("rail_cni_publish_panics_total", counter, "Panics of the publisher, which tells pods of their rails.", float64(m.Panics), nil)
}
