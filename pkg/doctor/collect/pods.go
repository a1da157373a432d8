package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// maxInterfaces is the maximum number of interfaces of a pod. A pod may make any number of
// interfaces.
const maxInterfaces = 128

// pods returns the living pods that hold a NIC or have a child interface on one, sorted by name and
// without their facts. A pod whose ADD or DEL is under way is left out, because its interface is
// not complete.
func (c *collector) pods(lives func(*ledger.Record) bool) []doctor.Pod {
	var found []doctor.Pod
	for _, r := range c.records {
		known := slices.ContainsFunc(found, func(p doctor.Pod) bool { return r.Pod != nil && p.Namespace == r.Pod.Namespace && p.Name == r.Pod.Name })
		if r.Pod == nil || known || r.Phase != ledger.Lent || !lives(r) {
			continue
		}
		found = append(found, doctor.Pod{Namespace: r.Pod.Namespace, Name: r.Pod.Name, UID: r.Pod.UID})
	}
	return found
}

// recordsOf returns the records of the pod's newest container. A pod can have records of several
// containers while an old container ends.
func (c *collector) recordsOf(p *doctor.Pod) []*ledger.Record {
	of := func(r *ledger.Record) bool {
		return r.Pod != nil && r.Pod.Namespace == p.Namespace && r.Pod.Name == p.Name && r.Phase == ledger.Lent
	}
	var found []*ledger.Record
	for _, r := range c.records {
		if of(r) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil
	}
	newest := found[len(found)-1].ContainerID
	return slices.DeleteFunc(found, func(r *ledger.Record) bool { return r.ContainerID != newest })
}

// ofPod reads the facts about a pod.
func (c *collector) ofPod(ctx context.Context, to *doctor.Pod) {
	records := c.recordsOf(to)
	if len(records) == 0 {
		return
	}
	in := "the netns " + records[0].Netns.Path
	if c.noPods != nil {
		to.Interfaces, to.Devices = doctor.Failed[[]doctor.Interface](in, c.noPods), doctor.Failed[[]doctor.Port](in, c.noPods)
		to.Containers, to.GPUs = doctor.Failed[[]doctor.Container](in, c.noPods), doctor.Failed[[]string](in, c.noPods)
		return
	}
	c.ofPodFiles(ctx, to, records[0])
	take(ctx, c, &to.Status, c.apiSource("pods "+to.Namespace+"/"+to.Name), answerTime, func(ctx context.Context) (string, error) {
		return c.networkStatus(ctx, to.Namespace+"/"+to.Name)
	})
	take(ctx, c, &to.Interfaces, in, localTime, func(context.Context) ([]doctor.Interface, error) { return c.interfaces(records) })
	take(ctx, c, &to.Devices, in, localTime, func(context.Context) ([]doctor.Port, error) { return podDevices(records) })
}

// ofPodFiles reads the facts that are in files of a pod.
func (c *collector) ofPodFiles(ctx context.Context, to *doctor.Pod, r *ledger.Record) {
	// The name of a source contains the pod, so that a pod whose files hang does not affect the
	// facts about other pods.
	key := to.Namespace + "/" + to.Name
	containers, gpus := filepath.Join(c.Proc, "*/ns/net")+" of "+key, filepath.Join(c.Proc, "*/root/dev")+" of "+key
	if c.noFiles != nil {
		to.Containers, to.GPUs = doctor.Failed[[]doctor.Container](containers, c.noFiles), doctor.Failed[[]string](gpus, c.noFiles)
		return
	}
	take(ctx, c, &to.Containers, containers, localTime, func(context.Context) ([]doctor.Container, error) { return c.containers(r) })
	take(ctx, c, &to.GPUs, gpus, localTime, func(context.Context) ([]string, error) { return c.gpusOf(r) })
}

// inPod calls f with the network namespace of the pod that the records belong to.
func inPod[T any](records []*ledger.Record, f func(sp *space) (T, error)) (T, error) {
	at := &spaces{}
	defer at.Close()
	sp := at.podNetns(records[0])
	if sp.Err != nil {
		var none T
		return none, sp.Err
	}
	return f(sp)
}

// interfaces returns the pod's interfaces, except the loopback interface.
func (c *collector) interfaces(records []*ledger.Record) ([]doctor.Interface, error) {
	return inPod(records, func(sp *space) (found []doctor.Interface, err error) {
		for range linkTries {
			if found, err = sp.interfaces(records); !errors.Is(err, link.ErrNotFound) {
				break
			}
		}
		return found, err
	})
}

// linkTries is the maximum number of times that links are read. They are read again if one of them
// has left in the meantime.
const linkTries = 5

