package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// The ID of an object in a group, and its weight (struct nexthop_grp).
const memberID, memberWeight = 0, 4

// members returns the IDs of a group's objects, nil for an object that is not a group.
func (h nexthop) members() []uint32 {
	group, _ := h.attrs.Get(unix.NHA_GROUP)
	var ids []uint32
	for ; len(group) >= sizeofGroupHop; group = group[sizeofGroupHop:] {
		ids = append(ids, binary.NativeEndian.Uint32(group[memberID:]))
	}
	return ids
}

// link returns the index of the link that the object's hop leaves by, 0 for a group.
func (h nexthop) link() int { return number(h.attrs, unix.NHA_OIF) }

// same reports whether both objects have the same hop, apart from their links.
func (h nexthop) same(other nexthop) bool {
	gateway, _ := h.attrs.Get(unix.NHA_GATEWAY)
	others, _ := other.attrs.Get(unix.NHA_GATEWAY)
	return h.family == other.family && bytes.Equal(gateway, others) && (h.members() == nil) == (other.members() == nil)
}

// text returns an object in ip-nexthop(8)'s form, as far as a reader needs it.
func (h nexthop) text(id uint32) string {
	if members := h.members(); members != nil {
		return fmt.Sprintf("%d group %s", id, strings.ReplaceAll(strings.Trim(fmt.Sprint(members), "[]"), " ", "/"))
	}
	if gateway, ok := h.attrs.Get(unix.NHA_GATEWAY); ok {
		return fmt.Sprintf("%d via %s", id, net.IP(gateway))
	}
	return fmt.Sprint(id)
}

// snapshotNexthops adds to s the nexthop objects by the link of v that no routing daemon has
// made, and the groups that they are in. The kernel deletes them with the link. The groups'
// objects by other links are added, too: their IDs alone would not tell them from later ones.
func (n *Netns) snapshotNexthops(v *View, s *Snapshot) error {
	objects, err := n.nexthops()
	if err != nil || len(objects) == 0 {
		return err
	}
	own, groups, others := map[uint32]bool{}, map[uint32]bool{}, map[uint32]bool{}
	for id, object := range objects {
		own[id] = object.link() == s.Index && !isRoutingDaemon(object.protocol)
	}
	for id, object := range objects {
		members := object.members()
		if isRoutingDaemon(object.protocol) || !slices.ContainsFunc(members, func(id uint32) bool { return own[id] }) {
			continue
		}
		groups[id] = true
		for _, member := range members {
			others[member] = !own[member]
		}
	}
	for _, wanted := range []map[uint32]bool{own, others, groups} {
		for _, id := range slices.Sorted(maps.Keys(wanted)) {
			if !wanted[id] {
				continue
			}
			object := objects[id]
			s.Nexthops = append(s.Nexthops, object.record(id))
			s.addHopLink(v, object.link())
		}
	}
	return nil
}

// record returns the object as it is recorded.
func (h nexthop) record(id uint32) Replay {
	header := make([]byte, sizeofNhmsg)
	header[0], header[2] = h.family, h.protocol
	binary.NativeEndian.PutUint32(header[4:], uint32(h.flags))
	return Replay{Text: h.text(id), Raw: nlattr.Marshal(header, h.attrs)}
}

// nexthop returns the recorded object with this ID.
func (s *Snapshot) nexthop(id uint32) (nexthop, bool) {
	for _, r := range s.Nexthops {
		if recorded, object, ok := parseNexthop(r.Raw); ok && recorded == id {
			return object, true
		}
	}
	return nexthop{}, false
}

// hasObject reports whether the object with this ID is one of the link's, or a group of such.
func (s *Snapshot) hasObject(id uint32) bool {
	object, ok := s.nexthop(id)
	return ok && (object.members() != nil || object.link() == s.Index)
}

// readObjects reads the nexthop objects of the namespace, once.
func (r *replayer) readObjects() (err error) {
	if r.objects == nil {
		r.objects, err = r.n.nexthops()
	}
	return err
}

// restored reports whether the namespace has the recorded object with this ID, and not another
// one that has been given its ID.
func (r *replayer) restored(id uint32) bool {
	recorded, known := r.s.nexthop(id)
	now, ok := r.objects[id]
	return known && ok && recorded.same(now) && (recorded.members() != nil || now.link() == r.here(recorded.link()))
}

// errObjectTaken: the ID of a recorded object is another's.
var errObjectTaken = errors.New("another nexthop object has its ID now")

