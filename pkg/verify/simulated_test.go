package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
)

// fabric is a simulated cluster. Its probers answer like real probers, with the noise of real
// networks and with planted defects.
type fabric struct {
	nodes, rails int
	noise        *rand.Rand
	mu           *sync.Mutex
	defects      map[End]defect
	// wired has the rail of the fabric to which the cable of an end leads. If an end is not in the
	// map, its cable leads to the rail with the end's number.
	wired   map[End]int
	leaks   bool // all rails are one network
	unknown bool // the kernels report no times of leaving
	stalls  int  // of so many flows, the first ones, all probes are answered too late
	arrived map[uint32]map[uint32]Hold
}

// defect describes what is wrong with an end.
type defect struct {
	mtu       int     // of the interface; 0 is 9000
	portMTU   int     // of the switch's port
	loss      float64 // of packets that leave, in the node
	cable     float64 // of packets in both directions, in the fabric
	delay     float64 // of packets that leave, in the node, µs
	cableWait float64 // of packets in both directions, in the fabric, µs
	problem   string
	noVerbs   bool    // it has no RDMA device
	half      float64 // the share of bandwidth that is lost
	slowRDMA  float64 // of messages by RDMA, µs
	leaves    string  // the interface by which packets leave
}

func newFabric(nodes, rails int, seed uint64) *fabric {
	return &fabric{nodes: nodes, rails: rails, noise: rand.New(rand.NewPCG(seed, 1)), mu: &sync.Mutex{}, defects: map[End]defect{}, wired: map[End]int{}, arrived: map[uint32]map[uint32]Hold{}}
}

func (f *fabric) name(i int) string { return fmt.Sprintf("n%d", i) }

// run verifies the fabric without waiting for real time to pass.
func (f *fabric) run(o Options) (*Result, error) {
	var nodes []Node
	for i := range f.nodes {
		nodes = append(nodes, Node{Name: f.name(i), Prober: &simulated{f, i}})
	}
	return Run(context.Background(), nodes, o)
}

// simulated is the prober of one node.
type simulated struct {
	*fabric
	node int
}

func address(node, rail int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(rail), byte(node), 1}), 7)
}

func (s *simulated) mtu(e End) int {
	if m := s.defects[e].mtu; m != 0 {
		return m
	}
	return 9000
}

func (s *simulated) cable(e End) int {
	if s.leaks {
		return 0
	}
	if k, ok := s.wired[e]; ok {
		return k
	}
	return e.Rail
}

func (s *simulated) Do(_ context.Context, r *Request) (*Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &Answer{}
	switch {
	case r.Open != nil:
		for k := range s.rails {
			e := End{s.name(s.node), k}
			a.Opened = append(a.Opened, Interface{
				Name: fmt.Sprintf("net%d", k+1), MTU: s.mtu(e), MAC: fmt.Sprintf("02:00:00:00:%02x:%02x", s.node, k),
				Up: true, Carrier: true, Addresses: []netip.AddrPort{address(s.node, k)}, Problem: s.defects[e].problem,
			})
		}
	case r.Received:
		for k := range s.rails {
			for m := range s.nodes {
				for j := range s.rails {
					if s.defects[End{s.name(m), j}].problem == "" && s.cable(End{s.name(m), j}) == s.cable(End{s.name(s.node), k}) {
						a.Received = append(a.Received, Broadcast{Rail: k, Node: m, FromRail: j})
					}
				}
			}
		}
	case r.Flows != nil:
		for _, f := range r.Flows {
			a.Echoes = append(a.Echoes, s.flow(f))
		}
	case r.RDMA != nil:
		for _, t := range r.RDMA {
			a.RDMA = append(a.RDMA, s.verbs(t))
		}
	case r.Report != nil:
		for _, id := range r.Report {
			a.Seen = append(a.Seen, Seen{id, s.arrived[id]})
		}
	}
	return a, nil
}

// flow simulates the probes of a flow. Some round trips are much longer than the others, and one
// probe in ten thousand is lost.
func (s *simulated) flow(f Flow) Echo {
	ip := f.To.Addr().As4()
	from, to := End{s.name(s.node), f.Rail}, End{s.name(int(ip[2])), int(ip[1])}
	a, b := s.defects[from], s.defects[to]
	leaves := a.leaves
	if leaves == "" {
		leaves = fmt.Sprintf("net%d", f.Rail+1)
	}
	e := Echo{ID: f.ID, Route: &Route{Interface: leaves, NextHop: f.To.Addr().String(), MAC: fmt.Sprintf("02:00:00:00:%02x:%02x", ip[2], ip[1])}}
	s.arrived[f.ID] = map[uint32]Hold{}
	if s.stalls--; s.stalls >= 0 {
		for i := range f.Count {
			s.arrived[f.ID][uint32(i)] = Hold{Program: 2 * late}
		}
		e.Samples = make([]Sample, f.Count)
		return e
	}
	for i := range f.Count {
		host := func(d defect) float64 { return 5 + 3*s.noise.ExpFloat64() + d.delay }
		out, hold := host(a), host(b)
		net := 20 + 10*s.noise.ExpFloat64() + 2*(a.cableWait+b.cableWait)
		lost := func(p float64) bool { return s.noise.Float64() < p }
		reaches := s.cable(from) == s.cable(to)
		for _, end := range []End{from, to} {
			d := s.defects[end]
			reaches = reaches && f.Size <= s.mtu(end) && (d.portMTU == 0 || f.Size <= d.portMTU)
		}
		var sample Sample
		left := !lost(a.loss)
		if left && !s.unknown {
			sample.Out = int64(1000 * out)
		}
		if left && reaches && !lost(a.cable+b.cable+5e-5) {
			program := int64(2e5 * s.noise.ExpFloat64()) // a busy machine
			s.arrived[f.ID][uint32(i)] = Hold{Program: program}
			if !lost(b.loss) {
				if !s.unknown {
					s.arrived[f.ID][uint32(i)] = Hold{program, int64(1000 * hold)}
				}
				if !lost(a.cable + b.cable + 5e-5) {
					sample.RTT = int64(1000*(out+net+hold)) + program
				}
			}
		}
		e.Samples = append(e.Samples, sample)
	}
	return e
}

// verbs simulates a program of perftest.
func (s *simulated) verbs(t RDMATest) RDMAOutcome {
	here := s.defects[End{s.name(s.node), t.Rail}]
	if here.noVerbs {
		return RDMAOutcome{ID: t.ID, Error: "it has no RDMA device", Own: true}
	}
	if !t.To.IsValid() {
		return RDMAOutcome{ID: t.ID}
	}
	ip := t.To.As4()
	there := s.defects[End{s.name(int(ip[2])), int(ip[1])}]
	if t.Program == rdmaBandwidth {
		return RDMAOutcome{ID: t.ID, Value: (390 + s.noise.NormFloat64()) * (1 - max(here.half, there.half))}
	}
	return RDMAOutcome{ID: t.ID, Value: 2.5 + 0.1*s.noise.ExpFloat64() + here.slowRDMA + there.slowRDMA}
}
