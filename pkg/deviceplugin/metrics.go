package deviceplugin

import "github.com/rail-cni/rail-cni/pkg/agent"

// Metrics returns the values for the agent's metrics.
func (p *Plugin) Metrics() agent.DeviceMetrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := agent.DeviceMetrics{Panics: p.panics}
	for key, n := range p.states {
		m.Devices = append(m.Devices, agent.ResourceCount{Resource: key[0], Of: key[1], Count: float64(n)})
	}
	for key, n := range p.allocations {
		m.Allocations = append(m.Allocations, agent.ResourceCount{Resource: key[0], Of: key[1], Count: float64(n)})
	}
	for key, n := range p.reasons {
		m.Problems = append(m.Problems, agent.ResourceCount{Resource: key[0], Of: key[1], Count: float64(n)})
	}
	for name, r := range p.servers {
		watched, taken := r.state()
		m.Served = append(m.Served, agent.ResourceCount{Resource: name, Count: watched})
		if taken {
			m.Problems = append(m.Problems, agent.ResourceCount{Resource: name, Of: "Taken", Count: 1})
		}
	}
	return m
}

// state returns 1 if the kubelet watches the resource, else 0, and whether another device
// plugin serves it.
func (s *server) state() (watched float64, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers > 0 && s.taken == "" {
		watched = 1
	}
	return watched, s.taken != ""
}
