package deviceplugin

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/rail-cni/rail-cni/pkg/resource"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	// returnTime is how long Allocate waits for a NIC that is still lent. When a pod ends, the
	// kubelet frees its devices at a time when its NIC should have been returned already. A pod
	// whose Allocate fails is rejected permanently.
	returnTime  = 3 * time.Second
	returnCheck = 100 * time.Millisecond

	rdmaDir = "/dev/infiniband"
	// connectionManager is the char device of the RDMA connection manager, which all RDMA devices
	// share.
	connectionManager = rdmaDir + "/rdma_cm"
)

// The permissions of char devices. They are the same as in k8s-rdma-shared-dev-plugin (shared) and
// in sriov-network-device-plugin (exclusive).
const (
	sharedAccess    = "rwm"
	exclusiveAccess = "rw"
)

// allocate returns what a container gets with devices of a pool. The error is a gRPC status.
func (p *Plugin) allocate(ctx context.Context, pool *resource.Pool, ids []string) (*kubelet.ContainerAllocateResponse, error) {
	if pool.Mode == resource.Shared {
		return p.allocateShared(pool)
	}
	nics, inventory, err := p.lendable(ctx, pool, ids)
	if err != nil {
		return nil, err
	}
	answer := &kubelet.ContainerAllocateResponse{Envs: map[string]string{}}
	info := map[string]map[string]any{}
	var sorted, paths, names []string
	for _, n := range nics {
		chars := p.charDevices(pool.CharDevices(&n.NIC))
		if len(n.CharDevices) > 0 && len(chars) == 0 {
			return nil, noCharDevices(pool.Resource, n.CharDevices)
		}
		sorted, names = append(sorted, n.PCI), append(names, n.PCI)
		paths = append(paths, chars...)
		info[n.PCI] = details(n, chars, pool.AdditionalInfo)
		if err := p.writeDeviceInfo(pool.Resource, n); err != nil {
			return nil, status.Errorf(codes.Internal, "%s: device information of %s: %v; make the directory writable, or set --devinfo-dir off",
				pool.Resource, n.PCI, err)
		}
	}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	answer.Envs[envName(pool.Resource)] = strings.Join(sorted, ",")
	answer.Envs[envName(pool.Resource)+"_INFO"] = string(text)
	if err := p.hand(answer, paths, names, exclusiveAccess); err != nil {
		return nil, err
	}
	p.countAllocation(pool, sorted, inventory, p.admission(ctx, pool.Resource, inventory))
	return answer, nil
}

// allocateShared returns the char devices of all NICs of the pool, whether they are lent or not: an
// ID does not stand for a certain NIC.
func (p *Plugin) allocateShared(pool *resource.Pool) (*kubelet.ContainerAllocateResponse, error) {
	var listed []string
	for i := range pool.NICs {
		listed = append(listed, pool.CharDevices(&pool.NICs[i])...)
	}
	paths := p.charDevices(listed)
	if len(paths) == 0 {
		return nil, noCharDevices(pool.Resource, listed)
	}
	answer := &kubelet.ContainerAllocateResponse{}
	if err := p.hand(answer, paths, []string{resource.CDIDevice(pool.Resource)}, sharedAccess); err != nil {
		return nil, err
	}
	p.countAllocation(pool, nil, nil, admission{})
	return answer, nil
}

func noCharDevices(resource string, listed []string) error {
	what := strings.Join(listed, ", ")
	if what == "" {
		what = "an RDMA char device of its NICs"
	}
	return status.Errorf(codes.FailedPrecondition, "%s: there is no %s; load the module ib_uverbs, and check whether %s then has the device",
		resource, what, rdmaDir)
}

// lendable returns the NICs with the IDs, in the pool's order. It waits for NICs that are being
// returned.
func (p *Plugin) lendable(ctx context.Context, pool *resource.Pool, ids []string) ([]*NIC, *Inventory, error) {
	for end := p.Now().Add(returnTime); ; {
		inventory, err := p.Inventory()
		if err != nil {
			return nil, nil, status.Errorf(codes.Unavailable, "%s: the NICs of the node: %v", pool.Resource, err)
		}
		nics, busy, err := p.check(pool, ids, inventory)
		if err != nil {
			return nil, nil, err
		}
		if busy == nil {
			return nics, inventory, nil
		}
		if !p.Now().Before(end) || wait.For(ctx, returnCheck) != nil {
			return nil, nil, busy
		}
	}
}

// check returns the NICs with the IDs, in the pool's order. busy is an error about a NIC that is
// lent and may return soon. err is an error about a NIC that cannot be allocated.
func (p *Plugin) check(pool *resource.Pool, ids []string, inventory *Inventory) (nics []*NIC, busy, err error) {
	known := pool.IDs()
	for _, id := range ids {
		if !slices.Contains(known, id) {
			return nil, nil, status.Errorf(codes.NotFound, "%s has no device %s on this node", pool.Resource, id)
		}
	}
	for _, id := range known {
		if !slices.Contains(ids, id) {
			continue
		}
		n := inventory.find(id)
		switch why := p.unhealthy(device{pool.Resource, id}); {
		case n == nil || n.Gone:
			return nil, nil, status.Errorf(codes.Unavailable, "%s: NIC %s is not in the node any more", pool.Resource, id)
		case n.Lent != nil:
			busy = status.Errorf(codes.Unavailable, "%s: NIC %s is lent to %s; \"railctl show\" lists the attachments", pool.Resource, id, n.Lent.holder())
		case why != "" && why != lentOutside: // lentOutside is outdated: the NIC was returned just now
			return nil, nil, status.Errorf(codes.Unavailable, "%s: NIC %s is unhealthy: %s", pool.Resource, id, why)
		}
		nics = append(nics, n)
	}
	return nics, busy, nil
}

