package nicstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// HopLink is a link of the host that nexthops leave by. The kernel knows it by its index only,
// which may be another link's once this one is in a pod.
type HopLink struct {
	Index    int           `json:"index"` // in the messages of the snapshot
	Name     string        `json:"name"`
	Identity link.Identity `json:"identity"`
}

func hopLink(l *link.Link) HopLink {
	return HopLink{Index: l.Index, Name: l.Name, Identity: l.Identity()}
}

// String returns the link's name, or its index if it was gone when the snapshot was taken.
func (h HopLink) String() string {
	if h.Name == "" {
		return fmt.Sprintf("index %d", h.Index)
	}
	return h.Name
}

// Is reports whether h is the link of id, which had this name on the host.
func (h HopLink) Is(id link.Identity, name string) bool {
	if h.Identity == (link.Identity{}) { // it was gone when the snapshot was taken
		return h.Index == id.Index
	}
	other := &link.Link{
		Index: id.Index, Name: name, Kind: id.Kind, ParentDev: id.ParentDev, ParentBus: id.ParentBus,
		PermMAC: link.ParseMAC(id.PermMAC), MAC: link.ParseMAC(id.MAC),
	}
	return h.is(other)
}

// is reports whether l is the link.
func (h HopLink) is(l *link.Link) bool { return h.Identity.Score(l, []string{h.Name}) > 0 }

// addHopLinks adds the links that the nexthops of the routes leave by.
func (s *Snapshot) addHopLinks(v *link.View) {
	for _, r := range s.Routes {
		_, attrs, _ := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		hops, _ := attrs.Get(unix.RTA_MULTIPATH)
		routes.EachHop(hops, func(hop []byte) { s.addHopLink(v, routes.LinkOf(hop)) })
	}
}

// addHopLink adds the link of v with this index, unless it is the snapshot's own and the only one.
func (s *Snapshot) addHopLink(v *link.View, index int) {
	l := v.ByIndex(index)
	if l == nil || index == s.Index || slices.ContainsFunc(s.HopLinks, func(h HopLink) bool { return h.Index == index }) {
		return
	}
	if len(s.HopLinks) == 0 {
		s.HopLinks = append(s.HopLinks, hopLink(v.Link))
	}
	s.HopLinks = append(s.HopLinks, hopLink(l))
}

// MissingHops is the error for a route or group that was restored without the nexthops by links
// that are not in the namespace, or down: the kernel refuses all nexthops together.
type MissingHops struct{ Links []HopLink }

func (e *MissingHops) Error() string {
	names := make([]string, len(e.Links))
	for i, l := range e.Links {
		names[i] = l.String()
	}
	return fmt.Sprintf("restored without its nexthops by links that are not here, or down (%s)", strings.Join(names, ", "))
}

func (e *MissingHops) add(l HopLink) {
	if !slices.Contains(e.Links, l) {
		e.Links = append(e.Links, l)
	}
}

// or returns e as an error, nil if no nexthop is missing.
func (e *MissingHops) or() error {
	if len(e.Links) == 0 {
		return nil
	}
	return e
}

// hopFinder finds the links of a snapshot's nexthops in a namespace.
type hopFinder struct {
	n     *netns.Netns
	s     *Snapshot
	index int // that the snapshot's own link has now, 0 if it is not here
	known map[int]int
}

func newHopFinder(n *netns.Netns, s *Snapshot, index int) *hopFinder {
	return &hopFinder{n: n, s: s, index: index, known: map[int]int{}}
}

// here returns the index that the link with this index in the snapshot has now, 0 if it is not
// here, or down.
func (f *hopFinder) here(recorded int) (index int) {
	if recorded == f.s.Index {
		return f.index
	}
	if index, ok := f.known[recorded]; ok {
		return index
	}
	defer func() { f.known[recorded] = index }()
	known := f.link(recorded)
	by, err := link.ByIndex(f.n, recorded)
	if known.Identity == (link.Identity{}) {
		if err == nil && by.IsUp() && recorded != f.index { // otherwise the index is the snapshot's own link's by now
			return recorded
		}
		return 0
	}
	if err != nil || !known.is(by) { // it returned with another index
		if by, err = link.ByName(f.n, known.Name); err != nil || !known.is(by) {
			return 0
		}
	}
	if !by.IsUp() {
		return 0
	}
	return by.Index
}

// link returns the link that has this index in the snapshot.
func (f *hopFinder) link(recorded int) HopLink {
	i := slices.IndexFunc(f.s.HopLinks, func(h HopLink) bool { return h.Index == recorded })
	if i < 0 {
		return HopLink{Index: recorded}
	}
	return f.s.HopLinks[i]
}

// hops returns those of a snapshot's nexthops whose links are here, with the indexes that the
// links have now. It adds the links of the others to missing.
func (f *hopFinder) hops(hops []byte, missing *MissingHops) []byte {
	return routes.FilterHops(hops, func(hop []byte) bool {
		hop[2] &= unix.RTNH_F_ONLINK // the others are state, and the kernel refuses them
		index := f.here(routes.LinkOf(hop))
		if index == 0 {
			missing.add(f.link(routes.LinkOf(hop)))
			return false
		}
		binary.NativeEndian.PutUint32(hop[4:], uint32(index))
		return true
	})
}

