package deviceplugin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// The states of devices in metrics. Each device has one state.
const (
	stateHealthy   = "healthy"
	stateLent      = "lent" // lent and healthy
	stateUnhealthy = "unhealthy"
	stateOutside   = "outside"
)

// scan reads the configuration and the inventory, and updates what the kubelet is told. It returns
// the time of the next scan, which may be far away. If something cannot be read, everything stays
// as it was, and the kubelet keeps the devices.
func (p *Plugin) scan(ctx context.Context) (next time.Time) {
	now := p.Now()
	next = now.Add(p.Interval)
	config, rails, err := p.Config()
	if err != nil {
		p.reportUnread(fmt.Errorf("the configuration of resources: %w", err))
		if p.config == nil {
			return next
		}
		config, rails = p.config, p.rails
	}
	p.config, p.rails = config, rails
	inventory := &Inventory{}
	configured := config != nil && len(config.PoolConfigs) > 0
	if configured || len(p.deviceInfoFiles()) > 0 || p.hasCDIFile() { // files of NICs that are lent must stay
		read, inventoryErr := p.Inventory()
		if inventoryErr != nil {
			p.reportUnread(fmt.Errorf("the NICs of the node: %w", inventoryErr))
			return next
		}
		inventory = p.withGone(read)
	}
	if err == nil {
		p.reportUnread(nil)
	}
	facts := make([]resource.NIC, 0, len(inventory.NICs))
	for _, n := range inventory.NICs {
		if _, was := p.seen[n.PCI]; err != nil && !was {
			n.Protected = cmp.Or(n.Protected, "the configuration cannot be read") // the unread configuration may protect the NIC
		}
		facts = append(facts, n.NIC)
	}
	byPCI, problems := rails.Assign(facts)
	p.keepHeld(ctx, config, facts, byPCI)
	pools, more := config.Pools(facts, byPCI)
	if !configured {
		problems, more = nil, nil // without pools the rails do not concern the device plugin
	}
	p.reportProblems(slices.Concat(problems, more))

	j := &judgment{plugin: p, inventory: inventory, now: now, next: next, ill: map[device]string{}, states: map[[2]string]int{}}
	if config != nil {
		j.limits = config.Health
	}
	j.containers = p.loans(ctx, pools, inventory)
	devices := map[string][]*kubelet.Device{}
	for i := range pools {
		devices[pools[i].Resource] = j.devices(&pools[i])
	}
	p.conclude(j, pools, config != nil && config.CDI && len(pools) > 0)
	p.serve(ctx, pools, devices)
	if configured {
		_ = p.containers.Connect() // only connects; a failure is returned again when the connection is used
	}
	p.cleanDeviceInfo(ctx, inventory)
	return j.next
}

// keepHeld clears the protection of a NIC in an exclusive pool if, according to the kubelet, a
// container has the NIC. Such a NIC stays in its pool. The NIC looks protected if another CNI
// plugin has moved it. Without the NIC in the list, the scheduler would count a device as allocated
// that is not in the list. While the kubelet does not report who has which devices, the pools stay
// unchanged.
func (p *Plugin) keepHeld(ctx context.Context, config *resource.Config, facts []resource.NIC, rails map[string]int) {
	open := slices.Clone(facts)
	for i := range open {
		open[i].Protected = ""
	}
	pools, _ := config.Pools(open, rails)
	held := func(device) bool { return false }
	asked := false
	for i := range facts {
		for _, pool := range pools {
			d := device{pool.Resource, facts[i].PCI}
			if facts[i].Protected == "" || pool.Mode == resource.Shared || !slices.Contains(pool.IDs(), d.id) {
				continue
			}
			if !asked {
				asked, held = true, p.holders(ctx)
			}
			if held(d) {
				facts[i].Protected = ""
			}
		}
	}
}

// holders returns a function that reports whether, according to the kubelet, a container has a
// device. If the kubelet does not answer, the function reports whether the NIC was in a pool in the
// last scan.
func (p *Plugin) holders(ctx context.Context) func(device) bool {
	containers, err := p.containers.Containers(ctx)
	if err != nil {
		return func(d device) bool { _, was := p.seen[d.id]; return was }
	}
	return func(d device) bool {
		return slices.ContainsFunc(containers, func(c kubeletdir.Container) bool { return slices.Contains(c.Devices[d.resource], d.id) })
	}
}