// holder returns the name of the NIC's holder, for a message.
func (l *Lent) holder() string {
	if l.Pod == "" {
		return "container " + l.ContainerID
	}
	return "pod " + l.Namespace + "/" + l.Pod
}

// charDevices returns the paths in listed that are char devices now, each once, and after them the
// char device of the RDMA connection manager. If the process does not see the host's
// /dev/infiniband, charDevices trusts the inventory.
func (p *Plugin) charDevices(listed []string) []string {
	_, err := os.Stat(p.Root + rdmaDir)
	blind := err != nil
	exists := func(path string) bool {
		info, err := os.Stat(p.Root + path)
		return blind || err == nil && info.Mode()&fs.ModeCharDevice != 0
	}
	var found []string
	for _, path := range listed {
		if exists(path) && !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	if len(found) > 0 && exists(connectionManager) {
		found = append(found, connectionManager)
	}
	return found
}

// hand adds the char devices to the answer. It adds either the paths themselves, or the CDI devices
// with these names, which contain the char devices.
func (p *Plugin) hand(answer *kubelet.ContainerAllocateResponse, paths, names []string, access string) error {
	if len(paths) == 0 {
		return nil
	}
	if p.usesCDI() {
		devices, err := p.cdiDevices(names)
		if err != nil {
			return status.Errorf(codes.Internal, "CDI specification: %v; make the directory writable, or remove cdi from the node file", err)
		}
		answer.CdiDevices = devices
		return nil
	}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		answer.Devices = append(answer.Devices, &kubelet.DeviceSpec{HostPath: path, ContainerPath: path, Permissions: access})
	}
	return nil
}

// details returns what the variable PCIDEVICE_…_INFO contains about a NIC, in the form of
// sriov-network-device-plugin.
func details(n *NIC, chars []string, additional map[string]map[string]string) map[string]any {
	d := map[string]any{"generic": map[string]string{"deviceID": n.PCI}}
	rdma := map[string]string{}
	for _, path := range chars {
		for _, kind := range []string{"uverbs", "umad", "issm", "rdma_cm"} {
			if _, known := rdma[kind]; !known && strings.HasPrefix(filepath.Base(path), kind) {
				rdma[kind] = path
			}
		}
	}
	if len(n.RDMA) > 0 {
		rdma["rdma_dev"] = n.RDMA[0]
	}
	if len(rdma) > 0 {
		d["rdma"] = rdma
	}
	extra := map[string]string{}
	maps.Copy(extra, additional["*"])
	maps.Copy(extra, additional[n.PCI])
	if len(extra) > 0 {
		d["extra"] = extra
	}
	return d
}

// envName returns the name of the variable with the IDs of a resource's devices, for example
// "PCIDEVICE_NVIDIA_COM_HCA_RAIL_0" for nvidia.com/hca_rail_0.
func envName(resource string) string {
	return "PCIDEVICE_" + strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(resource))
}

// unhealthy returns the reason that the kubelet is given why the device is unhealthy, or "" if the
// device is healthy.
func (p *Plugin) unhealthy(d device) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ill[d]
}

// countAllocation counts the allocation by the distance of the farthest pair of a NIC and a GPU.
func (p *Plugin) countAllocation(pool *resource.Pool, ids []string, inventory *Inventory, a admission) {
	name := "unknown"
	if inventory != nil {
		if d, known := level(candidates(pool, ids, inventory, a)); known {
			name = d.String()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allocations[[2]string{pool.Resource, name}]++
	p.Log.Info("devices were allocated", "resource", pool.Resource, "devices", ids, "gpus", a.gpus, "level", name)
}

// prefer returns the devices that the kubelet should allocate.
func (p *Plugin) prefer(ctx context.Context, pool *resource.Pool, r *kubelet.ContainerPreferredAllocationRequest) []string {
	size := int(r.GetAllocationSize())
	if pool.Mode == resource.Shared || size >= len(r.GetAvailableDeviceIDs()) {
		return first(r.GetMustIncludeDeviceIDs(), r.GetAvailableDeviceIDs(), size)
	}
	p.mu.Lock()
	inventory := p.inventory // not read again, because a driver may be slow and the kubelet waits
	p.mu.Unlock()
	a := p.admission(ctx, pool.Resource, inventory)
	var offered []string
	for _, id := range r.GetAvailableDeviceIDs() {
		n := inventory.find(id)
		if n != nil && n.Lent == nil || slices.Contains(r.GetMustIncludeDeviceIDs(), id) {
			offered = append(offered, id)
		}
	}
	chosen := choose(candidates(pool, offered, inventory, a), r.GetMustIncludeDeviceIDs(), size)
	return first(append(slices.Clone(r.GetMustIncludeDeviceIDs()), chosen...), r.GetAvailableDeviceIDs(), size)
}

// first returns size different IDs: first the IDs of one, and then the IDs of other in sorted
// order.
func first(one, other []string, size int) []string {
	var list []string
	for _, id := range slices.Concat(one, slices.Sorted(slices.Values(other))) {
		if len(list) < size && !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	return list
}
