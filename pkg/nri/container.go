package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/publish"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

const (
	// lookupTime is the time limit for a lookup. It is short because the runtime, by default, waits
	// 2 s for a plugin.
	lookupTime = 500 * time.Millisecond
	// maxLookups is the maximum number of lookups that hang in the kernel or in a driver. A runtime
	// asks its plugins about one container after another, so each hanging lookup delays all pods
	// once by lookupTime.
	maxLookups = 4

	connectionManager = "/dev/infiniband/rdma_cm"
	memlockType       = "RLIMIT_MEMLOCK"
	listName          = "RAIL_CNI_ENV" // the variable that lists the names of the other variables
)

// createContainer returns what the container gets. It returns nil if the container gets nothing. It
// returns an error only if the pod's annotation asks for that. Then the runtime does not start the
// container, and the kubelet tries again.
func (p *Plugin) createContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container, limit memlock) (*api.ContainerAdjustment, error) {
	began := time.Now()
	adjustment, err := p.adjustment(ctx, pod, c, limit)
	took := time.Since(began)
	required := err != nil && pod.GetAnnotations()[railinfo.RequireAnnotation] == "true"
	p.count(func(m *metrics) {
		m.MaxTime = max(m.MaxTime, took)
		if adjustment != nil {
			m.Containers++
		}
		if err != nil {
			m.Errors++
		}
		if required {
			m.Refused++
		}
	})
	name := pod.GetNamespace() + "/" + pod.GetName()
	p.Log.Debug("container was handled", "pod", name, "container", c.GetName(), "changed", adjustment != nil, "took", took)
	if err == nil {
		return adjustment, nil
	}
	err = fmt.Errorf("rail-cni: container %s of pod %s does not get all that its rails need: %w", c.GetName(), name, err)
	n := component.Notice{Reason: "NRIFailed", Summary: "container does not get what its rails need", Message: err.Error(), Warning: true}
	if !required {
		n.Message += ". It starts all the same; the annotation " + railinfo.RequireAnnotation + `: "true" keeps such a pod from starting`
		p.reporter.Once(n.Reason, n)
		return adjustment, nil
	}
	p.reporter.Once(n.Reason, n)
	return nil, err
}

// adjustment returns what the container gets. If there is an error, the adjustment has everything
// except the part that failed. After a panic it has nothing.
func (p *Plugin) adjustment(ctx context.Context, pod *api.PodSandbox, c *api.Container, limit memlock) (*api.ContainerAdjustment, error) {
	return component.Value(p.reporter, func() (*api.ContainerAdjustment, error) { return p.adjust(ctx, pod, c, limit) })
}

// adjust does the same as adjustment, but may panic.
func (p *Plugin) adjust(ctx context.Context, pod *api.PodSandbox, c *api.Container, limit memlock) (*api.ContainerAdjustment, error) {
	publication, err := p.lookup(ctx, pod.GetId())
	if err != nil || publication == nil {
		return nil, err
	}
	settings, err := publication.Settings.For(pod.GetAnnotations()[railinfo.PublishAnnotation])
	errs := []error{err}
	a := &api.ContainerAdjustment{}
	if settings.Mount {
		err := p.addMount(a, c, publication.Dir)
		errs, settings.Mount = append(errs, err), err == nil // without the mount, no variable may name a file in it
	}
	if settings.Devices {
		for _, path := range chars(publication.Rails) {
			errs = append(errs, p.addDevice(a, c, path))
		}
	}
	if !hasDevices(c.GetLinux().GetDevices()) && !hasDevices(a.GetLinux().GetDevices()) {
		// If variables named RDMA devices that the container does not have, UCX would find none of
		// them, and would not use TCP either. The variables of vLLM also name devices for UCX.
		settings.Env = slices.DeleteFunc(slices.Clone(settings.Env), func(f railinfo.Family) bool { return f == railinfo.UCX || f == railinfo.VLLM })
	}
	addEnv(a, c, publication.Rails.Env(settings))
	if settings.Memlock && locksMemory(publication.Rails) {
		p.addMemlock(a, c, limit)
	}
	if len(a.Env)+len(a.Mounts)+len(a.Rlimits)+len(a.GetLinux().GetDevices()) == 0 {
		a = nil
	}
	return a, errors.Join(errs...)
}

// hasDevices reports whether the list contains a char device of an RDMA device.
func hasDevices(list []*api.LinuxDevice) bool {
	return slices.ContainsFunc(list, func(d *api.LinuxDevice) bool { return strings.HasPrefix(d.GetPath(), "/dev/infiniband/uverbs") })
}

// locksMemory reports whether the pod can use a rail by RDMA or with a userspace driver. A rail
// with a userspace driver has no interface.
func locksMemory(r *railinfo.Rails) bool {
	return r.HasRDMA() || slices.ContainsFunc(r.Rails, func(rail railinfo.Rail) bool { return rail.IfName == "" })
}

