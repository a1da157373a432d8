package nicstate

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Lost is the error for an address, a route or another object of a snapshot that its link does
// not have.
type Lost struct {
	What string // "route 10.0.0.0/8 via 10.1.0.1 of ens1"
	Err  error
}

func (l *Lost) Error() string { return l.What + ": " + l.Err.Error() }

func (l *Lost) Unwrap() error { return l.Err }

func lost(err error, kind, text string, s *Snapshot) error {
	return &Lost{What: kind + " " + text + " of " + s.Name, Err: err}
}

// replayer adds the routes and nexthop objects of a snapshot to its link.
type replayer struct {
	*hopFinder
	objects map[uint32]routes.Object // of the namespace; nil until they are needed
	current map[string][]route       // of the namespace, by key; nil until they are needed

	// plain is set if routes are added without the objects that they were by, because these
	// cannot be restored.
	plain bool
}

// route is a route that the namespace has.
type route struct {
	object uint32 // the nexthop object that it is by, 0 for none
	hops   []byte // as of RTA_MULTIPATH
}

// ReplayRoutes adds the snapshot's nexthop objects and routes to the link. A route whose gateway
// is reached by another route of the list comes after that one. It returns the
// kernel's errors.
func ReplayRoutes(n *netns.Netns, index int, s *Snapshot) []error {
	r := &replayer{hopFinder: newHopFinder(n, s, index), plain: len(s.Nexthops) == 0}
	objects, routes := s.Nexthops, s.Routes
	for {
		var failures []error
		again := func(kind string, open []Replay, replay func(Replay) error) (failed []Replay) {
			for _, o := range open {
				if err := link.IfGone(n, replay(o), index); err != nil {
					failed = append(failed, o)
					failures = append(failures, lost(err, kind, o.Text, s))
				}
			}
			return failed
		}
		openObjects := again("nexthop object", objects, r.replayNexthop)
		openRoutes := again("route", routes, r.replayRoute)
		stuck := len(openObjects) == len(objects) && len(openRoutes) == len(routes)
		objects, routes = openObjects, openRoutes
		switch {
		case len(failures) == 0 || stuck && r.plain:
			return failures
		case stuck:
			r.plain = true
		}
	}
}

// errNoObject: the route's nexthop object is not there yet.
var errNoObject = errors.New("its nexthop object is not there")

func (r *replayer) replayRoute(from Replay) error {
	header, attrs, err := nlattr.ParseMessage(slices.Clone(from.Raw), unix.SizeofRtMsg)
	if err != nil {
		return err
	}
	// Of the flags only "onlink" is a setting; the others are state, and the
	// kernel refuses them.
	flags := binary.NativeEndian.Uint32(header[8:]) & unix.RTNH_F_ONLINK
	binary.NativeEndian.PutUint32(header[8:], flags)
	left, expired := remaining(header, attrs, time.Since(r.s.Taken))
	if expired {
		return nil
	}
	attrs = append(attrs.Without(unix.RTA_CACHEINFO), left...)
	// Beside another route to the same destination. With a gateway IPv6 makes
	// both into one multipath route, of which this is a hop.
	how := unix.NLM_F_CREATE | unix.NLM_F_APPEND
	missing := &MissingHops{}
	if id, ok := attrs.Uint32(routes.AttrNexthop); ok && r.s.hasObject(id) {
		switch by, err := r.byObject(id, header, attrs); {
		case err != nil:
			return err
		case by != nil:
			binary.NativeEndian.PutUint32(header[8:], 0) // of the object
			return existing(r.n.Request(unix.RTM_NEWROUTE, how, header, by))
		case r.stands(id, header, attrs):
			return nil
		}
	}
	// An object that is not restored was deleted with the link, or is a daemon's; the
	// attributes beside it have the same content.
	attrs = attrs.Without(routes.AttrNexthop)
	for i, a := range attrs {
		switch {
		case a.Type == unix.RTA_OIF:
			attrs[i].Value = nl.Uint32Attr(uint32(r.index))
		case a.Type == unix.RTA_MULTIPATH && header[0] == unix.AF_INET6:
			// The other hops stayed, or return with their NICs.
			attrs[i].Value = r.hops(routes.OwnHops(a.Value, r.s.Index), missing)
		case a.Type == unix.RTA_MULTIPATH:
			if attrs[i].Value, err = r.allHops(header, attrs, a.Value, missing); err != nil {
				return err
			}
			// Replaces the rest of the route that stayed when this hop was removed.
			how = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
		}
	}
	if err := existing(r.n.Request(unix.RTM_NEWROUTE, how, header, attrs)); err != nil {
		return err
	}
	return missing.or()
}