// reportUnread reports that something cannot be read, only once for each error.
func (p *Plugin) reportUnread(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == p.unread {
		return
	}
	if err != nil {
		p.reporter.Report(component.Notice{
			Reason: "DevicesNotRead", Summary: "devices cannot be read", Message: text + ". The kubelet keeps the devices that it knows", Warning: true,
		})
	} else {
		p.reporter.Report(component.Notice{Reason: "DevicesRead", Summary: "devices are read", Message: "the devices of the node can be read again", Warning: false})
	}
	p.unread = text
}

// withGone returns the inventory, and adds the NICs that were in exclusive pools and are no longer
// in the node.
func (p *Plugin) withGone(read *Inventory) *Inventory {
	all := *read
	all.NICs = slices.Clone(read.NICs)
	for _, pci := range slices.Sorted(maps.Keys(p.seen)) {
		if n := p.seen[pci]; all.find(pci) == nil {
			n.Gone, n.Lent = true, nil
			all.NICs = append(all.NICs, n)
		}
	}
	return &all
}

// reportProblems reports new problems, and problems that are solved.
func (p *Plugin) reportProblems(problems []resource.Problem) {
	now, reasons := map[resource.Problem]bool{}, map[[2]string]int{}
	for _, problem := range problems {
		now[problem] = true
		reasons[[2]string{problem.Resource, problem.Reason}]++
		if !p.problems[problem] {
			p.reporter.Report(component.Notice{Reason: "ResourceProblem", Summary: "resource has a problem", Message: problem.Message, Warning: true},
				"resource", problem.Resource, "problem", problem.Reason)
		}
	}
	for problem := range p.problems {
		if reasons[[2]string{problem.Resource, problem.Reason}] == 0 {
			p.reporter.Report(component.Notice{Reason: "ResourceProblemSolved", Summary: "problem of the resource is solved", Message: "solved: " + problem.Message, Warning: false},
				"resource", problem.Resource, "problem", problem.Reason)
		}
	}
	p.problems = now
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reasons = reasons
}

// loans returns what containers have, if a NIC of an exclusive pool is lent. It returns nil if the
// kubelet does not answer.
func (p *Plugin) loans(ctx context.Context, pools []resource.Pool, inventory *Inventory) []kubeletdir.Container {
	lent := slices.ContainsFunc(pools, func(pool resource.Pool) bool {
		return pool.Mode != resource.Shared && slices.ContainsFunc(pool.NICs, func(n resource.NIC) bool {
			found := inventory.find(n.PCI)
			return found != nil && found.Lent != nil
		})
	})
	if !lent {
		return nil
	}
	containers, err := p.containers.Containers(ctx)
	if err != nil {
		p.Log.Debug("cannot read the pods' devices from the kubelet", "err", err)
		return nil
	}
	if containers == nil {
		containers = []kubeletdir.Container{}
	}
	return containers
}

// judgment finds out which devices are healthy.
type judgment struct {
	plugin     *Plugin
	inventory  *Inventory
	limits     resource.Health
	containers []kubeletdir.Container
	now, next  time.Time
	ill        map[device]string
	states     map[[2]string]int
}

// devices returns a pool's devices for the kubelet.
func (j *judgment) devices(pool *resource.Pool) []*kubelet.Device {
	var list []*kubelet.Device
	count := func(state string, n int) { j.states[[2]string{pool.Resource, state}] += n }
	for _, state := range []string{stateHealthy, stateLent, stateUnhealthy, stateOutside} {
		count(state, 0)
		if pool.Mode == resource.Shared {
			break
		}
	}
	if pool.Mode == resource.Shared {
		if len(pool.NICs) == 0 {
			return nil
		}
		for _, id := range pool.IDs() {
			list = append(list, &kubelet.Device{ID: id, Health: kubelet.Healthy, Topology: topology(pool, pool.NICs...)})
		}
		count(stateHealthy, len(list))
		return list
	}
	registered := j.plugin.registeredAt(pool.Resource)
	for _, n := range pool.NICs {
		d := &kubelet.Device{ID: n.PCI, Health: kubelet.Healthy, Topology: topology(pool, n)}
		list = append(list, d)
		found := j.inventory.find(n.PCI)
		j.plugin.seen[n.PCI] = *found
		why, next := j.plugin.health.judge(found, j.limits, j.now)
		j.soon(next)
		outsider, next := j.plugin.health.judgeLoan(device{pool.Resource, n.PCI}, found, j.containers, registered, j.now)
		j.soon(next)
		switch {
		case outsider:
			why = lentOutside
			count(stateOutside, 1)
		case why != "":
			count(stateUnhealthy, 1)
		case found.Lent != nil:
			count(stateLent, 1)
		default:
			count(stateHealthy, 1)
		}
		if why != "" {
			d.Health = kubelet.Unhealthy
			j.ill[device{pool.Resource, n.PCI}] = why
		}
	}
	return list
}

