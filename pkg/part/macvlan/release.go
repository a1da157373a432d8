package macvlan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Release deletes the attachment's macvlan in the pod netns. If the pod moved
// the macvlan to another netns, where it may still answer, or if the kernel has
// not yet deleted it with a dead pod netns (cleanup_net), Release waits until
// it is gone. A macvlan that is not found was deleted in the pod.
func (Part) Release(ctx context.Context, releasing *attachment.Releasing) error {
	r, pod := releasing.Record, releasing.Pod
	if pod != nil && r.Netns.Cookie == 0 && pod.Path != r.Netns.Path && !hasMAC(pod, r) {
		return nil // another pod's: its netns has the inode number of ours
	}
	waiting, cancel := context.WithTimeout(ctx, releasing.Wait)
	defer cancel()
	search := search{Releasing: releasing}
	defer search.probe.Close()
	err := wait.Until(waiting, 10*time.Millisecond, func() (done bool, err error) {
		if pod != nil {
			deleted, err := deleteIn(ctx, releasing)
			if err != nil || deleted {
				return true, err
			}
		}
		hidden, err := search.hidden()
		if err != nil {
			err = fmt.Errorf("%w: %w", attachment.ErrNowhere, err) // not known, so the address stays
		}
		return !hidden, err
	})
	switch ended := wait.Ended(waiting, err); {
	case ended && pod == nil:
		return failure.From(attachment.ErrNowhere, failure.NotReturned, "the pod netns is gone, but its macvlan %s (%s on %s) is still up",
			r.IfName, r.MAC, r.Child.Master).
			Cure("end the processes of that pod if any are left; a sweep or `railctl gc` tries again")
	case ended:
		// The pod netns may have ended during the wait: see mayAnswer in pkg/attachment.
		return failure.From(attachment.ErrNowhere, failure.NotReturned, "the pod moved its macvlan %s (%s on %s) to another netns, where it is still up",
			r.IfName, r.MAC, r.Child.Master).
			Cure("end the processes in that netns, or the pod; a DEL, a sweep or `railctl gc` tries again")
	}
	return err
}

// deleteIn deletes the attachment's macvlans in the pod netns. It reports whether the
// one with the recorded MAC was among them: then there are no others.
func deleteIn(ctx context.Context, releasing *attachment.Releasing) (deleted bool, err error) {
	find := func() (found []*link.Link, sure bool, err error) {
		found, err = macvlansOf(releasing)
		return found, slices.ContainsFunc(found, func(l *link.Link) bool { return l.MAC.String() == releasing.Record.MAC }), err
	}
	found, sure, err := find()
	if err == nil && sure && releasing.Leaving(ctx) {
		found, sure, err = find()
	}
	if err != nil {
		return false, err
	}
	return sure, deleteAll(releasing.Pod, found, sure, releasing.Silent)
}

func hasMAC(pod *netns.Netns, r *ledger.Record) bool {
	links, err := link.Links(pod)
	return err == nil && slices.ContainsFunc(links, func(l *link.Link) bool { return l.MAC.String() == r.MAC })
}

// macvlansOf returns the attachment's macvlans in the pod netns: the one that it was
// given, by index, kind and master, and those that the pod made beside it with its
// MAC or its addresses (a macvlan on a macvlan lies on the same parent). The record of an
// ADD that was killed has no index: then the MAC decides, or else the name.
func macvlansOf(releasing *attachment.Releasing) ([]*link.Link, error) {
	n, r, pod := releasing.Node, releasing.Record, releasing.Pod
	links, err := link.Links(pod)
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(links, func(l *link.Link) bool { return !onParent(l, r.Child) })
	mine := func(l *link.Link) bool { return r.Child.PodIndex != 0 && l.Index == r.Child.PodIndex }
	if len(links) == 1 && mine(links[0]) {
		return links, nil // nearly always
	}
	others := n.OthersIn(pod, r)
	// Once for all: a pod may have tens of thousands of links and of addresses.
	answers := sync.OnceValue(func() map[int]bool { return answering(pod, r) })
	var found []*link.Link
	for _, l := range links {
		switch {
		case mine(l):
		case slices.ContainsFunc(others, func(o *ledger.Record) bool { return Is(l, o) }):
			continue
		case l.MAC.String() == r.MAC, l.Name == tempName(r), answers()[l.Index]:
		default:
			continue
		}
		found = append(found, l)
	}
	if len(found) == 0 && r.Child.PodIndex == 0 {
		for _, l := range links {
			if l.Name == r.IfName {
				found = append(found, l)
			}
		}
	}
	return found, nil
}

