package devices

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// maxInterfaces is the maximum number of interfaces of a pod. A pod may make any number of
// interfaces.
const maxInterfaces = 128

// inPod calls f with the network namespace of the pod that the records belong to.
func inPod[T any](records []*ledger.Record, f func(sp *space) (T, error)) (T, error) {
	sps := &spaces{}
	defer sps.Close()
	sp := sps.podNetns(records[0])
	if sp.Err != nil {
		var none T
		return none, sp.Err
	}
	return f(sp)
}

// Interfaces returns the pod's interfaces but the loopback one.
func Interfaces(records []*ledger.Record) ([]fact.Interface, error) {
	return inPod(records, func(sp *space) (found []fact.Interface, err error) {
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
func (sp *space) interfaces(records []*ledger.Record) ([]fact.Interface, error) {
	byIndex := map[int]*ledger.Record{}
	for _, r := range records {
		if l := r.InterfaceIn(sp.Netns); l != nil {
			byIndex[l.Index] = r
		}
	}
	links, err := link.SomeLinks(sp.Netns, maxInterfaces, func(index int) bool { return byIndex[index] != nil })
	if err != nil {
		return nil, err
	}
	devices, err := sp.rdma()
	if err != nil {
		return nil, err
	}
	found := []fact.Interface{}
	for _, l := range links {
		if l.Encap == "loopback" || len(found) == maxInterfaces && byIndex[l.Index] == nil {
			continue
		}
		i, err := sp.podInterface(l, byIndex[l.Index], devices)
		if err != nil {
			gone := sp.orGone(err, l)
			// The pod's own links may appear, disappear and change their names at any time. This
			// must not affect the facts about the interfaces of attachments.
			if byIndex[l.Index] == nil && (errors.Is(gone, link.ErrNotFound) || errors.Is(gone, fs.ErrNotExist)) {
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
	now, readErr := link.ByIndex(sp.Netns, l.Index)
	switch {
	case errors.Is(readErr, link.ErrNotFound):
		return readErr
	case readErr == nil && now.Name != l.Name:
		return fmt.Errorf("%w %s: it is %s now", link.ErrNotFound, l.Name, now.Name)
	}
	return err
}

// podInterface returns the facts about an interface. r is nil if the interface does not belong to
// an attachment.
func (sp *space) podInterface(l *link.Link, r *ledger.Record, devices []rdma.Device) (i fact.Interface, err error) {
	i = fact.Interface{Name: l.Name, Up: l.IsUp(), Carrier: l.HasCarrier(), MTU: l.MTU}
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
		for _, key := range []string{"all", l.Name} {
			path, err := within("/proc/sys/net/ipv4/conf", []string{key, name})
			if err != nil {
				return 0, err
			}
			text, err := files.ReadText(path)
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

// Ports returns the ports of the RDMA devices that the pod sees. In shared mode a pod sees the
// devices of the whole node. Then the GIDs are read only for the pod's own devices.
func Ports(records []*ledger.Record) ([]fact.Port, error) {
	return inPod(records, func(sp *space) ([]fact.Port, error) {
		devices, err := sp.rdma()
		if err != nil {
			return nil, err
		}
		found := []fact.Port{}
		for _, d := range devices {
			holder := slices.IndexFunc(records, func(r *ledger.Record) bool { return recordHas(r, d) })
			mtu := 0
			if holder >= 0 {
				if l := records[holder].InterfaceIn(sp.Netns); l != nil {
					mtu = l.MTU
				}
			}
			for number := range d.Ports {
				port, err := sp.port(d, number+1, mtu, holder >= 0)
				if errors.Is(err, rdma.ErrNotFound) && holder < 0 {
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