// existing returns err unless it means, without NLM_F_EXCL, that the route by this link, gateway
// and metric exists.
func existing(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// allHops returns the nexthops of an IPv4 route: those whose links are here, and those that the
// host has added while the link was lent.
func (r *replayer) allHops(rtmsg []byte, attrs nlattr.Attrs, recorded []byte, missing *MissingHops) ([]byte, error) {
	hops := r.hops(recorded, missing)
	if len(routes.OwnHops(recorded, r.s.Index)) == len(recorded) {
		return hops, nil
	}
	if err := r.readRoutes(); err != nil {
		return nil, err
	}
	for _, now := range r.current[routes.Key(rtmsg, attrs)] {
		if now.object == 0 {
			hops = append(hops, gained(now.hops, hops, r.index)...)
		}
	}
	return hops, nil
}

// byObject returns the attributes of a route by the nexthop object with this ID, nil if the
// object is not there and the route is to be added without it.
func (r *replayer) byObject(id uint32, rtmsg []byte, attrs nlattr.Attrs) (nlattr.Attrs, error) {
	if err := r.readObjects(); err != nil {
		return nil, err
	}
	if _, ok := r.objects[id]; !ok || !r.restored(id) {
		if r.plain {
			return nil, nil
		}
		return nil, errNoObject
	}
	return attrs.Without(append([]uint16{unix.RTA_OIF, unix.RTA_MULTIPATH}, routes.HopKinds...)...), nil
}

// stands reports whether the namespace has the route by this object, a group that another link
// has kept.
func (r *replayer) stands(id uint32, rtmsg []byte, attrs nlattr.Attrs) bool {
	err := r.readRoutes()
	return err == nil && slices.ContainsFunc(r.current[routes.Key(rtmsg, attrs)], func(now route) bool { return now.object == id })
}

// readRoutes reads the routes of the namespace to the destinations of the snapshot's routes, once:
// a host may have hundreds of thousands of others.
func (r *replayer) readRoutes() error {
	if r.current != nil {
		return nil
	}
	wanted := map[string]bool{}
	for _, o := range r.s.Routes {
		if header, attrs, err := nlattr.ParseMessage(o.Raw, unix.SizeofRtMsg); err == nil {
			wanted[routes.Key(header, attrs)] = true
		}
	}
	messages, err := routes.List(r.n, func(rtmsg []byte, attrs nlattr.Attrs) bool { return wanted[routes.Key(rtmsg, attrs)] })
	if err != nil {
		return err
	}
	r.current = map[string][]route{}
	for _, m := range messages {
		header, attrs, _ := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		now := route{}
		now.object, _ = attrs.Uint32(routes.AttrNexthop)
		now.hops = routes.HopsOf(header, attrs)
		key := routes.Key(header, attrs)
		r.current[key] = append(r.current[key], now)
	}
	return nil
}

// remaining returns the attribute with the seconds that are left of an IPv6 route that
// expires, none if it does not, and reports whether it has expired.
func remaining(rtmsg []byte, attrs nlattr.Attrs, since time.Duration) (left nlattr.Attrs, expired bool) {
	const perSecond = 100 // USER_HZ
	end := expires(attrs)
	if end == 0 || rtmsg[0] != unix.AF_INET6 {
		return nil, false
	}
	seconds := int64(end)/perSecond - int64(max(since, 0)/time.Second) // the clock may have been set back
	if seconds <= 0 {
		return nil, true
	}
	return nlattr.Attrs{{Type: unix.RTA_EXPIRES, Value: nl.Uint32Attr(uint32(seconds))}}, false
}