// topology returns the NUMA nodes of NICs for the kubelet. It returns nil if the pool does not
// publish them, or if one of them is not known.
func topology(pool *resource.Pool, nics ...resource.NIC) *kubelet.TopologyInfo {
	var nodes []int
	for _, n := range nics {
		if !pool.Topology || n.NUMA == nil || *n.NUMA < 0 {
			return nil
		}
		nodes = append(nodes, *n.NUMA)
	}
	slices.Sort(nodes)
	t := &kubelet.TopologyInfo{}
	for _, node := range slices.Compact(nodes) {
		t.Nodes = append(t.Nodes, &kubelet.NUMANode{ID: int64(node)})
	}
	return t
}

// soon makes the next scan happen at the time t, or earlier, unless t is zero.
func (j *judgment) soon(t time.Time) {
	if !t.IsZero() && t.Before(j.next) {
		j.next = t
	}
}

// registeredAt returns when the kubelet last began to watch the resource. If the kubelet does not
// watch it yet, registeredAt returns the present time.
func (p *Plugin) registeredAt(resource string) time.Time {
	p.mu.Lock()
	s := p.servers[resource]
	p.mu.Unlock()
	if s == nil {
		return p.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watched.IsZero() {
		return p.Now()
	}
	return s.watched
}

// conclude publishes a judgment, reports devices whose health has changed, and writes the CDI
// specification.
func (p *Plugin) conclude(j *judgment, pools []resource.Pool, cdi bool) {
	p.mu.Lock()
	before := p.ill
	p.inventory, p.pools, p.cdi, p.ill, p.states = j.inventory, pools, cdi, j.ill, j.states
	p.mu.Unlock()
	offered := map[device]bool{}
	for i := range pools {
		for _, id := range pools[i].IDs() {
			offered[device{pools[i].Resource, id}] = true
		}
	}
	for d, why := range j.ill {
		if before[d] == "" {
			p.reporter.Report(component.Notice{Reason: "DeviceUnhealthy", Summary: "device is unhealthy", Message: j.message(d, why), Warning: true}, "resource", d.resource, "device", d.id)
		}
	}
	for d := range before {
		if j.ill[d] == "" && offered[d] {
			p.reporter.Report(component.Notice{
				Reason: "DeviceHealthy", Summary: "device is healthy", Message: fmt.Sprintf("%s: NIC %s is healthy again", d.resource, d.id), Warning: false,
			}, "resource", d.resource, "device", d.id)
		}
	}
	p.health.forget(func(pci string) bool { return j.inventory.find(pci) != nil }, func(d device) bool { return offered[d] })
	maps.DeleteFunc(p.seen, func(pci string, _ NIC) bool {
		return !slices.ContainsFunc(pools, func(pool resource.Pool) bool { return offered[device{pool.Resource, pci}] })
	})
	if !cdi {
		pools = nil
	}
	if err := p.writeCDI(pools); err != nil && (cdi || p.CDIDir != "") {
		p.Log.Warn("cannot write the CDI specification", "dir", p.CDIDir, "err", err)
	}
}

// message returns a message for a person why a device is unhealthy.
func (j *judgment) message(d device, why string) string {
	n := j.inventory.find(d.id)
	name := d.id
	if len(n.Names) > 0 {
		name = n.Names[0] + " (" + d.id + ")"
	}
	if why == lentOutside {
		return fmt.Sprintf("%s: NIC %s is lent to %s, which did not get the NIC from the kubelet: the scheduler does not offer the NIC until it is returned. "+
			"Request the resource in the pod, or take the NIC out of the pool", d.resource, name, n.Lent.holder())
	}
	return fmt.Sprintf("%s: NIC %s is unhealthy: %s", d.resource, name, why)
}

// serve starts and ends servers, so that each pool has one.
func (p *Plugin) serve(ctx context.Context, pools []resource.Pool, devices map[string][]*kubelet.Device) {
	p.stopServers(func(name string) bool {
		return !slices.ContainsFunc(pools, func(pool resource.Pool) bool { return pool.Resource == name })
	})
	for _, pool := range pools {
		p.mu.Lock()
		s := p.servers[pool.Resource]
		p.mu.Unlock()
		if s == nil {
			p.startServer(ctx, newServer(p, pool, devices[pool.Resource]))
			continue
		}
		s.set(pool, devices[pool.Resource])
	}
}