// interfaces returns the interfaces of a pod. The error wraps [link.ErrNotFound] if an interface of
// an attachment left while it was read.
func (sp *space) interfaces(records []*ledger.Record) ([]doctor.Interface, error) {
	of := map[int]*ledger.Record{}
	for _, r := range records {
		if l := r.InterfaceIn(sp.Netns); l != nil {
			of[l.Index] = r
		}
	}
	links, err := link.SomeLinks(sp.Netns, maxInterfaces, func(index int) bool { return of[index] != nil })
	if err != nil {
		return nil, err
	}
	devices, err := sp.rdma()
	if err != nil {
		return nil, err
	}
	found := []doctor.Interface{}
	for _, l := range links {
		if l.Encap == "loopback" || len(found) == maxInterfaces && of[l.Index] == nil {
			continue
		}
		i, err := sp.podInterface(l, of[l.Index], devices)
		if err != nil {
			gone := sp.orGone(err, l)
			// The pod's own links may appear, disappear and change their names at any time. This
			// must not affect the facts about the interfaces of attachments.
			if of[l.Index] == nil && (errors.Is(gone, link.ErrNotFound) || errors.Is(gone, fs.ErrNotExist)) {
				continue
			}
			return nil, gone
		}
		found = append(found, i)
	}
	return found, nil
}

// orGone returns an error that wraps [link.ErrNotFound] if the link has left the namespace or has
// another name now, because then its files are no longer at their old place. Otherwise it returns
// err, which must be an error about this link.
func (sp *space) orGone(err error, l *link.Link) error {
	now, there := link.ByIndex(sp.Netns, l.Index)
	switch {
	case errors.Is(there, link.ErrNotFound):
		return there
	case there == nil && now.Name != l.Name:
		return fmt.Errorf("%w %s: it is %s now", link.ErrNotFound, l.Name, now.Name)
	}
	return err
}

// podInterface returns the facts about an interface. r is nil if the interface does not belong to
// an attachment.
func (sp *space) podInterface(l *link.Link, r *ledger.Record, devices []rdma.Device) (i doctor.Interface, err error) {
	i = doctor.Interface{Name: l.Name, Up: l.IsUp(), Carrier: l.HasCarrier(), MTU: l.MTU}
	if r != nil {
		i.NIC, i.Rail = r.NICName(), r.Rail
		for _, d := range devices {
			if recordHas(r, d) {
				i.RDMA = append(i.RDMA, d.Name)
			}
		}
	}
	if i.Addresses, err = sp.addresses(l.Index); err != nil {
		return i, err
	}
	// The kernel uses the larger of the interface's value and the value of "all" (ip-sysctl).
	read := func(name string) (value int, err error) {
		for _, of := range []string{"all", l.Name} {
			path, err := within("/proc/sys/net/ipv4/conf", []string{of, name})
			if err != nil {
				return 0, err
			}
			text, err := readText(path)
			if err != nil {
				return 0, err
			}
			n, err := strconv.Atoi(text)
			if err != nil {
				return 0, err
			}
			value = max(value, n)
		}
		return value, nil
	}
	err = sp.Netns.Do(func() error {
		var ignore, filter error
		i.ARPIgnore, ignore = read("arp_ignore")
		i.RPFilter, filter = read("rp_filter")
		return errors.Join(ignore, filter)
	})
	return i, err
}

// recordHas reports whether the record names the RDMA device.
func recordHas(r *ledger.Record, d rdma.Device) bool {
	return r.RDMA != nil && slices.ContainsFunc(r.RDMA.Devices, func(has ledger.RDMADevice) bool {
		return has.NodeGUID == d.NodeGUID && has.ParentDev == d.ParentDev
	})
}

// podDevices returns the ports of the RDMA devices that the pod sees. In shared mode a pod sees the
// devices of the whole node. Then the GIDs are read only for the pod's own devices.
func podDevices(records []*ledger.Record) ([]doctor.Port, error) {
	return inPod(records, func(sp *space) ([]doctor.Port, error) {
		devices, err := sp.rdma()
		if err != nil {
			return nil, err
		}
		found := []doctor.Port{}
		for _, d := range devices {
			own := slices.IndexFunc(records, func(r *ledger.Record) bool { return recordHas(r, d) })
			mtu := 0
			if own >= 0 {
				if l := records[own].InterfaceIn(sp.Netns); l != nil {
					mtu = l.MTU
				}
			}
			for number := range d.Ports {
				port, err := sp.port(d, number+1, mtu, own >= 0)
				if errors.Is(err, rdma.ErrNotFound) && own < 0 {
					break // a device that is not the pod's own has just left
				}
				if err != nil {
					return nil, fmt.Errorf("RDMA device %s: %w", d.Name, err)
				}
				found = append(found, port)
			}
		}
		return found, nil
	})
}