// gained returns the nexthops by other links that the host has added to the route while the
// link was lent. hops are those that the route is going to have.
func gained(current, hops []byte, index int) []byte {
	same := func(a, b []byte) bool {
		return routes.LinkOf(a) == routes.LinkOf(b) && routes.HopKey(a) == routes.HopKey(b)
	}
	return routes.FilterHops(current, func(hop []byte) bool {
		hop[2] &= unix.RTNH_F_ONLINK
		isNew := routes.LinkOf(hop) != index
		routes.EachHop(hops, func(other []byte) { isNew = isNew && !same(hop, other) })
		return isNew
	})
}

// KeepOtherHops adds the IPv4 routes of a link that has left with their other nexthops. With
// one of the links the kernel removes such a route as a whole (fib_sync_down_dev); of an IPv6
// route, and of one by a nexthop object, it keeps the rest itself. A routing daemon adds its
// own again.
func KeepOtherHops(n *netns.Netns, s *Snapshot) error {
	var errs []error
	f := newHopFinder(n, s, 0)
	for _, r := range s.configured().Routes {
		header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofRtMsg)
		i := slices.IndexFunc(attrs, func(a nlattr.Attr) bool { return a.Type == unix.RTA_MULTIPATH })
		if err != nil || i < 0 || header[0] != unix.AF_INET {
			continue
		}
		others := f.hops(attrs[i].Value, &MissingHops{})
		if len(others) == 0 {
			continue
		}
		attrs[i].Value = others
		binary.NativeEndian.PutUint32(header[8:], 0)
		err = n.Request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header, attrs.Without(unix.RTA_CACHEINFO, routes.AttrNexthop))
		if !errors.Is(err, unix.EEXIST) {
			errs = append(errs, failure.Context(err, "route %s without %s", r.Text, s.Name))
		}
	}
	return errors.Join(errs...)
}

// JoinHops takes over from the snapshot of a link that left before the IPv4 routes, and the
// groups of nexthop objects, that both links had in common: since then s has only its own
// nexthops of them. So the last link that returns brings all nexthops. If the other link is just
// leaving, s may lack such a route for a moment, and gets it: see [KeepOtherHops].
func (s *Snapshot) JoinHops(before *Snapshot, leaving bool) {
	own := map[string]int{} // the index in s.Routes of the first with the key, plus one
	for i, r := range s.Routes {
		if key, _ := multipath(r); own[key] == 0 {
			own[key] = i + 1
		}
	}
	indexes := s.joinIndexes(before)
	for _, r := range before.Routes {
		key, hops := multipath(r)
		if hops == nil {
			continue
		}
		hops = withIndexes(hops, indexes)
		if len(routes.OwnHops(hops, s.Index)) == 0 {
			continue
		}
		if i := own[key] - 1; i >= 0 {
			if _, now := multipath(s.Routes[i]); len(now) < len(hops) {
				s.Routes[i] = withMultipath(r, hops)
			}
		} else if leaving {
			s.Routes = append(s.Routes, withMultipath(r, hops))
			own[key] = len(s.Routes)
		}
	}
	s.joinGroups(before, indexes)
}

// joinIndexes adds the links of before to those of s, and returns by the index that a link has in
// before the one that it has in s, where they differ: a link that was lent in between may have
// returned with another index, and its former one may be another link's.
func (s *Snapshot) joinIndexes(before *Snapshot) map[int]int {
	indexes, used := map[int]int{}, map[int]bool{s.Index: true}
	for _, h := range s.HopLinks {
		used[h.Index] = true
	}
	const unused = 1 << 30 // and above: no link has such an index
	next := unused
	for _, h := range before.HopLinks {
		was := h.Index
		if h.Is(s.self, s.Name) {
			h.Index = s.Index
		} else if i := slices.IndexFunc(s.HopLinks, func(o HopLink) bool { return h.Is(o.Identity, o.Name) }); i >= 0 {
			h.Index = s.HopLinks[i].Index
		} else {
			for ; used[h.Index]; next++ {
				h.Index = next
			}
			used[h.Index] = true
			s.HopLinks = append(s.HopLinks, h)
		}
		if h.Index != was {
			indexes[was] = h.Index
		}
	}
	return indexes
}

// withIndexes returns a copy of the nexthops with other indexes of their links.
func withIndexes(hops []byte, indexes map[int]int) []byte {
	return routes.FilterHops(hops, func(hop []byte) bool {
		if index, ok := indexes[routes.LinkOf(hop)]; ok {
			binary.NativeEndian.PutUint32(hop[4:], uint32(index))
		}
		return true
	})
}

// withMultipath returns a route with these nexthops.
func withMultipath(r Replay, hops []byte) Replay {
	header, attrs, _ := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg) // multipath has read it
	attrs = append(attrs.Without(unix.RTA_MULTIPATH), nlattr.Attr{Type: unix.RTA_MULTIPATH, Value: hops})
	return Replay{Text: r.Text, Raw: nlattr.Marshal(slices.Clone(header), attrs)}
}

// multipath returns the kernel's key of an IPv4 route, "" for another one, and its nexthops, if
// it has several.
func multipath(r Replay) (key string, hops []byte) {
	header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
	if err != nil || header[0] != unix.AF_INET {
		return "", nil
	}
	hops, _ = attrs.Get(unix.RTA_MULTIPATH)
	return routes.Key(header, attrs), hops
}
