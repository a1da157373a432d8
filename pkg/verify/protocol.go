package verify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Prober measures in the netns of one node. It answers requests one after another.
type Prober interface {
	Do(ctx context.Context, r *Request) (*Answer, error)
}

// Request is a line that is sent to a prober. Exactly one of its fields is set.
type Request struct {
	Open     *Open    `json:"open,omitempty"`
	Hello    bool     `json:"hello,omitempty"`  // send the broadcasts of each rail
	Received bool     `json:"heard,omitempty"`  // return the broadcasts that arrived
	Flows    []Flow   `json:"flows,omitempty"`  // measure these flows at the same time
	Report   []uint32 `json:"report,omitempty"` // return which probes of the flows with these IDs arrived
	// RDMA are tests that run at the same time. They are either all servers or all clients.
	RDMA  []RDMATest `json:"rdma,omitempty"`
	Alive bool       `json:"alive,omitempty"` // do nothing; without any request the prober would end
}

// Open begins a run. It must be the first request, and may be sent only once.
type Open struct {
	Token      uint64   `json:"token"`      // the key of this run, which signs its packets; packets of other runs are ignored
	Node       int      `json:"node"`       // the index of the node, which broadcasts contain
	Interfaces []string `json:"interfaces"` // the interfaces of the rails; if empty, the interfaces net1, net2, …
}

// Answer is the line that a prober sends as its answer to a request.
type Answer struct {
	Error    string        `json:"error,omitempty"`
	Opened   []Interface   `json:"opened,omitempty"`
	Received []Broadcast   `json:"heard,omitempty"`
	Echoes   []Echo        `json:"echoes,omitempty"`
	Seen     []Seen        `json:"seen,omitempty"`
	RDMA     []RDMAOutcome `json:"rdma,omitempty"`
}

// Interface is the interface of a rail on its node.
type Interface struct {
	Name      string           `json:"name"`
	MTU       int              `json:"mtu"`
	MAC       string           `json:"mac,omitempty"`
	Up        bool             `json:"up"`
	Carrier   bool             `json:"carrier"`
	Addresses []netip.AddrPort `json:"addresses,omitempty"` // with the ports of the responder; IPv4 first
	Problem   string           `json:"problem,omitempty"`   // the reason why the rail cannot be measured
	Deaf      string           `json:"deaf,omitempty"`      // the reason why broadcasts cannot be received
}

// Broadcast is a broadcast that a rail received from another rail.
type Broadcast struct {
	Rail     int `json:"rail"` // the rail that received it
	Node     int `json:"node"` // the node that sent it
	FromRail int `json:"fromRail"`
	// Repeated is true if the broadcast came from another station than the rail that signed it, or
	// arrived more than once.
	Repeated bool `json:"repeated,omitempty"`
}

// Flow is a series of probes from a rail to one address.
type Flow struct {
	ID       uint32         `json:"id"`
	Rail     int            `json:"rail"`
	From     netip.Addr     `json:"from"`
	To       netip.AddrPort `json:"to"`
	Size     int            `json:"size"` // the size of the IP packets in bytes; the packets are not fragmented
	Count    int            `json:"count"`
	Interval int            `json:"intervalMs"`
	Wait     int            `json:"waitMs"` // how long to wait for answers after the last probe
	// Route is true if the route and the neighbor are requested as well.
	Route bool `json:"route,omitempty"`
}

// Echo is the outcome of a flow. Times are in nanoseconds.
type Echo struct {
	ID      uint32   `json:"id"`
	Samples []Sample `json:"samples"` // one for each probe
	Error   string   `json:"error,omitempty"`
	Route   *Route   `json:"route,omitempty"`
}

// Sample is one probe. Each of its times is measured with one clock, so the clocks of two nodes are
// never compared.
type Sample struct {
	RTT int64 `json:"rtt"` // from the program's sending until the answer arrived at the interface; 0 without an answer
	Out int64 `json:"out"` // from the program's sending until the probe left the interface; 0 if the kernel did not report that
}

// Route describes how a node reaches an address.
type Route struct {
	Interface string `json:"interface,omitempty"`
	NextHop   string `json:"nextHop,omitempty"`
	MAC       string `json:"mac,omitempty"`     // the MAC of the next hop, "" if unknown
	Failed    bool   `json:"failed,omitempty"`  // true if the next hop does not answer ARP or neighbor discovery
	Problem   string `json:"problem,omitempty"` // the reason why there is no route
}

// Seen has the probes of a flow that arrived at a responder.
type Seen struct {
	ID    uint32          `json:"id"`
	Holds map[uint32]Hold `json:"holds"` // the key is the number of the probe
}

