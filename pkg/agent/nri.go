package agent

import "time"

// NRIMetrics are the values of the metrics of the NRI plugin.
type NRIMetrics struct {
	Connected bool
	// Containers is the number of containers that got something. Errors is the number of
	// those that did not get all that they should have, and Refused is how many of these
	// did not start.
	Containers, Errors, Refused uint64
	Panics                      uint64
	// Longest is the time of the longest answer.
	Longest time.Duration
}

// collectNRI adds the metrics of the NRI plugin.
func (a *agent) collectNRI(e *exposition) {
	if a.NRI == nil {
		return
	}
	m := a.NRI()
	connected := 0.0
	if m.Connected {
		connected = 1
	}
	e.add("rail_cni_nri_connected", gauge, "Whether the NRI plugin is connected to the runtime.", connected, nil)
	e.add("rail_cni_nri_containers_total", counter, "Containers that the NRI plugin changed.", float64(m.Containers), nil)
	e.add("rail_cni_nri_errors_total", counter, "Containers that did not get all that the NRI plugin should give them.", float64(m.Errors), nil)
	e.add("rail_cni_nri_refused_total", counter, "Containers that did not start for that reason, because their pod requires it.", float64(m.Refused), nil)
	e.add("rail_cni_nri_longest_seconds", gauge, "Longest answer of the NRI plugin to the runtime.", m.Longest.Seconds(), nil)
	e.add("rail_cni_nri_panics_total", counter, "Panics of the NRI plugin.", float64(m.Panics), nil)
}