// replayNexthop adds an object of the link, or the link's objects to a group.
func (r *replayer) replayNexthop(from Replay) error {
	id, recorded, ok := parseNexthop(from.Raw)
	if !ok {
		return nlattr.ErrMalformed
	}
	if err := r.readObjects(); err != nil {
		return err
	}
	now, exists := r.objects[id]
	switch {
	case recorded.members() != nil:
		return r.replayGroup(id, recorded)
	case recorded.link() != r.s.Index || r.restored(id):
		return nil
	case exists && now.link() != 0 || exists && now.members() != nil:
		return errObjectTaken
	}
	attrs := nlattr.Attrs{{Type: unix.NHA_OIF, Value: binary.NativeEndian.AppendUint32(nil, uint32(r.index))}}
	for _, a := range recorded.attrs {
		switch a.Type {
		case unix.NHA_ENCAP:
			a.Flags |= unix.NLA_F_NESTED // which the kernel demands, and does not say
			attrs = append(attrs, a)
		case unix.NHA_ID, unix.NHA_GATEWAY, unix.NHA_ENCAP_TYPE:
			attrs = append(attrs, a)
		}
	}
	return r.put(id, nexthop{recorded.family, recorded.protocol, recorded.flags, attrs}, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
}

// put adds or replaces an object.
func (r *replayer) put(id uint32, object nexthop, how int) error {
	header := make([]byte, sizeofNhmsg)
	header[0], header[2] = object.family, object.protocol
	binary.NativeEndian.PutUint32(header[4:], uint32(object.flags))
	err := r.n.replay(unix.RTM_NEWNEXTHOP, how, header, object.attrs)
	if err == nil {
		r.objects[id] = object
	}
	return err
}

// replayGroup adds the objects of the link to a group that has stayed with others, or makes the
// group anew of all its objects that are here.
func (r *replayer) replayGroup(id uint32, recorded nexthop) error {
	now, exists := r.objects[id]
	if exists && now.members() == nil {
		return errObjectTaken
	}
	all, _ := recorded.attrs.Get(unix.NHA_GROUP)
	current, _ := now.attrs.Get(unix.NHA_GROUP)
	missing, lacksOwn := &MissingHops{}, false
	var group []byte
	for _, member := range recorded.members() {
		object, _ := r.s.nexthop(member)
		own := object.link() == r.s.Index
		switch {
		case own && !r.restored(member):
			lacksOwn = true
			continue
		case !own && exists && !slices.Contains(now.members(), member): // it has left the group, or comes with its NIC
			continue
		case !own && !r.restored(member):
			missing.add(r.link(object.link()))
			continue
		}
		group = append(group, entryOf(all, member)...)
	}
	for _, member := range now.members() {
		if entryOf(group, member) == nil {
			group = append(group, entryOf(current, member)...)
		}
	}
	if len(group) > 0 && !bytes.Equal(group, current) {
		if err := r.put(id, recorded.withGroup(group), map[bool]int{true: unix.NLM_F_REPLACE, false: unix.NLM_F_CREATE | unix.NLM_F_EXCL}[exists]); err != nil {
			return err
		}
	}
	if lacksOwn {
		return errNoObject
	}
	return missing.or()
}

// entryOf returns the entry of an object in a group, nil if it has none.
func entryOf(group []byte, member uint32) []byte {
	for entry := range slices.Chunk(group, sizeofGroupHop) {
		if len(entry) == sizeofGroupHop && binary.NativeEndian.Uint32(entry[memberID:]) == member {
			return entry
		}
	}
	return nil
}

// withGroup returns the group with these entries, as the kernel takes it.
func (h nexthop) withGroup(group []byte) nexthop {
	id, _ := h.attrs.Get(unix.NHA_ID)
	attrs := nlattr.Attrs{{Type: unix.NHA_ID, Value: id}, {Type: unix.NHA_GROUP, Value: group}}
	if kind, ok := h.attrs.Get(unix.NHA_GROUP_TYPE); ok {
		attrs = append(attrs, nlattr.Attr{Type: unix.NHA_GROUP_TYPE, Value: kind})
	}
	if resilient, err := h.attrs.Nested(nhaResGroup); err == nil && len(resilient) > 0 {
		settings := nlattr.Marshal(nil, resilient.Without(nhaResGroupUnbalancedTime)) // a state
		attrs = append(attrs, nlattr.Attr{Type: nhaResGroup, Flags: unix.NLA_F_NESTED, Value: settings})
	}
	return nexthop{protocol: h.protocol, attrs: attrs}
}

// Of a resilient group (linux/nexthop.h).
const nhaResGroup, nhaResGroupUnbalancedTime = 12, 4

// joinGroups takes over the groups of nexthop objects from the snapshot of a link that left
// before, with its objects. indexes are those of [Snapshot.joinIndexes].
func (s *Snapshot) joinGroups(before *Snapshot, indexes map[int]int) {
	for i, r := range s.Nexthops {
		id, now, _ := parseNexthop(r.Raw)
		was, ok := before.nexthop(id)
		if !ok || now.members() == nil || len(was.members()) <= len(now.members()) ||
			slices.ContainsFunc(now.members(), func(id uint32) bool { return !slices.Contains(was.members(), id) }) {
			continue // it has been changed since
		}
		s.Nexthops[i] = was.record(id)
		for _, member := range was.members() {
			if _, known := s.nexthop(member); known {
				continue
			}
			if object, ok := before.nexthop(member); ok {
				s.Nexthops = append(s.Nexthops, object.withLink(indexes).record(member))
			}
		}
	}
}

// withLink returns the object with another index of its link.
func (h nexthop) withLink(indexes map[int]int) nexthop {
	if index, ok := indexes[h.link()]; ok {
		h.attrs = append(h.attrs.Without(unix.NHA_OIF), nlattr.Attr{Type: unix.NHA_OIF, Value: binary.NativeEndian.AppendUint32(nil, uint32(index))})
	}
	return h
}
