package nicstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/link/settings"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// ErrMissing is wrapped by the error for an object that [Compare] does not find.
var ErrMissing = errors.New("it existed when the NIC was lent, and is missing now")

// Compare compares a returned link with its snapshot: the addresses, the routes (with the routes that the kernel
// makes for the addresses), the nexthop objects and the rules. It returns a [Lost] for each object that is missing.
// It does not report what daemons and routers add themselves: routes of routing daemons and of router advertisements,
// VRRP addresses, and addresses with a lifetime.
//
// [Restore] does not restore the rules that the kernel keeps during a loan. Compare compares those rules only if
// settled is true: before that time a running daemon may still add them again.
//
// Compare dumps only the kinds of objects that the snapshot contains, and only the addresses and routes of this link.
func Compare(n *netns.Netns, index int, s *Snapshot, settled bool) (missing []error, err error) {
	present, missing, err := compareAddresses(n, index, s)
	if err != nil {
		return nil, err
	}
	gone, objects, err := compareNexthops(n, index, s)
	if err != nil {
		return nil, err
	}
	routes, err := compareRoutes(n, index, s, present, gone)
	if err != nil {
		return nil, err
	}
	rules, err := compareRules(n, s, settled)
	return slices.Concat(missing, routes, objects, rules), err
}

// compareAddresses returns the recorded addresses that the link has. It returns an error for each
// recorded address that the link does not have.
func compareAddresses(n *netns.Netns, index int, s *Snapshot) (present [][]byte, missing []error, err error) {
	var want []Replay
	for _, r := range s.Addresses {
		header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofIfAddrmsg)
		if err == nil && !hasLifetime(attrs) && !s.isVirtual(header, attrs) {
			want = append(want, r)
		}
	}
	if len(want) == 0 {
		return nil, nil, nil
	}
	have := map[string]bool{}
	header := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	header.Index = uint32(index)
	_, err = n.DumpSelected(unix.RTM_GETADDR, header, nil, func(m []byte) bool {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err == nil && nlattr.IsIP(h) && int(binary.NativeEndian.Uint32(h[4:])) == index {
			have[addressKey(h, attrs)] = true
		}
		return false
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses in netns %s: %w", n.Path, err)
	}
	for _, r := range want {
		header, attrs, _ := nlattr.ParseMessage(r.Raw, unix.SizeofIfAddrmsg)
		if have[addressKey(header, attrs)] {
			present = append(present, r.Raw)
		} else {
			missing = append(missing, lost(ErrMissing, "address", r.Text, s))
		}
	}
	return present, missing, nil
}

// hasLifetime reports whether an address ends by itself if nobody renews it.
func hasLifetime(attrs nlattr.Attrs) bool {
	info, _ := attrs.Get(unix.IFA_CACHEINFO) // ifa_cacheinfo: preferred, valid, …
	return len(info) >= 8 && binary.NativeEndian.Uint32(info[4:]) != foreverLife
}

// addressKey returns the properties that identify an address on a link.
func addressKey(ifaddrmsg []byte, attrs nlattr.Attrs) string {
	ip, _ := attrs.Get(unix.IFA_ADDRESS)
	local, ok := attrs.Get(unix.IFA_LOCAL)
	if !ok {
		local = ip
	}
	return fmt.Sprintf("%d %x peer %x/%d", ifaddrmsg[0], local, ip, ifaddrmsg[1])
}

// compareRoutes returns an error for each recorded route that the link does not have. It expects
// the kernel's routes only for the addresses in present. It ignores the routes by the nexthop
// objects in gone: those routes are missing because their objects are missing.
func compareRoutes(n *netns.Netns, index int, s *Snapshot, present [][]byte, gone map[uint32]bool) ([]error, error) {
	want := slices.DeleteFunc(slices.Clone(s.configured().Routes), func(r Replay) bool {
		header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		object, _ := attrs.Uint32(routes.AttrNexthop)
		return err != nil || header[5] == unix.RTPROT_RA || expires(attrs) != 0 || gone[object]
	})
	from := origin{prefixes: prefixesOf(present)}
	for _, r := range s.Connected {
		// If a link is down, the kernel has few of its routes. If the link is in a VRF, the routes
		// are in the VRF's table.
		header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		if err == nil && s.Up && s.Master == "" && expires(attrs) == 0 && from.isConnected(header, attrs) {
			want = append(want, r)
		}
	}
	if len(want) == 0 {
		return nil, nil
	}
	have, err := routesOf(n, index, want)
	if err != nil {
		return nil, err
	}
	var missing []error
	for _, r := range want {
		header, attrs, _ := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		hops, complete := have[routes.Key(header, attrs)], true
		routes.EachHop(routes.OwnHops(routes.HopsOf(header, attrs), s.Index), func(hop []byte) { complete = complete && hops[routes.HopKey(hop)] })
		if !complete {
			missing = append(missing, lost(ErrMissing, "route", r.Text, s))
		}
	}
	return missing, nil
}

