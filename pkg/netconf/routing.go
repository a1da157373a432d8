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
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// The values of the key "routing.mode".
const (
	RoutingNone   = "none"   // the routes of the IPAM plugin are in the main table
	RoutingMain   = "main"   // the same, for authors who want to say so
	RoutingSource = "source" // the interface has a table of its own, for packets from its addresses
)

// The values of the key "arp".
const (
	ARPKernel = "kernel" // the interface answers and filters as the pod netns has it
	ARPOwn    = "own"    // the interface answers for its own addresses only
)

const (
	// firstTable is the routing table of rail 0, unless the network names a table.
	firstTable = 1000
	// defaultPriority is the priority of the rules, unless the network sets one. It is
	// before the main table (32766), and behind what plugins and programs of pods use
	// most: priorities below 1000.
	defaultPriority = 20000
	// lastPriority is the largest priority of the rules. There is a second rule behind
	// it, and both precede the main table.
	lastPriority = 32764
)

// tableCure is what an author can do whose NIC has no rail.
const tableCure = `or set "table" in "routing" to the number of a table`

// Routing has the keys of host-device and macvlan about the interface's routes, and about
// its answers to neighbors.
type Routing struct {
	Policy RoutingPolicy `json:"routing"`
	// ARP is [ARPKernel] (also when empty) or [ARPOwn].
	ARP string `json:"arp"`
	// AcceptRA: the interface accepts router advertisements. nil means no for a network
	// with mode source or arp own, and else the setting of the pod netns.
	AcceptRA *bool `json:"acceptRA"`
}

// RoutingPolicy is the key "routing".
type RoutingPolicy struct {
	// Mode is [RoutingNone] (also when empty), [RoutingMain] or [RoutingSource].
	Mode string `json:"mode"`
	// Table is the interface's table in mode source, nil for that of its rail.
	Table *int `json:"table"`
	// Priority is that of the rules in mode source, nil for the default.
	Priority *int `json:"priority"`
}

var (
	routingKeys  = []string{"mode", "table", "priority"}
	routingModes = []string{RoutingSource, RoutingMain, RoutingNone}
	arpValues    = []string{ARPKernel, ARPOwn}
)

// UnmarshalJSON implements [json.Unmarshaler]. It refuses unknown keys: without a key that
// is misspelled, packets could leave by another NIC.
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
	return decode(data, (*plain)(p), `"routing"`)
}

// RouteTable returns the table of the interface in mode source, and reports whether there
// is one: the network names it, or the rail has it. rail is nil if it is unknown.
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

// Sysctls returns the settings of the interface that the keys ask for, by their names in
// [sysctl.Set]. The kernel uses the larger of an interface's value and that of
// "all" (IN_DEV_MAXCONF), so those of the interface suffice.
func (r *Routing) Sysctls() map[string]string {
	settings := map[string]string{}
	if r.ARP == ARPOwn {
		settings["ipv4/conf/arp_ignore"] = "1"   // answer for addresses of this interface
		settings["ipv4/conf/arp_announce"] = "2" // ask with an address of this interface
		// Loose: where several interfaces have the same prefix, the strict filter drops
		// what arrives by all but one of them, also ARP requests.
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

// complete refuses impossible values.
func (r *Routing) complete() error {
	return errors.Join(r.Policy.check(), checkValue("arp", r.ARP, arpValues))
}

// checkValue refuses a value that is not known. Empty is the default.
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
			return failure.New(failure.InvalidConfig, `"routing": only mode %q has a table and rules of its own`, RoutingSource).
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