// lookup calls Options.Lookup and waits at most lookupTime for the result. A call that hangs in the
// kernel keeps its slot until it returns.
func (p *Plugin) lookup(ctx context.Context, sandboxID string) (*publish.Publication, error) {
	select {
	case p.slots <- struct{}{}:
	default:
		return nil, failure.New(failure.TryAgain, "%d lookups of the pods' rails hang", maxLookups).
			Cure("look in the kernel's log for what a driver or a disk waits for")
	}
	ctx, cancel := context.WithTimeout(ctx, p.lookupTime)
	defer cancel()
	type answer struct {
		publication *publish.Publication
		err         error
	}
	answered := make(chan answer, 1)
	go func() {
		defer func() { <-p.slots }()
		publication, err := component.Value(p.reporter, func() (*publish.Publication, error) { return p.Lookup(ctx, sandboxID) })
		answered <- answer{publication, err}
	}()
	select {
	case a := <-answered:
		return a.publication, a.err
	case <-ctx.Done():
		return nil, failure.New(failure.TryAgain, "the lookup of the pod's rails took longer than %v", p.lookupTime)
	}
}

// addEnv adds those variables that the container does not have yet.
func addEnv(a *api.ContainerAdjustment, c *api.Container, vars []railinfo.Var) {
	has := map[string]bool{}
	for _, v := range c.GetEnv() {
		name, _, _ := strings.Cut(v, "=")
		has[name] = true
	}
	left := slices.DeleteFunc(slices.Clone(vars), func(v railinfo.Var) bool { return has[v.Name] || v.Name == listName })
	if len(left) > 0 && !has[listName] {
		left = railinfo.WithList(left)
	}
	for _, v := range left {
		a.AddEnv(v.Name, v.Value)
	}
}

// addMount adds the mount of the pod's directory, if the container does not have a mount at that
// path.
func (p *Plugin) addMount(a *api.ContainerAdjustment, c *api.Container, dir string) error {
	for _, m := range c.GetMounts() {
		dst := filepath.Clean(m.GetDestination())
		if dst == railinfo.MountPoint {
			return nil
		}
		// Below a read-only mount, the runtime could not make the directory, and the container
		// would not start.
		if dst != "/" && strings.HasPrefix(railinfo.MountPoint, dst+"/") && slices.Contains(m.GetOptions(), "ro") {
			return failure.New(failure.IO, "the container has a read-only mount at %s, so that %s cannot be made below it", dst, railinfo.MountPoint)
		}
	}
	// If the source of a mount does not exist, the container does not start.
	if _, err := os.Stat(filepath.Join(p.root(), dir)); err != nil {
		return failure.Wrap(err, failure.IO, "directory of the pod's files")
	}
	a.AddMount(&api.Mount{
		Source: dir, Destination: railinfo.MountPoint, Type: "bind", Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec"},
	})
	return nil
}

// addMemlock adds the limit of locked memory, if it is not set yet. The administrator's base
// specification or another plugin may have set it.
func (p *Plugin) addMemlock(a *api.ContainerAdjustment, c *api.Container, limit memlock) {
	for _, r := range c.GetRlimits() {
		if r.GetType() == memlockType {
			return
		}
	}
	if uint64(limit) == unlimited {
		p.reporter.Over("MemlockLimited")
	} else {
		p.reporter.Once("MemlockLimited", component.Notice{
			Reason: "MemlockLimited", Summary: "runtime cannot lift the limit of locked memory", Warning: true,
			Message: fmt.Sprintf("containers of pods with rails may lock only %d bytes of memory: this is the hard limit of the container runtime, which has no CAP_SYS_RESOURCE. "+
				"Start it with LimitMEMLOCK=infinity", limit),
		})
	}
	a.AddRlimit(memlockType, uint64(limit), uint64(limit))
}

// chars returns the char devices of the rails and the char device of the connection manager.
func chars(rails *railinfo.Rails) []string {
	paths := rails.CharDevices()
	if len(paths) > 0 && !slices.Contains(paths, connectionManager) {
		paths = append(slices.Clone(paths), connectionManager)
	}
	return paths
}

// addDevice adds a char device with the permissions that it has on the host, and allows the
// container's cgroup to use it. If the container already has the device, addDevice does not add it.
func (p *Plugin) addDevice(a *api.ContainerAdjustment, c *api.Container, path string) error {
	for _, d := range c.GetLinux().GetDevices() {
		if d.GetPath() == path {
			return nil
		}
	}
	var st unix.Stat_t
	err := unix.Stat(filepath.Join(p.root(), path), &st)
	switch {
	case path == connectionManager && errors.Is(err, fs.ErrNotExist):
		return nil // the module rdma_ucm is not loaded, but not every program needs the device
	case err != nil:
		return failure.Wrap(err, failure.IO, "char device %s", path)
	case st.Mode&unix.S_IFMT != unix.S_IFCHR:
		return failure.New(failure.IO, "%s is not a char device", path)
	}
	mode := os.FileMode(st.Mode & 0o777)
	a.AddDevice(&api.LinuxDevice{
		Path: path, Type: "c", Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)),
		FileMode: api.FileMode(&mode), Uid: api.UInt32(st.Uid), Gid: api.UInt32(st.Gid),
	})
	return nil
}

func (p *Plugin) root() string { return cmp.Or(p.Root, "/") }