// onParent reports whether l is a macvlan on the parent of c.
func onParent(l *link.Link, c *ledger.Child) bool {
	lower := c.Lower
	if lower == nil {
		lower = &ledger.Lower{Index: c.MasterIndex, OutsidePod: !c.InPod}
	}
	return l.Kind == "macvlan" && (l.Damage != nil || l.Lower == lower.Index && l.LowerInOtherNetns == lower.OutsidePod)
}

// Is reports whether l is the macvlan of the attachment o.
func Is(l *link.Link, o *ledger.Record) bool {
	if o.Child == nil || o.Child.Kind != "" {
		return false
	}
	if o.Child.PodIndex != 0 {
		return l.Index == o.Child.PodIndex
	}
	return l.MAC.String() == o.MAC || l.Name == o.IfName
}

// answering returns the indexes of the links in the pod netns that have an
// address of the attachment, as far as that can be known.
func answering(pod *netns.Netns, r *ledger.Record) map[int]bool {
	var mine []net.IP
	for _, cidr := range r.Addresses {
		if ip, _, err := net.ParseCIDR(cidr); err == nil {
			mine = append(mine, ip)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	found, _ := link.LinksWith(pod, mine)
	return found
}

// search looks for a macvlan that is in none of the namespaces that can be searched.
type search struct {
	*attachment.Releasing
	probe  link.Probe
	probed time.Time // when the kernel was last asked
}

// probeEvery is the time between two probes: each makes and deletes a link.
const probeEvery = 200 * time.Millisecond

// hidden reports whether the macvlan may be up in a netns that cannot be searched: one with
// its MAC is up on its master, and no other attachment has that MAC. A macvlan that is
// down does not answer. One whose MAC the pod changed too is not found: such a pod can use
// any MAC and address in the master's network until it ends anyway. A pod that uses a dead
// pod's MAC keeps that pod's address from being freed.
//
// Without time to wait, as in the sweep of an ADD, the master's filter decides.
func (s *search) hidden() (bool, error) {
	n, r := s.Node, s.Record
	ns := s.Home
	if r.Child.InPod {
		ns = s.Pod
	}
	mac, err := net.ParseMAC(r.MAC)
	if err != nil || ns == nil {
		return false, nil //nolint:nilerr // not made yet, or its parent died with the pod netns
	}
	master, err := link.ByName(ns, r.Child.Master)
	if errors.Is(err, link.ErrNotFound) {
		return false, nil // its children died with it, or it is lent
	}
	if err != nil {
		return false, err
	}
	hears, err := link.Accepts(ns, master.Index, mac)
	if errors.Is(err, link.ErrNotFound) {
		return false, nil // it left just now
	}
	if err != nil || !hears || n.AnotherHas(r, func(o *ledger.Record) bool { return o.Child != nil && o.MAC == r.MAC }) {
		return false, err
	}
	if s.Wait == 0 || time.Since(s.probed) < probeEvery {
		return true, nil
	}
	s.probed = time.Now()
	return s.probe.MacvlanIsUp(ns, master.Index, mac)
}

// fewLinks is the largest number of a pod's links that are deleted one by one. An
// attachment has one macvlan; any others were made by the pod.
const fewLinks = 4

// deleteWait bounds the time for deleting more than that.
const deleteWait = 5 * time.Second

// deleteAll deletes these links of the pod. If sure, which means that there
// are no others, it calls silent once none of them answers for an address.
func deleteAll(pod *netns.Netns, links []*link.Link, sure bool, silent func()) error {
	if len(links) > fewLinks {
		var err error
		if links, err = link.DeleteTogether(pod, links, deleteWait); err != nil {
			return err
		}
	}
	for _, l := range links {
		sure = link.Silence(pod, l.Index) == nil && sure
	}
	if sure {
		silent()
	}
	var errs []error
	for _, l := range links {
		errs = append(errs, failure.Wrap(link.Delete(pod, l.Index), failure.Kernel, "delete macvlan %s", l.Name))
	}
	return errors.Join(errs...)
}
