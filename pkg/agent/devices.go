package agent

// DeviceMetrics are the values of a device plugin's metrics.
type DeviceMetrics struct {
	Devices     []ResourceCount // by state
	Allocations []ResourceCount // by distance
	Problems    []ResourceCount // by reason
	Served      []ResourceCount // 1 if the kubelet watches the resource, else 0
	Panics      uint64
}

// ResourceCount is a number of things of one resource.
type ResourceCount struct {
	Resource string
	Of       string // the state, distance or reason
	Count    float64
}

// collectDevices adds the metrics of the device plugin.
func (a *agent) collectDevices(e *exposition) {
	if a.Devices == nil {
		return
	}
	m := a.Devices()
	for _, c := range m.Devices {
		e.add("rail_cni_resource_devices", gauge, "Devices of a resource, by state.", c.Count, labels{"resource", c.Resource, "state", c.Of})
	}
	for _, c := range m.Served {
		e.add("rail_cni_resource_registered", gauge, "Whether the kubelet watches the devices of the resource.", c.Count, labels{"resource", c.Resource})
	}
	for _, c := range m.Problems {
		e.add("rail_cni_resource_problem", gauge, "Problems of a resource, by reason.", c.Count, labels{"resource", c.Resource, "reason", c.Of})
	}
	for _, c := range m.Allocations {
		e.add("rail_cni_device_allocations_total", counter, "Allocations of devices, by the distance of the farthest NIC and GPU.", c.Count,
			labels{"resource", c.Resource, "level", c.Of})
	}
	e.add("rail_cni_device_plugin_panics_total", counter, "Panics of the device plugin.", float64(m.Panics), nil)
}
