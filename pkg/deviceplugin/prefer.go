package deviceplugin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// preferTime bounds the search for a container's GPUs. Meanwhile the kubelet admits no other pod,
// and the kubelet itself does not bound the call.
const preferTime = 900 * time.Millisecond

// admission is what is known about GPUs while the kubelet allocates devices to a container.
type admission struct {
	// gpus are the PCI addresses of the GPUs of the container, sorted. It is nil if they are not
	// known.
	gpus []string
	// taken are the PCI addresses of the GPUs of all containers. It is nil if they are not known.
	taken map[string]bool
}

// admission returns what is known about the container to which the kubelet is allocating devices of
// a resource. The kubelet does not name that container. If there is any doubt, the result is empty.
func (p *Plugin) admission(ctx context.Context, resource string, inventory *Inventory) admission {
	if len(inventory.GPUs) == 0 {
		return admission{}
	}
	ctx, cancel := context.WithTimeout(ctx, preferTime)
	defer cancel()
	containers, err := p.containers.Containers(ctx)
	if err != nil {
		p.Log.Debug("cannot find the container's GPUs", "resource", resource, "err", err)
		return admission{}
	}
	taken := map[string]bool{}
	for _, c := range containers {
		for _, gpu := range gpusOf(&c, inventory.GPUs) {
			taken[gpu] = true
		}
	}
	saved, err := kubeletdir.ReadCheckpoint(p.KubeletDir)
	if err != nil {
		p.Log.Debug("cannot find the container's GPUs", "resource", resource, "err", err)
		return admission{taken: taken}
	}
	return admission{gpus: admitted(containers, saved, resource, inventory.GPUs), taken: taken}
}

// admitted returns the GPUs of the container to which the kubelet is allocating now. That is the
// only container that has GPUs but no device of the resource, and whose devices are not yet in the
// checkpoint. The kubelet admits one pod at a time, shows its devices as they are allocated, and
// writes the checkpoint when the container has all of them (pkg/kubelet/cm/devicemanager,
// allocateContainerResources). admitted returns nil if there is no such container, or more than
// one.
func admitted(containers []kubeletdir.Container, saved *kubeletdir.Checkpoint, resource string, gpus []GPU) []string {
	var found []string
	for i := range containers {
		c := &containers[i]
		complete := slices.ContainsFunc(saved.Containers, func(s kubeletdir.Container) bool {
			return s.Name == c.Name && maps.EqualFunc(s.Devices, c.Devices, slices.Equal)
		})
		if complete || len(c.Devices[resource]) > 0 {
			continue
		}
		if has := gpusOf(c, gpus); len(has) > 0 {
			if found != nil {
				return nil
			}
			found = has
		}
	}
	return found
}

// gpusOf returns the PCI addresses of the container's GPUs, sorted. Device plugins of GPUs use
// UUIDs or PCI addresses as IDs. If a GPU is shared, "::" and a number follow.
func gpusOf(c *kubeletdir.Container, gpus []GPU) []string {
	var found []string
	for _, ids := range c.Devices {
		for _, id := range ids {
			id, _, _ = strings.Cut(id, "::")
			for _, g := range gpus {
				if (id == g.UUID && id != "" || strings.EqualFold(id, g.PCI)) && !slices.Contains(found, g.PCI) {
					found = append(found, g.PCI)
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// candidates returns the NICs of a pool that have these IDs, in the pool's order.
func candidates(pool *resource.Pool, ids []string, inventory *Inventory, a admission) []candidate {
	var list []candidate
	free := map[string]int{}
	for _, n := range pool.NICs {
		if !slices.Contains(ids, n.PCI) {
			continue
		}
		distances := inventory.distances(n.PCI)
		c := candidate{id: n.PCI, switchOf: above(&n), numa: -1}
		if n.NUMA != nil {
			c.numa = *n.NUMA
		}
		for _, g := range a.gpus {
			c.distances = append(c.distances, distance(distances, g))
		}
		if a.taken != nil {
			near := 0
			for _, g := range inventory.GPUs {
				if !a.taken[g.PCI] && distance(distances, g.PCI) <= pcie.PXB {
					near++
				}
			}
			free[c.switchOf] = max(free[c.switchOf], near)
		}
		list = append(list, c)
	}
	for i := range list {
		list[i].freeGPUs = free[list[i].switchOf]
	}
	return list
}

// above returns the names of the bridges above the NIC's own port on PCI Express.
func above(n *resource.NIC) string {
	if len(n.Path) == 0 {
		return n.PCI
	}
	return strings.Join(n.Path[:max(1, len(n.Path)-1)], "/")
}

func distance(to map[string]pcie.Distance, gpu string) pcie.Distance {
	if d, ok := to[gpu]; ok {
		return d
	}
	return pcie.SYS
}

// distances returns the distances of a NIC from the GPUs.
func (i *Inventory) distances(pci string) map[string]pcie.Distance {
	if n := i.find(pci); n != nil {
		return n.Distances
	}
	return nil
}

// find returns the NIC with the PCI address, or nil if there is none.
func (i *Inventory) find(pci string) *NIC {
	pos := slices.IndexFunc(i.NICs, func(n NIC) bool { return n.PCI == pci })
	if pos < 0 {
		return nil
	}
	return &i.NICs[pos]
}
