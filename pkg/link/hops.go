package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// HopLink is a link of the host that nexthops leave by. The kernel knows it by its index only,
// which may be another link's once this one is in a pod.
type HopLink struct {
	Index    int      `json:"index"` // in the messages of the snapshot
	Name     string   `json:"name"`
	Identity Identity `json:"identity"`
}

func (l *Link) hopLink() HopLink {
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
func (h HopLink) Is(id Identity, name string) bool {
	if h.Identity == (Identity{}) { // it was gone when the snapshot was taken
		return h.Index == id.Index
	}
	other := &Link{
		Index: id.Index, Name: name, Kind: id.Kind, ParentDev: id.ParentDev, ParentBus: id.ParentBus,
		PermMAC: parseMAC(id.PermMAC), MAC: parseMAC(id.MAC),
	}
	return h.is(other)
}

// is reports whether l is the link.
func (h HopLink) is(l *Link) bool { return h.Identity.score(l, []string{h.Name}) > 0 }

// addHopLinks adds the links that the nexthops of the routes leave by.
func (s *Snapshot) addHopLinks(v *View) {
	for _, r := range s.Routes {
		_, attrs, _ := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		hops, _ := attrs.Get(unix.RTA_MULTIPATH)
		eachHop(hops, func(hop []byte) { s.addHopLink(v, linkOf(hop)) })
	}
}

// addHopLink adds the link of v with this index, unless it is the snapshot's own and the only one.
func (s *Snapshot) addHopLink(v *View, index int) {
	l := v.ByIndex(index)
	if l == nil || index == s.Index || slices.ContainsFunc(s.HopLinks, func(h HopLink) bool { return h.Index == index }) {
		return
	}
	if len(s.HopLinks) == 0 {
		s.HopLinks = append(s.HopLinks, v.Link.hopLink())
	}
	s.HopLinks = append(s.HopLinks, l.hopLink())
}

// linkOf returns the index of the link that a nexthop leaves by.
func linkOf(hop []byte) int { return int(binary.NativeEndian.Uint32(hop[4:])) }

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
	n     *Netns
	s     *Snapshot
	index int // that the snapshot's own link has now, 0 if it is not here
	known map[int]int
}