// Hold has the times that an answer took in its node, in nanoseconds.
type Hold struct {
	Program int64 `json:"program"` // from the arrival of the probe at the interface until the responder answered; shows how busy the machine is
	Out     int64 `json:"out"`     // from then until the answer left the interface; 0 if the kernel did not report that
}

// MaxReceived is the maximum number of broadcasts in an answer.
const MaxReceived = 1 << 18

// These are the limits of answers. They are needed because a prober may run in a pod of a hostile
// user.
const (
	maxRails           = 256
	maxHolds           = 10_000  // the maximum for one flow; a flow has as many probes
	maxText            = 4 << 10 // the maximum length of a text, in bytes
	maxName            = 256     // the maximum length of a name, in bytes
	maxTime            = int64(time.Hour)
	maxMTU             = 1 << 20
	maxSocketAddresses = 64 // the maximum number of addresses of an interface
)

// check returns an error if the answer does not fit the request q, or if it has values that no
// prober can have measured.
func (a *Answer) check(q *Request) error {
	if len(a.Opened) > maxRails || len(a.Received) > MaxReceived {
		return errors.New("the prober's answer is too long")
	}
	for i := range a.Opened {
		if err := a.Opened[i].check(); err != nil {
			return fmt.Errorf("the prober's interface %d: %w", i, err)
		}
	}
	if q.Open != nil && !a.opens(q.Open.Interfaces) {
		return errors.New("the prober opened other interfaces than it was asked for")
	}
	flows := map[uint32]int{} // the number of probes of each flow
	for _, f := range q.Flows {
		flows[f.ID] = f.Count
	}
	for i := range a.Echoes {
		e := &a.Echoes[i]
		count, asked := flows[e.ID]
		if !asked {
			return fmt.Errorf("the prober answers for flow %d, which it was not asked for", e.ID)
		}
		delete(flows, e.ID)
		if err := e.check(count); err != nil {
			return fmt.Errorf("the prober's flow %d: %w", e.ID, err)
		}
	}
	if err := a.checkRDMA(q.RDMA); err != nil {
		return err
	}
	reports := map[uint32]bool{}
	for _, id := range q.Report {
		reports[id] = true
	}
	for i := range a.Seen {
		s := &a.Seen[i]
		if !reports[s.ID] || len(s.Holds) > maxHolds {
			return fmt.Errorf("the prober reports %d probes of flow %d, which it was not asked for", len(s.Holds), s.ID)
		}
		delete(reports, s.ID)
		for _, h := range s.Holds {
			if !inTime(h.Program) || !inTime(h.Out) {
				return fmt.Errorf("the prober's report of flow %d has impossible times", s.ID)
			}
		}
	}
	return nil
}

// opens reports whether the answer has the interfaces with these names. Without names, any
// interfaces are right.
func (a *Answer) opens(names []string) bool {
	return len(names) == 0 || slices.EqualFunc(a.Opened, names, func(i Interface, name string) bool { return i.Name == name })
}

func (a *Answer) checkRDMA(asked []RDMATest) error {
	tests := map[uint32]RDMATest{}
	for _, t := range asked {
		tests[t.ID] = t
	}
	for i := range a.RDMA {
		t, ok := tests[a.RDMA[i].ID]
		if !ok {
			return fmt.Errorf("the prober answers for RDMA test %d, which it was not asked for", a.RDMA[i].ID)
		}
		delete(tests, t.ID)
		if err := a.RDMA[i].check(t.To.IsValid()); err != nil {
			return err
		}
	}
	return nil
}

func inTime(ns int64) bool { return ns >= 0 && ns <= maxTime }

func (i *Interface) check() error {
	if len(i.Name) > maxName || len(i.MAC) > maxName || len(i.Problem) > maxText || len(i.Deaf) > maxText {
		return errors.New("a text that is too long")
	}
	if i.MTU < 0 || i.MTU > maxMTU || len(i.Addresses) > maxSocketAddresses {
		return errors.New("an impossible MTU, or too many addresses")
	}
	for _, a := range i.Addresses {
		if ip := a.Addr(); !a.IsValid() || a.Port() == 0 || ip.IsUnspecified() || ip.IsMulticast() {
			return errors.New("an address that no interface can have")
		}
	}
	return nil
}

func (e *Echo) check(count int) error {
	if len(e.Samples) != count && (e.Error == "" || len(e.Samples) > 0) {
		return fmt.Errorf("%d samples, and %d probes", len(e.Samples), count)
	}
	for _, s := range e.Samples {
		if !inTime(s.RTT) || !inTime(s.Out) {
			return errors.New("impossible times")
		}
	}
	if r := e.Route; len(e.Error) > maxText || r != nil && (len(r.Interface) > maxName || len(r.NextHop) > maxName || len(r.MAC) > maxName || len(r.Problem) > maxText) {
		return errors.New("a text that is too long")
	}
	return nil
}