// routesOf returns the nexthops by the link, by the keys of their routes. It reads only the
// families of the wanted routes.
func routesOf(n *netns.Netns, index int, want []Replay) (map[string]map[string]bool, error) {
	have := map[string]map[string]bool{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if !slices.ContainsFunc(want, func(r Replay) bool { return r.Raw[0] == family }) {
			continue
		}
		header := &nl.RtMsg{}
		header.Family = family
		oif := nlattr.Attrs{{Type: unix.RTA_OIF, Value: nl.Uint32Attr(uint32(index))}}
		dump := func(wanted func(m []byte) bool) ([][]byte, error) {
			return n.DumpSelected(unix.RTM_GETROUTE, header, oif, wanted)
		}
		messages, err := routes.ListBy(n, dump, func(_ []byte, attrs nlattr.Attrs) bool { return routes.LeavesBy(attrs, index) })
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			h, attrs, _ := nlattr.ParseMessage(m, unix.SizeofRtMsg)
			key := routes.Key(h, attrs)
			if have[key] == nil {
				have[key] = map[string]bool{}
			}
			routes.EachHop(routes.OwnHops(routes.HopsOf(h, attrs), index), func(hop []byte) { have[key][routes.HopKey(hop)] = true })
		}
	}
	return have, nil
}

// compareNexthops returns an error for each nexthop object of the link that is missing, and for
// each group from which such an object is missing. gone has the IDs of these objects and groups.
func compareNexthops(n *netns.Netns, index int, s *Snapshot) (gone map[uint32]bool, missing []error, err error) {
	if len(s.Nexthops) == 0 {
		return nil, nil, nil
	}
	r := &replayer{hopFinder: newHopFinder(n, s, index)}
	if err := r.readObjects(); err != nil {
		return nil, nil, err
	}
	gone = map[uint32]bool{}
	for _, recorded := range s.Nexthops {
		id, object, ok := routes.ParseObject(recorded.Raw)
		if !ok || !s.hasObject(id) {
			continue
		}
		complete := r.restored(id)
		for _, member := range object.Members() {
			if other, known := s.nexthop(member); known && other.Link() == s.Index {
				complete = complete && slices.Contains(r.objects[id].Members(), member)
			}
		}
		if !complete {
			gone[id], missing = true, append(missing, lost(ErrMissing, "nexthop object", recorded.Text, s))
		}
	}
	return gone, missing, nil
}

// compareRules returns an error for each recorded rule that is missing.
func compareRules(n *netns.Netns, s *Snapshot, settled bool) ([]error, error) {
	want := slices.Clone(s.Rules)
	if settled {
		want = append(want, s.KeptRules...)
	}
	if len(want) == 0 {
		return nil, nil
	}
	have := map[string]bool{}
	if _, err := rawRules(n, func(header []byte, attrs nlattr.Attrs) bool {
		have[ruleKey(header, attrs)] = true
		return false
	}); err != nil {
		return nil, err
	}
	var missing []error
	for _, r := range want {
		header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofRtMsg)
		if err == nil && !have[ruleKey(header, attrs)] {
			missing = append(missing, lost(ErrMissing, "rule", r.Text, s))
		}
	}
	return missing, nil
}

// CompareSettings returns a [Lost] for each setting of a returned link that differs from the link's
// snapshot. It compares the settings that udev's .link files set (systemd.link(5)): name, alias,
// MAC, MTU, queue length, and the sizes of GSO and GRO. It also returns a [Lost] if the link was up
// and is down now.
func CompareSettings(n *netns.Netns, l *link.Link, s *Snapshot) ([]error, error) {
	attrs, err := link.AttrsOf(n, l)
	if err != nil {
		return nil, err
	}
	var changed []error
	differs := func(what string, now, was any) {
		if fmt.Sprint(now) != fmt.Sprint(was) {
			changed = append(changed, &Lost{What: what + " of " + s.Name, Err: fmt.Errorf("%w: it is now %v, and was %v before", ErrChanged, now, was)})
		}
	}
	differs("name", l.Name, s.Name)
	differs("alias", fmt.Sprintf("%q", l.Alias), fmt.Sprintf("%q", s.Alias))
	if want := s.macFor(l); want != "" {
		differs("MAC", link.MACText(l.MAC), want)
	}
	differs("MTU", l.MTU, s.MTU)
	differs("queue length", l.TxQueueLen, s.TxQueueLen)
	differs("state", upText(l.IsUp()), upText(s.Up))
	have := settings.Read(attrs)
	for _, name := range slices.Sorted(maps.Keys(s.Settings)) {
		if now, known := have[name]; known && strings.HasPrefix(name, "g") { // gso_…, gro_…
			differs(name, now, s.Settings[name])
		}
	}
	return changed, nil
}

// ErrChanged is wrapped by the error for a setting that [CompareSettings] finds.
var ErrChanged = errors.New("somebody, perhaps udev, has changed it since the NIC returned")

func upText(up bool) string {
	if up {
		return "up"
	}
	return "down"
}
