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

// HopLink is a link of the host by which nexthops leave. The kernel identifies the link only by its
// index. Once the link is in a pod, the index may belong to another link.
type HopLink struct {
	Index    int           `json:"index"` // the link's index in the messages of the snapshot
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

// Is reports whether h is the link with the identity id, which had this name on the host.
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

// is reports whether l is the link h.
func (h HopLink) is(l *link.Link) bool { return h.Identity.Score(l, []string{h.Name}) > 0 }

// addHopLinks adds the links by which the nexthops of the routes leave.
func (s *Snapshot) addHopLinks(v *link.View) {
	for _, r := range s.Routes {
		_, attrs, _ := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		hops, _ := attrs.Get(unix.RTA_MULTIPATH)
		routes.EachHop(hops, func(hop []byte) { s.addHopLink(v, routes.LinkOf(hop)) })
	}
}

// addHopLink adds the link of v with this index. Before the first other link it also adds the
// snapshot's own link.
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

// MissingHops is the error for a route or group that was restored without some of its nexthops,
// because the links of those nexthops are missing from the namespace, or down. With such a nexthop
// the kernel would refuse all nexthops together.
type MissingHops struct{ Links []HopLink }

func (e *MissingHops) Error() string {
	names := make([]string, len(e.Links))
	for i, l := range e.Links {
		names[i] = l.String()
	}
	return fmt.Sprintf("restored without the nexthops by links that are missing or down (%s)", strings.Join(names, ", "))
}

func (e *MissingHops) add(l HopLink) {
	if !slices.Contains(e.Links, l) {
		e.Links = append(e.Links, l)
	}
}

// or returns e as an error, or nil if no nexthop is missing.
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
	index int // the index that the snapshot's own link has now, 0 if the link is not here
	known map[int]int
}

func newHopFinder(n *netns.Netns, s *Snapshot, index int) *hopFinder {
	return &hopFinder{n: n, s: s, index: index, known: map[int]int{}}
}

// indexOf returns the index that the link with the index recorded in the snapshot has now. It
// returns 0 if that link is down, or is not in the namespace.
func (f *hopFinder) indexOf(recorded int) (index int) {
	if recorded == f.s.Index {
		return f.index
	}
	if index, ok := f.known[recorded]; ok {
		return index
	}
	defer func() { f.known[recorded] = index }()
	known := f.link(recorded)
	l, err := link.ByIndex(f.n, recorded)
	if known.Identity == (link.Identity{}) {
		if err == nil && l.IsUp() && recorded != f.index { // otherwise the index now belongs to the snapshot's own link
			return recorded
		}
		return 0
	}
	if err != nil || !known.is(l) { // the link returned with another index
		if l, err = link.ByName(f.n, known.Name); err != nil || !known.is(l) {
			return 0
		}
	}
	if !l.IsUp() {
		return 0
	}
	return l.Index
}

// link returns the link that has the index recorded in the snapshot.
func (f *hopFinder) link(recorded int) HopLink {
	i := slices.IndexFunc(f.s.HopLinks, func(h HopLink) bool { return h.Index == recorded })
	if i < 0 {
		return HopLink{Index: recorded}
	}
	return f.s.HopLinks[i]
}

// hops returns the snapshot's nexthops whose links are here, with the indexes that these links have
// now. It adds the links of the other nexthops to missing.
func (f *hopFinder) hops(hops []byte, missing *MissingHops) []byte {
	return routes.FilterHops(hops, func(hop []byte) bool {
		hop[2] &= unix.RTNH_F_ONLINK // the other flags are state, and the kernel refuses them
		index := f.indexOf(routes.LinkOf(hop))
		if index == 0 {
			missing.add(f.link(routes.LinkOf(hop)))
			return false
		}
		binary.NativeEndian.PutUint32(hop[4:], uint32(index))
		return true
	})
}

// gained returns the nexthops by other links that the host added to the route while the link was
// lent. hops are the nexthops that the route will have anyway.
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

// KeepOtherHops adds the IPv4 routes of a link that has left again, with only the nexthops by other
// links. When one of the links leaves, the kernel removes such a route as a whole
// (fib_sync_down_dev). The kernel itself keeps the rest of an IPv6 route, and of a route by a
// nexthop object. A routing daemon adds its own routes again.
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

// JoinHops takes over the shared IPv4 routes and the shared groups of nexthop objects from before,
// the snapshot of a link that left earlier. Since that link left, s has only its own nexthops of
// such a route or group. With JoinHops the last link that returns brings back all nexthops. If the
// other link is just leaving, s may lack such a route for a moment, and gets the route from before:
// see [KeepOtherHops].
func (s *Snapshot) JoinHops(before *Snapshot, leaving bool) {
	positions := map[string]int{} // the index in s.Routes of the first route with the key, plus one
	for i, r := range s.Routes {
		if key, _ := multipath(r); positions[key] == 0 {
			positions[key] = i + 1
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
		if i := positions[key] - 1; i >= 0 {
			if _, now := multipath(s.Routes[i]); len(now) < len(hops) {
				s.Routes[i] = withMultipath(r, hops)
			}
		} else if leaving {
			s.Routes = append(s.Routes, withMultipath(r, hops))
			positions[key] = len(s.Routes)
		}
	}
	s.joinGroups(before, indexes)
}

// joinIndexes adds the links of before to the links of s. The result maps the index that a link has
// in before to the index that the link has in s, if these indexes differ. They differ if a link
// that was lent in between returned with another index. Its old index may now belong to another
// link.
func (s *Snapshot) joinIndexes(before *Snapshot) map[int]int {
	indexes, used := map[int]int{}, map[int]bool{s.Index: true}
	for _, h := range s.HopLinks {
		used[h.Index] = true
	}
	const unused = 1 << 30 // no link has this index or a higher one
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

// withIndexes returns a copy of the nexthops in which the indexes of the links are replaced by
// indexes.
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
	header, attrs, _ := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg) // no error, because multipath has parsed the message
	attrs = append(attrs.Without(unix.RTA_MULTIPATH), nlattr.Attr{Type: unix.RTA_MULTIPATH, Value: hops})
	return Replay{Text: r.Text, Raw: nlattr.Marshal(slices.Clone(header), attrs)}
}

// multipath returns the kernel's key of an IPv4 route and the route's nexthops, if it has several.
// The key is "" for any other route.
func multipath(r Replay) (key string, hops []byte) {
	header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
	if err != nil || header[0] != unix.AF_INET {
		return "", nil
	}
	hops, _ = attrs.Get(unix.RTA_MULTIPATH)
	return routes.Key(header, attrs), hops
}
