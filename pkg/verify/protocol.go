package verify

import (
	"context"
	"net/netip"
)

// Prober measures in the netns of one node. It answers one request after another.
type Prober interface {
	Do(ctx context.Context, r *Request) (*Answer, error)
}

// Request is one line to a prober. Exactly one field is set.
type Request struct {
	Open   *Open    `json:"open,omitempty"`
	Hello  bool     `json:"hello,omitempty"`  // broadcast by each rail
	Heard  bool     `json:"heard,omitempty"`  // whose broadcasts arrived
	Flows  []Flow   `json:"flows,omitempty"`  // measure all at the same time
	Report []uint32 `json:"report,omitempty"` // what arrived of flows, by their IDs
}

// Open begins a run. It comes first, and once.
type Open struct {
	Token      uint64   `json:"token"`      // of this run; packets without it are ignored
	Node       int      `json:"node"`       // index of the node in broadcasts
	Interfaces []string `json:"interfaces"` // the rails; those named net1, net2, … if empty
}

// Answer is a prober's line for a request.
type Answer struct {
	Error  string      `json:"error,omitempty"`
	Opened []Interface `json:"opened,omitempty"`
	Heard  []Heard     `json:"heard,omitempty"`
	Echoes []Echo      `json:"echoes,omitempty"`
	Seen   []Seen      `json:"seen,omitempty"`
}

// Interface is a rail as its node has it.
type Interface struct {
	Name      string           `json:"name"`
	MTU       int              `json:"mtu"`
	MAC       string           `json:"mac,omitempty"`
	Up        bool             `json:"up"`
	Carrier   bool             `json:"carrier"`
	Addresses []netip.AddrPort `json:"addresses,omitempty"` // with the ports of the responder; IPv4 first
	Problem   string           `json:"problem,omitempty"`   // why it cannot be measured
	Deaf      string           `json:"deaf,omitempty"`      // why broadcasts are not heard
}

// Heard is a broadcast of another rail that arrived.
type Heard struct {
	Rail     int `json:"rail"` // where it arrived
	Node     int `json:"node"` // who sent it
	FromRail int `json:"fromRail"`
}

// Flow is probes from a rail to one address.
type Flow struct {
	ID       uint32         `json:"id"`
	Rail     int            `json:"rail"`
	From     netip.Addr     `json:"from"`
	To       netip.AddrPort `json:"to"`
	Size     int            `json:"size"` // of the IP packets, in bytes, which are not fragmented
	Count    int            `json:"count"`
	Interval int            `json:"intervalMs"`
	Wait     int            `json:"waitMs"` // for answers after the last probe
	// Route asks for the route and the neighbor as well.
	Route bool `json:"route,omitempty"`
}

// Echo is what came of a flow. Times are in nanoseconds.
type Echo struct {
	ID      uint32   `json:"id"`
	Samples []Sample `json:"samples"` // one for each probe
	Error   string   `json:"error,omitempty"`
	Route   *Route   `json:"route,omitempty"`
}

// Sample is one probe. Its times are by one clock each: no clocks are compared.
type Sample struct {
	RTT int64 `json:"rtt"` // from the program to the answer's arrival at the interface; 0 without an answer
	Out int64 `json:"out"` // from the program to the interface; 0 if the kernel did not report that it left
}

// Route is how a node reaches an address.
type Route struct {
	Interface string `json:"interface,omitempty"`
	NextHop   string `json:"nextHop,omitempty"`
	MAC       string `json:"mac,omitempty"`     // of the next hop, "" if unknown
	Failed    bool   `json:"failed,omitempty"`  // the next hop does not answer ARP or neighbor discovery
	Problem   string `json:"problem,omitempty"` // why there is no route
}

// Seen is what a responder saw of a flow.
type Seen struct {
	ID    uint32          `json:"id"`
	Holds map[uint32]Hold `json:"holds"` // by the numbers of the probes that arrived
}

// Hold is the time of an answer in its node, in nanoseconds.
type Hold struct {
	Program int64 `json:"program"` // from the probe's arrival at the interface until the responder answered: how busy the machine is
	Out     int64 `json:"out"`     // until the answer left the interface; 0 if the kernel did not report that
}
