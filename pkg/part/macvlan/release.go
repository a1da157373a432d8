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

// Release deletes the attachment's macvlan in the pod netns. In two cases Release can only wait
// until the macvlan is gone: if the pod moved the macvlan to another netns, where the macvlan may
// still answer, and if the pod netns is gone but the kernel has not yet deleted its macvlan
// (cleanup_net). If no macvlan is found, it was deleted in the pod.
func (Part) Release(ctx context.Context, releasing *attachment.Releasing) error {
	r, pod := releasing.Record, releasing.Pod
	if pod != nil && r.Netns.Cookie == 0 && pod.Path != r.Netns.Path && !hasMAC(pod, r) {
		return nil // this is the netns of another pod, with the same inode number
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
			err = fmt.Errorf("%w: %w", attachment.ErrNowhere, err) // not known whether the macvlan is gone, so the address stays
		}
		return !hidden, err
	})
	switch ended := wait.Ended(waiting, err); {
	case ended && pod == nil:
		return failure.From(attachment.ErrNowhere, failure.NotReturned, "the pod netns is gone, but its macvlan %s (%s on %s) is still up",
			r.IfName, r.MAC, r.Child.Master).
			Cure("end the processes of that pod that are left; a sweep or `railctl gc` tries again")
	case ended:
		// The pod netns may have ended during the wait: see mayAnswer in pkg/attachment.
		return failure.From(attachment.ErrNowhere, failure.NotReturned, "the pod moved its macvlan %s (%s on %s) to another netns, where it is still up",
			r.IfName, r.MAC, r.Child.Master).
			Cure("end the processes in that netns, or end the pod; a DEL, a sweep or `railctl gc` tries again")
	}
	return err
}

// deleteIn deletes the attachment's macvlans in the pod netns. deleted reports whether the macvlan
// with the recorded MAC was among them. If it was, no macvlan of the attachment is anywhere else.
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

// macvlansOf returns the attachment's macvlans in the pod netns. They are the macvlan that ADD
// made, which is found by its index, kind and master, and the macvlans that the pod made in
// addition, with the same MAC or addresses (a macvlan on a macvlan lies on the same parent). If an
// ADD was killed, its record may have no index. Then the macvlan is found by its MAC, or by its
// name if no MAC matches.
func macvlansOf(releasing *attachment.Releasing) ([]*link.Link, error) {
	n, r, pod := releasing.Node, releasing.Record, releasing.Pod
	links, err := link.Links(pod)
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(links, func(l *link.Link) bool { return !onParent(l, r.Child) })
	isChild := func(l *link.Link) bool { return r.Child.PodIndex != 0 && l.Index == r.Child.PodIndex }
	if len(links) == 1 && isChild(links[0]) {
		return links, nil // nearly always
	}
	others := n.OthersIn(pod, r)
	// This is done only once for all links, because a pod may have tens of thousands of links and
	// addresses.
	answers := sync.OnceValue(func() map[int]bool { return answering(pod, r) })
	var found []*link.Link
	for _, l := range links {
		switch {
		case isChild(l):
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

// answering returns the indexes of the links in the pod netns that have an address of the
// attachment. Links whose addresses cannot be read are left out.
func answering(pod *netns.Netns, r *ledger.Record) map[int]bool {
	var ips []net.IP
	for _, cidr := range r.Addresses {
		if ip, _, err := net.ParseCIDR(cidr); err == nil {
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 {
		return nil
	}
	found, _ := link.LinksWith(pod, ips)
	return found
}

// search looks for a macvlan that is in none of the namespaces that can be searched.
type search struct {
	*attachment.Releasing
	probe  link.Probe
	probed time.Time // the time of the last probe
}

// probeEvery is the shortest time between two probes, because each probe makes and deletes a link.
const probeEvery = 200 * time.Millisecond

// hidden reports whether the macvlan may be up in a netns that cannot be searched. That is so if a
// macvlan with the recorded MAC is up on the same master, and no other attachment has this MAC. A
// macvlan that is down does not count, because it does not answer. If the pod changed the MAC of
// its macvlan, hidden does not find it, but such a pod can use any MAC and address in the master's
// network until it ends anyway. If a pod uses the MAC of a dead pod, the address of the dead pod
// cannot be freed.
//
// If there is no time to wait, as in the sweep of an ADD, hidden makes no probe: then it only looks
// whether the filter of the master accepts the MAC.
func (s *search) hidden() (bool, error) {
	n, r := s.Node, s.Record
	ns := s.Home
	if r.Child.InPod {
		ns = s.Pod
	}
	mac, err := net.ParseMAC(r.MAC)
	if err != nil || ns == nil {
		return false, nil //nolint:nilerr // the macvlan was not made yet, or its parent ended with the pod netns
	}
	master, err := link.ByName(ns, r.Child.Master)
	if errors.Is(err, link.ErrNotFound) {
		return false, nil // the master is gone, and so are its children; or the master is lent
	}
	if err != nil {
		return false, err
	}
	hears, err := link.Accepts(ns, master.Index, mac)
	if errors.Is(err, link.ErrNotFound) {
		return false, nil // the master has just left
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

// fewLinks is the largest number of a pod's links that are deleted one by one. An attachment has
// one macvlan. If there are more, the pod made them.
const fewLinks = 4

// deleteWait bounds the time for deleting more than fewLinks links.
const deleteWait = 5 * time.Second

// deleteAll deletes these links of the pod. If sure is true, which means that there are no other
// links of the attachment, it calls silent as soon as none of the links answers for an address.
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
