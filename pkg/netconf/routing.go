package netconf

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf/document"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// The values of the key "routing.mode".
const (
	RoutingNone   = "none"   // the routes of the IPAM plugin are in the main table
	RoutingMain   = "main"   // the same as none, for authors who want to write it explicitly
	RoutingSource = "source" // the interface has its own table, for packets from its addresses
)

// The values of the key "arp".
const (
	ARPKernel = "kernel" // the interface answers and filters according to the settings of the pod netns
	ARPOwn    = "own"    // the interface answers for its own addresses only
)

const (
	// firstTable is the routing table of rail 0, if the network does not name a table.
	firstTable = 1000
	// defaultPriority is the priority of the rules, if the network does not set one. With it the
	// rules come before the main table (32766), and after the priorities that plugins and programs
	// of pods use most, which are below 1000.
	defaultPriority = 20000
	// lastPriority is the largest priority of the rules. A second rule has the next priority, and
	// both rules must precede the main table.
	lastPriority = 32764
)

// tableCure is a cure for an author whose NIC has no rail.
const tableCure = `or set "table" in "routing" to the number of a table`

// Routing has the keys of host-device and macvlan that concern the interface's routes and its
// answers to neighbors.
type Routing struct {
	Policy RoutingPolicy `json:"routing"`
	// ARP is [ARPKernel] (also when empty) or [ARPOwn].
	ARP string `json:"arp"`
	// AcceptRA decides whether the interface accepts router advertisements. With nil a network with
	// mode source or arp own accepts none, and any other network has the setting of the pod netns.
	AcceptRA *bool `json:"acceptRA"`
}

// RoutingPolicy is the key "routing".
type RoutingPolicy struct {
	// Mode is [RoutingNone] (also when empty), [RoutingMain] or [RoutingSource].
	Mode string `json:"mode"`
	// Table is the interface's table in mode source. With nil the table of the rail is used.
	Table *int `json:"table"`
	// Priority is the priority of the rules in mode source. With nil the default is used.
	Priority *int `json:"priority"`
}

var (
	routingKeys  = []string{"mode", "table", "priority"}
	routingModes = []string{RoutingSource, RoutingMain, RoutingNone}
	arpValues    = []string{ARPKernel, ARPOwn}
)

// UnmarshalJSON implements [json.Unmarshaler]. It returns an error for unknown keys: because of a
// misspelled key, packets could leave by another NIC.
func (p *RoutingPolicy) UnmarshalJSON(data []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		return failure.New(failure.Decode, `"routing" cannot be %.40s`, data).Cure(`write it as an object: {"mode": "source"}`)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !slices.ContainsFunc(routingKeys, func(k string) bool { return strings.EqualFold(k, key) }) {
			return failure.New(failure.Decode, `"routing": unknown key %.40q`, key).Cure("%s", resource.Suggestion(key, routingKeys))
		}
	}
	type plain RoutingPolicy
	return document.Decode(data, (*plain)(p), `"routing"`)
}

// RouteTable returns the table of the interface in mode source: the table that the network names,
// or the table of the rail. rail is nil if the rail is unknown. ok is false if there is no table.
func (r *Routing) RouteTable(rail *int) (table int, ok bool) {
	switch {
	case r.Policy.Table != nil:
		return *r.Policy.Table, true
	case rail != nil:
		return firstTable + *rail, true
	}
	return 0, false
}

// RulePriority returns the priority of the rules in mode source.
func (r *Routing) RulePriority() int {
	if r.Policy.Priority != nil {
		return *r.Policy.Priority
	}
	return defaultPriority
}

// TableOfRail reports whether the interface's table depends on the rail of its NIC.
func (r *Routing) TableOfRail() bool {
	return r.Policy.Mode == RoutingSource && r.Policy.Table == nil
}

// Sysctls returns the settings of the interface that the keys require, by their names in
// [sysctl.Set]. It is enough to set the values of the interface, because the kernel uses the larger
// of an interface's value and the value of "all" (IN_DEV_MAXCONF).
func (r *Routing) Sysctls() map[string]string {
	settings := map[string]string{}
	if r.ARP == ARPOwn {
		settings["ipv4/conf/arp_ignore"] = "1"   // answer for addresses of this interface
		settings["ipv4/conf/arp_announce"] = "2" // ask with an address of this interface
		// Loose: if several interfaces have the same prefix, the strict filter would drop
		// everything that arrives by all interfaces except one, even ARP requests.
		settings["ipv4/conf/rp_filter"] = "2"
	}
	switch {
	case r.AcceptRA != nil && *r.AcceptRA:
		settings["ipv6/conf/accept_ra"] = "1"
	case r.AcceptRA != nil, r.ARP == ARPOwn, r.Policy.Mode == RoutingSource:
		settings["ipv6/conf/accept_ra"] = "0"
	}
	return settings
}

// complete returns an error for impossible values.
func (r *Routing) complete() error {
	return errors.Join(r.Policy.check(), checkValue("arp", r.ARP, arpValues))
}

// checkValue returns an error if the value is not known. An empty value means the default.
func checkValue(key, value string, known []string) error {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	near := resource.Suggestion(value, known)
	if !strings.HasPrefix(near, "did") {
		near = "use " + strings.Join(known, ", ")
	}
	return failure.New(failure.InvalidConfig, "%q: %.40q is not a known value", key, value).Cure("%s", near)
}

func (p *RoutingPolicy) check() error {
	if err := checkValue("routing.mode", p.Mode, routingModes); err != nil {
		return err
	}
	if p.Mode != RoutingSource {
		if p.Table != nil || p.Priority != nil {
			return failure.New(failure.InvalidConfig, `"routing": "table" and "priority" are only for mode %q`, RoutingSource).
				Cure(`remove "table" and "priority", or use "mode": "source"`)
		}
		return nil
	}
	if t := p.Table; t != nil {
		switch {
		case *t < 1 || *t > math.MaxUint32:
			return failure.New(failure.InvalidConfig, `"routing.table": %d is not a table number`, *t).
				Cure("give a number from 1 to %d, or leave the key out for %d plus the rail", math.MaxUint32, firstTable)
		case *t >= unix.RT_TABLE_DEFAULT && *t <= unix.RT_TABLE_LOCAL:
			return failure.New(failure.InvalidConfig, `"routing.table": %d is a table of the kernel (default, main or local)`, *t).
				Cure("give another number, or leave the key out for %d plus the rail", firstTable)
		}
	}
	if n := p.Priority; n != nil && (*n < 1 || *n > lastPriority) {
		return failure.New(failure.InvalidConfig, `"routing.priority": %d does not precede the main table`, *n).
			Cure("give a number from 1 to %d, or leave the key out for %d", lastPriority, defaultPriority)
	}
	return nil
}
