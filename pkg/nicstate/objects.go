package nicstate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// snapshotNexthops adds to s the nexthop objects by the link of v that no routing daemon has made,
// and the groups that contain these objects. The kernel deletes the objects together with the link.
// The groups' objects by other links are added as well: by their IDs alone they could not be told
// from later objects.
func snapshotNexthops(n *netns.Netns, v *link.View, s *Snapshot) error {
	objects, err := routes.Objects(n)
	if err != nil || len(objects) == 0 {
		return err
	}
	ofNIC, groups, others := map[uint32]bool{}, map[uint32]bool{}, map[uint32]bool{}
	for id, object := range objects {
		ofNIC[id] = object.Link() == s.Index && !isRoutingDaemon(object.Protocol)
	}
	for id, object := range objects {
		members := object.Members()
		if isRoutingDaemon(object.Protocol) || !slices.ContainsFunc(members, func(id uint32) bool { return ofNIC[id] }) {
			continue
		}
		groups[id] = true
		for _, member := range members {
			others[member] = !ofNIC[member]
		}
	}
	for _, wanted := range []map[uint32]bool{ofNIC, others, groups} {
		for _, id := range slices.Sorted(maps.Keys(wanted)) {
			if !wanted[id] {
				continue
			}
			object := objects[id]
			s.Nexthops = append(s.Nexthops, recordOf(object, id))
			s.addHopLink(v, object.Link())
		}
	}
	return nil
}

// recordOf returns the object in the form in which it is recorded.
func recordOf(h routes.Object, id uint32) Replay {
	return Replay{Text: h.Text(id), Raw: nlattr.Marshal(h.Header(), h.Attrs)}
}

// nexthop returns the recorded object with this ID.
func (s *Snapshot) nexthop(id uint32) (routes.Object, bool) {
	for _, r := range s.Nexthops {
		if recorded, object, ok := routes.ParseObject(r.Raw); ok && recorded == id {
			return object, true
		}
	}
	return routes.Object{}, false
}

// hasObject reports whether the object with this ID is an object of the link, or a group of such
// objects.
func (s *Snapshot) hasObject(id uint32) bool {
	object, ok := s.nexthop(id)
	return ok && (object.Members() != nil || object.Link() == s.Index)
}

// readObjects reads the nexthop objects of the namespace, on the first call only.
func (r *replayer) readObjects() (err error) {
	if r.objects == nil {
		r.objects, err = routes.Objects(r.n)
	}
	return err
}

// restored reports whether the namespace has the recorded object with this ID. It returns false if
// another object has got that ID.
func (r *replayer) restored(id uint32) bool {
	recorded, known := r.s.nexthop(id)
	now, ok := r.objects[id]
	return known && ok && recorded.Same(now) && (recorded.Members() != nil || now.Link() == r.indexOf(recorded.Link()))
}

// errObjectTaken means that the ID of a recorded object now belongs to another object.
var errObjectTaken = errors.New("another nexthop object now has this object's ID")

// replayNexthop adds an object of the link. If the object is a group, it adds the link's objects to
// the group.
func (r *replayer) replayNexthop(from Replay) error {
	id, recorded, ok := routes.ParseObject(from.Raw)
	if !ok {
		return nlattr.ErrMalformed
	}
	if err := r.readObjects(); err != nil {
		return err
	}
	now, exists := r.objects[id]
	switch {
	case recorded.Members() != nil:
		return r.replayGroup(id, recorded)
	case recorded.Link() != r.s.Index || r.restored(id):
		return nil
	case exists && now.Link() != 0 || exists && now.Members() != nil:
		return errObjectTaken
	}
	attrs := nlattr.Attrs{{Type: unix.NHA_OIF, Value: binary.NativeEndian.AppendUint32(nil, uint32(r.index))}}
	for _, a := range recorded.Attrs {
		switch a.Type {
		case unix.NHA_ENCAP:
			a.Flags |= unix.NLA_F_NESTED // the kernel demands this flag, but does not report it
			attrs = append(attrs, a)
		case unix.NHA_ID, unix.NHA_GATEWAY, unix.NHA_ENCAP_TYPE:
			attrs = append(attrs, a)
		}
	}
	return r.put(id, routes.Object{Family: recorded.Family, Protocol: recorded.Protocol, Flags: recorded.Flags, Attrs: attrs}, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
}

// put adds or replaces an object.
func (r *replayer) put(id uint32, object routes.Object, how int) error {
	err := r.n.Request(unix.RTM_NEWNEXTHOP, how, object.Header(), object.Attrs)
	if err == nil {
		r.objects[id] = object
	}
	return err
}

// replayGroup adds the objects of the link to a group that still exists because of other links. If
// the group does not exist, replayGroup makes it again from all its objects that are here.
func (r *replayer) replayGroup(id uint32, recorded routes.Object) error {
	now, exists := r.objects[id]
	if exists && now.Members() == nil {
		return errObjectTaken
	}
	all, _ := recorded.Attrs.Get(unix.NHA_GROUP)
	current, _ := now.Attrs.Get(unix.NHA_GROUP)
	missing, lacksOwn := &MissingHops{}, false
	var group []byte
	for _, member := range recorded.Members() {
		object, _ := r.s.nexthop(member)
		ofNIC := object.Link() == r.s.Index
		switch {
		case ofNIC && !r.restored(member):
			lacksOwn = true
			continue
		case !ofNIC && exists && !slices.Contains(now.Members(), member): // the member has left the group, or comes back with its NIC
			continue
		case !ofNIC && !r.restored(member):
			missing.add(r.link(object.Link()))
			continue
		}
		group = append(group, routes.EntryOf(all, member)...)
	}
	for _, member := range now.Members() {
		if routes.EntryOf(group, member) == nil {
			group = append(group, routes.EntryOf(current, member)...)
		}
	}
	if len(group) > 0 && !bytes.Equal(group, current) {
		if err := r.put(id, recorded.WithGroup(group), map[bool]int{true: unix.NLM_F_REPLACE, false: unix.NLM_F_CREATE | unix.NLM_F_EXCL}[exists]); err != nil {
			return err
		}
	}
	if lacksOwn {
		return errNoObject
	}
	return missing.or()
}

// joinGroups takes over the groups of nexthop objects, with their objects, from the snapshot of a
// link that left before. indexes are the result of [Snapshot.joinIndexes].
func (s *Snapshot) joinGroups(before *Snapshot, indexes map[int]int) {
	for i, r := range s.Nexthops {
		id, now, _ := routes.ParseObject(r.Raw)
		was, ok := before.nexthop(id)
		if !ok || now.Members() == nil || len(was.Members()) <= len(now.Members()) ||
			slices.ContainsFunc(now.Members(), func(id uint32) bool { return !slices.Contains(was.Members(), id) }) {
			continue // the group has been changed since
		}
		s.Nexthops[i] = recordOf(was, id)
		for _, member := range was.Members() {
			if _, known := s.nexthop(member); known {
				continue
			}
			if object, ok := before.nexthop(member); ok {
				s.Nexthops = append(s.Nexthops, recordOf(object.WithLink(indexes), member))
			}
		}
	}
}
