package deviceplugin

import "github.com/rail-cni/rail-cni/pkg/component"

// resourceCount is one number about a resource.
type resourceCount struct {
	resource string
	value    string // the state, distance or reason
	count    float64
}

// metrics are the values of the plugin's metrics.
type metrics struct {
	devices     []resourceCount // by state
	allocations []resourceCount // by distance
	problems    []resourceCount // by reason
	served      []resourceCount // 1 if the kubelet watches the resource, otherwise 0
}

// Component returns the plugin as a component of the agent.
func (p *Plugin) Component() component.Component {
	return component.Component{Name: "device-plugin", Reporter: p.reporter, Run: p.Run, Collect: p.collect}
}

// collect sends the metrics.
func (p *Plugin) collect(out component.Metrics) {
	m := p.read()
	for _, c := range m.devices {
		out.Gauge("rail_cni_resource_devices", "Devices of a resource, by state.", c.count, "resource", c.resource, "state", c.value)
	}
	for _, c := range m.served {
		out.Gauge("rail_cni_resource_registered", "Whether the kubelet watches the devices of the resource.", c.count, "resource", c.resource)
	}
	for _, c := range m.problems {
		out.Gauge("rail_cni_resource_problem", "Problems of a resource, by reason.", c.count, "resource", c.resource, "reason", c.value)
	}
	for _, c := range m.allocations {
		out.Counter("rail_cni_device_allocations_total", "Allocations of devices, by the distance of the farthest NIC and GPU.", c.count,
			"resource", c.resource, "level", c.value)
	}
}

// read returns the present values.
func (p *Plugin) read() metrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	var m metrics
	for key, n := range p.states {
		m.devices = append(m.devices, resourceCount{key[0], key[1], float64(n)})
	}
	for key, n := range p.allocations {
		m.allocations = append(m.allocations, resourceCount{key[0], key[1], float64(n)})
	}
	for key, n := range p.reasons {
		m.problems = append(m.problems, resourceCount{key[0], key[1], float64(n)})
	}
	for name, r := range p.servers {
		watched, taken := r.state()
		m.served = append(m.served, resourceCount{name, "", component.Bool(watched)})
		if taken {
			m.problems = append(m.problems, resourceCount{name, "Taken", 1})
		}
	}
	return m
}

// state reports whether the kubelet watches the resource, and whether another device plugin
// serves it.
func (s *server) state() (watched, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watchers > 0 && s.taken == "", s.taken != ""
}