func (n *Netns) hopFinder(s *Snapshot, index int) *hopFinder {
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
	link := f.link(recorded)
	by, err := f.n.ByIndex(recorded)
	if link.Identity == (Identity{}) {
		if err == nil && by.IsUp() && recorded != f.index { // otherwise the index is the snapshot's own link's by now
			return recorded
		}
		return 0
	}
	if err != nil || !link.is(by) { // it returned with another index
		if by, err = f.n.ByName(link.Name); err != nil || !link.is(by) {
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
	return eachOfHops(hops, func(hop []byte) bool {
		hop[2] &= unix.RTNH_F_ONLINK // the others are state, and the kernel refuses them
		index := f.here(linkOf(hop))
		if index == 0 {
			missing.add(f.link(linkOf(hop)))
			return false
		}
		binary.NativeEndian.PutUint32(hop[4:], uint32(index))
		return true
	})
}

// eachOfHops returns a copy of the nexthops that keep wants. keep may change the bytes.
func eachOfHops(hops []byte, keep func(hop []byte) bool) []byte {
	var some []byte
	eachHop(slices.Clone(hops), func(hop []byte) {
		if keep(hop) {
			some = append(some, hop...)
			some = append(some, make([]byte, nlattr.Align(len(some))-len(some))...)
		}
	})
	return some
}

// ownHops returns the nexthops that leave by the link.
func ownHops(hops []byte, link int) []byte {
	return eachOfHops(hops, func(hop []byte) bool { return linkOf(hop) == link })
}

// gained returns the nexthops by other links that the host has added to the route while the
// link was lent. hops are those that the route is going to have.
func gained(current, hops []byte, index int) []byte {
	same := func(a, b []byte) bool { return linkOf(a) == linkOf(b) && hopKey(a) == hopKey(b) }
	return eachOfHops(current, func(hop []byte) bool {
		hop[2] &= unix.RTNH_F_ONLINK
		isNew := linkOf(hop) != index
		eachHop(hops, func(other []byte) { isNew = isNew && !same(hop, other) })
		return isNew
	})
}

// hopKinds are the attributes that say where a nexthop leads.
var hopKinds = []uint16{unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_ENCAP, unix.RTA_ENCAP_TYPE}

// hopsOf returns the nexthops of a route in the form of RTA_MULTIPATH, also if it has one.
func hopsOf(rtmsg []byte, attrs nlattr.Attrs) []byte {
	if hops, ok := attrs.Get(unix.RTA_MULTIPATH); ok {
		return hops
	}
	oif, ok := attrs.Uint32(unix.RTA_OIF)
	if !ok {
		return nil
	}
	flags := byte(binary.NativeEndian.Uint32(rtmsg[8:])) & unix.RTNH_F_ONLINK
	hop := nlattr.Marshal(binary.NativeEndian.AppendUint32([]byte{0, 0, flags, 0}, oif), ofHop(attrs))
	binary.NativeEndian.PutUint16(hop, uint16(len(hop)))
	return append(hop, make([]byte, nlattr.Align(len(hop))-len(hop))...)
}

// hopKey returns where a nexthop leads by its link: its gateway and encapsulation.
func hopKey(hop []byte) string {
	attrs, _ := nlattr.Parse(hop[unix.SizeofRtNexthop:]) // as far as it is well-formed
	own := ofHop(attrs)
	slices.SortFunc(own, func(a, b nlattr.Attr) int { return cmp.Compare(a.Type, b.Type) })
	return string(nlattr.Marshal(nil, own))
}

func ofHop(attrs nlattr.Attrs) nlattr.Attrs {
	return slices.DeleteFunc(slices.Clone(attrs), func(a nlattr.Attr) bool { return !slices.Contains(hopKinds, a.Type) })
}

// KeepOtherHops adds the IPv4 routes of a link that has left with their other nexthops. With
// one of the links the kernel removes such a route as a whole (fib_sync_down_dev); of an IPv6
// route, and of one by a nexthop object, it keeps the rest itself. A routing daemon adds its
// own again.
func (n *Netns) KeepOtherHops(s *Snapshot) error {
	var errs []error
	f := n.hopFinder(s, 0)
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
		err = n.replay(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header, attrs.Without(unix.RTA_CACHEINFO, rtaNexthopID))
		if !errors.Is(err, unix.EEXIST) {
			errs = append(errs, wrap(err, "route %s without %s", r.Text, s.Name))
		}
	}
	return errors.Join(errs...)
}

// JoinHops takes over from the snapshot of a link that left before the IPv4 routes, and the
// groups of nexthop objects, that both links had in common: since then s has only its own
// nexthops of them. So the last link that returns brings all nexthops. If the other link is just
// leaving, s may lack such a route for a moment, and gets it: see [Netns.KeepOtherHops].
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
		if len(ownHops(hops, s.Index)) == 0 {
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
	return eachOfHops(hops, func(hop []byte) bool {
		if index, ok := indexes[linkOf(hop)]; ok {
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
	return routeKey(header, attrs), hops
}

// routeKey returns what identifies a route to the kernel, apart from its nexthops.
func routeKey(rtmsg []byte, attrs nlattr.Attrs) string {
	dst, _ := attrs.Get(unix.RTA_DST)
	src, _ := attrs.Get(unix.RTA_SRC)
	metric, _ := attrs.Uint32(unix.RTA_PRIORITY)
	const srcLen, tos = 2, 3 // in struct rtmsg
	return fmt.Sprintf("%d %x/%d from %x/%d tos %d table %d metric %d", rtmsg[0], dst, rtmsg[1], src, rtmsg[srcLen], rtmsg[tos], tableOf(rtmsg, attrs), metric)
}

// parseMAC returns the link-layer address of a text, nil for none.
func parseMAC(text string) net.HardwareAddr {
	mac, _ := net.ParseMAC(text) // a record has what the kernel said
	return mac
}
