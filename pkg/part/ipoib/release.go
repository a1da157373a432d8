package ipoib

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Release deletes the attachment's child, which it recognizes by the child's permanent address. The
// child may be in the pod netns, on the host, where it was made, or in init_net, where the kernel
// moves it when the pod netns ends (default_device_exit_net). If the pod moved the child to another
// netns, Release waits until the child is gone.
func (Part) Release(ctx context.Context, releasing *attachment.Releasing) error {
	r := releasing.Record
	mac, err := net.ParseMAC(r.Child.PermMAC)
	if err != nil {
		mac = nil // the ADD was killed before it had noted the address
	}
	if mac != nil && releasing.Node.AnotherHas(r, func(o *ledger.Record) bool {
		return o.Child != nil && o.Child.PermMAC == r.Child.PermMAC && o.Child.Made.After(r.Child.Made)
	}) {
		return nil // the child is gone, and the kernel has reused its queue pair for another attachment
	}
	s := search{Releasing: releasing, mac: mac, began: time.Now()}
	if first, err := netns.Open(netns.InitPath); err == nil { // a container may not be permitted to open it
		defer first.Close()
		if !first.ID.Equal(releasing.Home.ID) {
			s.first = first
		}
	}
	waiting, cancel := context.WithTimeout(ctx, releasing.Wait)
	defer cancel()
	err = wait.Until(waiting, 10*time.Millisecond, func() (bool, error) { return s.step(ctx) })
	if wait.Ended(waiting, err) {
		return failure.From(attachment.ErrNowhere, failure.NotReturned, "the IPoIB child %s of %s (%s) is in a netns that cannot be found",
			r.IfName, r.Child.Master, r.Child.PermMAC).
			Cure("end the processes in that netns, or end the pod; a DEL, a sweep or `railctl gc` tries again")
	}
	if err == nil {
		releasing.Silent()
	}
	return err
}

// unlistedWait is how long a search looks for a child if the driver does not list queue pairs. The
// child may still be in the netns of a process that has just ended, as long as the kernel has not
// deleted that netns. A release with a shorter wait returns an error, and DEL, a sweep or
// rail-agent tries again.
const unlistedWait = time.Second

// search looks for the child of a record.
type search struct {
	*attachment.Releasing
	mac   net.HardwareAddr // the child's permanent address, nil if that is not known
	first *netns.Netns     // init_net, nil if it is Home, or cannot be opened
	began time.Time

	left    bool // the IPAM plugin was asked to free the addresses
	deleted bool // a child was deleted
}

// step looks for the child and deletes it. gone reports whether the child was not found anywhere.
// The pod may move the child during a search, so the release goes on until a search finds nothing.
func (s *search) step(ctx context.Context) (gone bool, err error) {
	for _, in := range []struct {
		ns      *netns.Netns
		isChild func(*link.Link) bool
	}{{s.Pod, s.isChild}, {s.Home, s.isOnHost}, {s.first, s.isOnHost}} {
		if in.ns == nil {
			continue
		}
		links, err := link.Links(in.ns)
		if err != nil {
			return true, fmt.Errorf("%w: %w", attachment.ErrNowhere, err) // where the child is, is not known, so the addresses stay
		}
		i := slices.IndexFunc(links, in.isChild)
		if i < 0 {
			continue
		}
		if !s.left && s.Leaving(ctx) {
			s.left = true
			return false, nil // search again, because that took time
		}
		s.deleted = link.SetDown(in.ns, links[i].Index) == nil // Delete does not report a link that the pod has moved
		return false, failure.Wrap(link.Delete(in.ns, links[i].Index), failure.Kernel, "delete the IPoIB child %s", links[i].Name)
	}
	hidden, listed, err := s.hidden()
	switch {
	case err != nil:
		return true, fmt.Errorf("%w: %w", attachment.ErrNowhere, err)
	case !listed:
		return s.deleted || time.Since(s.began) >= unlistedWait, nil
	}
	return !hidden, nil
}

// isChild reports whether l is the attachment's child.
func (s *search) isChild(l *link.Link) bool {
	return l.IsIPoIBChild() && s.mac != nil && bytes.Equal(l.PermMAC, s.mac) && l.IPoIB != nil && l.IPoIB.PKey == s.Record.Child.PKey
}

// isOnHost reports whether l, which is in a netns of the host, is the attachment's child. If an ADD
// was killed while the child had its first name, the record has no address, and the name shows that
// l is the child. If the pod deleted its child, the host may have a child of its own with the same
// queue pair. That child must not be deleted. So a child that is up does not count, because the
// kernel sets down a child that it moves back.
func (s *search) isOnHost(l *link.Link) bool {
	first := tempName(s.Record)
	switch {
	case !l.IsIPoIBChild():
		return false
	case l.Name == first:
		return true
	case !s.isChild(l) || l.IsUp() && l.Name != s.Record.IfName:
		return false
	}
	return !s.Node.AnotherHas(s.Record, func(o *ledger.Record) bool { return o.Child != nil && tempName(o) == l.Name }) // l may be the child of an ADD that is running
}

// hidden reports whether the child is in a netns that cannot be searched. In that case the queue
// pair of the child still exists. listed is false if the driver does not list the queue pairs of
// IPoIB interfaces.
func (s *search) hidden() (hidden, listed bool, err error) {
	if s.mac == nil {
		return false, true, nil // the child was not made
	}
	core, err := rdma.Open(s.Home)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return false, true, nil // the driver was unloaded, and the child ended with it
	}
	if err != nil {
		return false, false, err
	}
	defer core.Close()
	devices, err := core.ByParent(s.Record.Child.ParentDev)
	if err != nil || len(devices) == 0 {
		return false, true, err // when an RDMA device ends or moves, its children end
	}
	links, err := link.Links(s.Home)
	if err != nil {
		return false, false, err
	}
	child := (&link.Link{MAC: s.mac}).QueuePair()
	for _, d := range devices {
		pairs, err := core.IPoIBQueuePairs(d)
		if err != nil {
			return false, false, err
		}
		for _, l := range links {
			if slices.Contains(pairs, l.QueuePair()) && l.Kind == link.KindIPoIB {
				listed = true
				pairs = slices.DeleteFunc(pairs, func(qp uint32) bool { return qp == l.QueuePair() }) // l is an interface on the host
			}
		}
		hidden = hidden || slices.Contains(pairs, child)
	}
	return hidden, listed || hidden, nil
}

// TakeOver deletes a child that ipoib-cni made, or a child of ours whose record is lost.
func (Part) TakeOver(_ context.Context, u *attachment.Upstream) error {
	if u.Pod == nil {
		return nil // the child cannot be told from other children
	}
	l, err := link.ByName(u.Pod, u.IfName)
	if errors.Is(err, link.ErrNotFound) || err == nil && !l.IsIPoIBChild() {
		return nil // another interface may have the name
	}
	if err != nil {
		return err
	}
	return failure.Wrap(link.Delete(u.Pod, l.Index), failure.Kernel, "delete the IPoIB child %s", l.Name)
}
