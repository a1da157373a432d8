package reconcile

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// narrow removes the holdings and loose reservations of pods that are not in refs. If refs
// is nil, it keeps those of all pods. It also removes holdings and reservations whose
// holders cannot be pods.
func narrow(s *api.Survey, refs map[string]bool) {
	drop := func(ref string) bool {
		_, _, ok := splitRef(ref)
		return !ok || refs != nil && !refs[ref]
	}
	s.Holdings = slices.DeleteFunc(s.Holdings, func(h api.Holding) bool { return drop(h.PodRef) })
	s.Loose = slices.DeleteFunc(s.Loose, func(l *api.Reservation) bool { return drop(l.Spec.PodRef) })
}

// judge returns the defects in s as findings. live has the pods that exist.
func judge(s *api.Survey, live map[string]*podState, grace time.Duration) []*Finding {
	type iface struct{ ref, name string }
	holds := map[iface][]*api.Holding{}
	for i := range s.Holdings {
		h := &s.Holdings[i]
		holds[iface{h.PodRef, h.IfName}] = append(holds[iface{h.PodRef, h.IfName}], h)
	}
	var found []*Finding
	for i := range s.Holdings {
		h := &s.Holdings[i]
		f := &Finding{Pool: h.Pool.Name, Address: h.Addr, PodRef: h.PodRef, IfName: h.IfName, ContainerID: h.ContainerID, holding: h}
		if h.Reservation != nil {
			f.Reservation = h.Reservation.Metadata.Name
		}
		for _, other := range holds[iface{h.PodRef, h.IfName}] {
			if other.ContainerID != h.ContainerID {
				f.rivals = append(f.rivals, other.Addr)
			}
		}
		if f.judgeEntry(live[h.PodRef]) {
			found = append(found, f)
		}
	}
	for _, l := range s.Loose {
		f := &Finding{Reservation: l.Metadata.Name, PodRef: l.Spec.PodRef, IfName: l.Spec.IfName, ContainerID: l.Spec.ContainerID, loose: l}
		f.judgeLoose(live[l.Spec.PodRef], s.Claimed[l.Metadata.Name], grace)
		found = append(found, f)
	}
	return found
}

// judgeEntry reports whether f's entry is defective, and sets the kind of the finding and
// the reason.
func (f *Finding) judgeEntry(p *podState) bool {
	h := f.holding
	switch {
	case p == nil:
		f.Kind, f.Why = StaleEntry, "its pod is gone"
	case p.terminal != "":
		f.Kind, f.Why = StaleEntry, "its pod has ended: "+p.terminal
	case f.former(p):
		f.Kind, f.Why = StaleEntry, "its pod has another address by now"
	case h.Foreign != nil:
		f.Kind, f.Why = ForeignReservation, h.Foreign.Spec.PodRef+" has the reservation of this address"
		f.Reservation, f.Outcome = h.Foreign.Metadata.Name, Kept
	case h.Missing != "":
		f.Kind, f.Why = MissingReservation, "the entry has no reservation, although other entries of its pool have one"
		f.Reservation = h.Missing
	default:
		return false
	}
	return true
}

// former reports whether f's entry is of a former sandbox of the pod. That is so if the
// pod's status has other addresses for the interface of the entry, and the pod holds one of
// these addresses by an entry of another container. former returns false for an entry
// without an interface name.
func (f *Finding) former(p *podState) bool {
	given := p.status[f.IfName]
	return f.IfName != "" && len(given) > 0 && !slices.Contains(given, f.Address) &&
		slices.ContainsFunc(f.rivals, func(a netip.Addr) bool { return slices.Contains(given, a) })
}

// judgeLoose judges a reservation without an entry.
func (f *Finding) judgeLoose(p *podState, claimed bool, grace time.Duration) {
	f.Kind = StaleReservation
	switch {
	case p == nil:
		f.Why = "no pool has the reserved address for this pod, which is gone"
	case p.terminal != "":
		f.Why = "no pool has the reserved address for this pod, which has ended: " + p.terminal
	case !claimed && f.unused(p) && time.Since(f.loose.Metadata.CreationTimestamp) >= grace:
		f.Why = "no pool has the reserved address, and the pod's status does not name that address"
	default:
		f.Kind, f.Outcome = LooseReservation, Kept
		f.Why = "no pool has the reserved address for this pod, which exists"
	}
}

// unused reports whether p has a network-status of Multus that does not name the address of
// f's reservation.
func (f *Finding) unused(p *podState) bool {
	return p.status != nil && !slices.ContainsFunc(readings(f.Reservation), func(a netip.Addr) bool { return p.names("", a) })
}

// readings returns the addresses that a reservation's name may stand for, in any address
// space. There may be several, because a dash in the name has several meanings.
func readings(name string) []netip.Addr {
	var all []netip.Addr
	for {
		if a, ok := api.ReservedAddr("", name); ok {
			all = append(all, a)
		}
		_, rest, more := strings.Cut(name, "-")
		if !more {
			return all
		}
		name = rest
	}
}

// confirmed reports whether f is still true. p is the pod as it was read just now, or nil
// if the pod does not exist.
func (f *Finding) confirmed(p *podState) bool {
	switch {
	case f.Kind == MissingReservation:
		return p != nil && p.terminal == ""
	case p == nil:
		return true
	case p.terminal != "":
		return !f.mark.byWatch // the watch reported another pod of this name
	case p.uid != f.mark.uid || !p.settled:
		return false
	case f.loose != nil:
		return f.unused(p)
	}
	return f.former(p)
}

// entryAt returns o's entry in p at the reservation's address, and whether
// there is one.
func entryAt(p *api.PoolState, reservation string, o ipam.Owner) (api.Entry, bool) {
	for _, addr := range readings(reservation) {
		key, err := p.Key(addr)
		if err != nil || !p.Prefix.Contains(addr) {
			continue
		}
		if e, ok := p.Entries[key]; ok && e.PodRef == o.PodRef && e.IfName == o.IfName {
			return e, true
		}
	}
	return api.Entry{}, false
}
