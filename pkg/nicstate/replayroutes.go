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

// Lost is the error for an address, a route or another object of a snapshot that the link does not
// have.
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
	objects map[uint32]routes.Object // objects of the namespace, nil until they are needed
	current map[string][]route       // routes of the namespace, by key, nil until they are needed

	// plain is set if routes are added without their nexthop objects, because the objects cannot be
	// restored.
	plain bool
}

// route is a route that the namespace has.
type route struct {
	object uint32 // the nexthop object that the route uses, 0 for none
	hops   []byte // in the form of RTA_MULTIPATH
}

// ReplayRoutes adds the snapshot's nexthop objects and routes to the link. If a route's gateway is
// reached by another route of the list, the other route is added first. ReplayRoutes returns the
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

// errNoObject means that a nexthop object does not exist yet, which a route or a group names.
var errNoObject = errors.New("it names a nexthop object that is missing")

func (r *replayer) replayRoute(from Replay) error {
	header, attrs, err := nlattr.ParseMessage(slices.Clone(from.Raw), unix.SizeofRtMsg)
	if err != nil {
		return err
	}
	// Of the flags only "onlink" is a setting. The other flags are state, and the kernel refuses
	// them.
	flags := binary.NativeEndian.Uint32(header[8:]) & unix.RTNH_F_ONLINK
	binary.NativeEndian.PutUint32(header[8:], flags)
	left, expired := remaining(header, attrs, time.Since(r.s.Taken))
	if expired {
		return nil
	}
	attrs = append(attrs.Without(unix.RTA_CACHEINFO), left...)
	// The route is added beside other routes to the same destination. If the routes have a gateway,
	// IPv6 makes them one multipath route, in which this route is a hop.
	how := unix.NLM_F_CREATE | unix.NLM_F_APPEND
	missing := &MissingHops{}
	if id, ok := attrs.Uint32(routes.AttrNexthop); ok && r.s.hasObject(id) {
		switch viaObject, err := r.byObject(id, header, attrs); {
		case err != nil:
			return err
		case viaObject != nil:
			binary.NativeEndian.PutUint32(header[8:], 0) // the flags are the object's
			return existing(r.n.Request(unix.RTM_NEWROUTE, how, header, viaObject))
		case r.stands(id, header, attrs):
			return nil
		}
	}
	// An object that is not restored was deleted with the link, or belongs to a daemon. The
	// attributes beside it have the same content.
	attrs = attrs.Without(routes.AttrNexthop)
	for i, a := range attrs {
		switch {
		case a.Type == unix.RTA_OIF:
			attrs[i].Value = nl.Uint32Attr(uint32(r.index))
		case a.Type == unix.RTA_MULTIPATH && header[0] == unix.AF_INET6:
			// The other hops stayed in the route, or return with their NICs.
			attrs[i].Value = r.hops(routes.OwnHops(a.Value, r.s.Index), missing)
		case a.Type == unix.RTA_MULTIPATH:
			if attrs[i].Value, err = r.allHops(header, attrs, a.Value, missing); err != nil {
				return err
			}
			// Replaces the rest of the route, which stayed when this hop was removed.
			how = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
		}
	}
	if err := existing(r.n.Request(unix.RTM_NEWROUTE, how, header, attrs)); err != nil {
		return err
	}
	return missing.or()
}

// existing returns nil if err is EEXIST. Without NLM_F_EXCL that error means that the route by this
// link, gateway and metric exists already. Otherwise existing returns err.
func existing(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// allHops returns the nexthops of an IPv4 route: the recorded nexthops whose links are here, and
// the nexthops that the host added while the link was lent.
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

// byObject returns the attributes of a route that uses the nexthop object with this ID. It returns
// nil if the object is missing and the route is to be added without it.
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

// stands reports whether the namespace still has the route by this object. That is so if the object
// is a group that another link has kept.
func (r *replayer) stands(id uint32, rtmsg []byte, attrs nlattr.Attrs) bool {
	err := r.readRoutes()
	return err == nil && slices.ContainsFunc(r.current[routes.Key(rtmsg, attrs)], func(now route) bool { return now.object == id })
}

// readRoutes reads the namespace's routes to the destinations of the snapshot's routes, on the
// first call only. It reads no others, because a host may have hundreds of thousands of them.
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

// remaining returns the attribute with the seconds that are left until an IPv6 route expires. left
// is empty if the route does not expire. expired reports whether the route has expired already.
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
