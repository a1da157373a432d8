package verify

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Node is a node of a run.
type Node struct {
	Name   string
	Prober Prober
	// Missing has, by the number of the rail, the reason why a rail cannot be measured. These
	// reasons are not defects of the rail.
	Missing map[int]string
	// Broken has, by the number of the rail, the reason why the prober could not get a rail. These
	// reasons are defects.
	Broken map[int]string
}

// Options describe how a run measures. In the zero value, each number has its default.
type Options struct {
	Interfaces []string // the interfaces of the rails on each node; if empty, net1, net2, …
	Fabric     string   // an element of [Fabrics], or ""
	Version    string   // the version of the program
	Thresholds Thresholds

	// Brief is true if only routes, neighbors and broadcasts are judged, and not losses, round
	// trips and packets of the MTU.
	Brief    bool
	Count    int           // the number of short probes on each path; default 100
	Full     int           // the number of probes of the MTU on each path; default 10
	RDMA     int           // [RDMAPing] or [RDMABandwidth]; 0 for none
	Interval time.Duration // the time between two probes; default 5 ms, at least 1 ms
	Wait     time.Duration // how long to wait for answers after the last probe; default 500 ms

	// Done, if it is not nil, is called after each round.
	Done func(round, all int)
}

// repeats is how often a path that looks bad is measured again. lateRepeats is how often a path is
// measured again whose probes were answered too late by a busy machine.
const (
	repeats     = 2
	lateRepeats = 4
)

// briefCount is the number of probes that are enough to see the route and the neighbor.
const briefCount = 3

// crossCount is the number of probes that test whether rails reach each other.
const crossCount = 3

// smallSize is the size of the IP packets of short probes, in bytes.
const smallSize = 96

func (o Options) filled() Options {
	if o.Brief {
		o.Count = briefCount
	}
	o.Count, o.Full = cmp.Or(o.Count, 100), cmp.Or(o.Full, 10)
	o.Interval, o.Wait = max(cmp.Or(o.Interval, 5*time.Millisecond), time.Millisecond), cmp.Or(o.Wait, 500*time.Millisecond)
	o.Thresholds = o.Thresholds.filled()
	return o
}

// round returns how long a round may take.
func (o Options) round() time.Duration {
	return time.Duration(o.Count+o.Full)*o.Interval + 2*o.Wait
}

// run is the state of a run.
type run struct {
	Options
	nodes  []Node
	opened [][]Interface
	plan   *Plan
	result *Result

	mu    sync.Mutex
	flows uint32
	paths map[Way]*Path
}

// Run measures the paths between the nodes and returns the result with its findings. The names of
// the nodes must be different. Run returns an error if fewer than two nodes can be measured, or if
// ctx ends.
func Run(ctx context.Context, nodes []Node, o Options) (*Result, error) {
	r := &run{Options: o.filled(), nodes: nodes, opened: make([][]Interface, len(nodes)), paths: map[Way]*Path{}}
	start := time.Now()
	r.result = &Result{Schema: ResultSchema, Taken: start.UTC().Truncate(time.Second), Version: o.Version, Fabric: o.Fabric}
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	r.broadcast(ctx)
	r.rounds(ctx, func(Way) bool { return true })
	r.fill()
	r.judge()
	// Paths that look bad are measured again, because on a busy machine this may be chance.
	for i := range lateRepeats {
		again := map[End]bool{}
		if i < repeats {
			again = r.result.suspects()
		}
		late := r.late()
		if len(again)+len(late) == 0 || ctx.Err() != nil {
			break
		}
		r.rounds(ctx, func(w Way) bool {
			return w.Expect == Must && (again[r.end(w.From, w.FromRail)] || again[r.end(w.To, w.ToRail)] || late[w])
		})
		r.fill()
		r.judge()
	}
	r.giveUp()
	r.result.Seconds = time.Since(start).Round(time.Millisecond).Seconds()
	return r.result, ctx.Err()
}

// late returns the ways on which most probes were answered too late to count.
func (r *run) late() map[Way]bool {
	ways := map[Way]bool{}
	for w, p := range r.paths {
		if p.Error == "" && (2*p.Small.Sent < r.Count || !r.Brief && 2*p.Full.Sent < r.Full) {
			ways[w] = true
		}
	}
	return ways
}

// giveUp marks ways that are still late after all repeats as unknown, because they have too few
// probes to be judged.
func (r *run) giveUp() {
	late := r.late()
	if len(late) == 0 {
		return
	}
	for w := range late {
		p := r.paths[w]
		if 2*p.Small.Sent < r.Count {
			p.Error = "a busy machine answers most probes too late"
			continue
		}
		p.Full.Sent, p.Full.Received, p.Full.Lost = 0, 0, Loss{}
		r.unknown("%s to %s: a busy machine answers most packets of the MTU too late", p.From, p.To)
	}
	r.fill()
	r.judge()
}

func (r *run) judge() {
	r.result.Brief = r.Brief
	r.result.Analyze(r.Thresholds)
}

// do sends a request to the prober of a node, and returns the checked answer.
func (r *run) do(ctx context.Context, node int, q *Request) (*Answer, error) {
	a, err := r.nodes[node].Prober.Do(ctx, q)
	if err == nil {
		err = a.check(q)
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (r *run) end(node, rail int) End { return End{r.nodes[node].Name, rail} }

// each calls f for all nodes at the same time.
func (r *run) each(f func(i int)) {
	var all sync.WaitGroup
	for i := range r.nodes {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// unknown notes something that could not be measured.
func (r *run) unknown(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Unknown = append(r.result.Unknown, fmt.Sprintf(format, args...))
}

// open starts the responders and makes the plan.
func (r *run) open(ctx context.Context) error {
	var token [8]byte
	_, _ = rand.Read(token[:]) // rand.Read never fails
	errs := make([]error, len(r.nodes))
	r.each(func(i int) {
		a, err := r.do(ctx, i, &Request{Open: &Open{Token: binary.BigEndian.Uint64(token[:]), Node: i, Interfaces: r.Interfaces}})
		switch {
		case err != nil:
			errs[i] = fmt.Errorf("%s: %w", r.nodes[i].Name, err)
		case len(a.Opened) == 0:
			errs[i] = fmt.Errorf("%s: it has no interface net1, net2, …; name its rails with --interfaces", r.nodes[i].Name)
		default:
			r.opened[i] = a.Opened
		}
	})
	rails, usable := 0, 0
	for i := range r.nodes {
		rails = max(rails, len(r.opened[i]))
		if errs[i] == nil {
			usable++
		}
	}
	if usable < 2 {
		return cmp.Or(errors.Join(errs...), errors.New("a rail has two ends; name two nodes or more"))
	}
	for _, err := range errs {
		if err != nil {
			r.unknown("%v", err)
		}
	}
	r.claims()
	r.plan = Schedule(len(r.nodes), rails, r.Fabric)
	r.result.Rails, r.result.Rounds = rails, len(r.plan.Rounds)
	for i, n := range r.nodes {
		r.result.Nodes = append(r.result.Nodes, n.Name)
		for k := range rails {
			if why := n.Missing[k]; why != "" {
				r.miss(i, k, why)
				continue
			}
			if why := n.Broken[k]; why != "" && k < len(r.opened[i]) {
				r.opened[i][k].Problem = why
			}
			state := EndState{End: r.end(i, k), Interface: Interface{Problem: "the node has fewer rails than others"}}
			switch {
			case k < len(r.opened[i]):
				state.Interface = r.opened[i][k]
			case n.Broken[k] != "":
				state.Interface.Problem = n.Broken[k]
			case errs[i] != nil:
				continue
			}
			r.result.Ends = append(r.result.Ends, state)
		}
	}
	return nil
}

// claims finds addresses that two nodes have on the same rail. Packets to such an address reach
// only one of the two nodes, so the results would be wrong for the other node.
func (r *run) claims() {
	type claim struct {
		rail    int
		address netip.Addr
	}
	nodes := map[claim][]int{}
	for i := range r.opened {
		for k := range r.opened[i] {
			for _, a := range r.opened[i][k].Addresses {
				c := claim{k, a.Addr()}
				if !slices.Contains(nodes[c], i) {
					nodes[c] = append(nodes[c], i)
				}
			}
		}
	}
	for i := range r.opened {
		for k := range r.opened[i] {
			iface := &r.opened[i][k]
			for _, a := range iface.Addresses {
				for _, other := range nodes[claim{k, a.Addr()}] {
					if other != i {
						iface.Problem = cmp.Or(iface.Problem, fmt.Sprintf("its address %s is also the address of %s", a.Addr(), r.end(other, k)))
					}
				}
			}
		}
	}
}

// miss notes that a rail of a node cannot be measured.
func (r *run) miss(node, rail int, why string) {
	state := EndState{End: r.end(node, rail), Interface: Interface{Problem: why}, Unknown: why}
	if rail < len(r.opened[node]) {
		state.Interface.Name = r.opened[node][rail].Name
		r.opened[node][rail] = state.Interface
	}
	r.result.Ends = append(r.result.Ends, state)
	r.unknown("%s: %s", state.End, why)
}

// broadcast lets all rails send broadcasts, and notes which ends receive them. All rails send at
// the same time, because each rail sends only three packets.
func (r *run) broadcast(ctx context.Context) {
	ask := func(request *Request, use func(i int, a *Answer)) {
		r.each(func(i int) {
			if r.opened[i] == nil {
				return
			}
			if a, err := r.do(ctx, i, request); err != nil {
				r.unknown("%s: broadcasts: %v", r.nodes[i].Name, err)
			} else {
				use(i, a)
			}
		})
	}
	ask(&Request{Hello: true}, func(int, *Answer) {})
	ask(&Request{Received: true}, func(i int, a *Answer) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, h := range a.Received {
			if h.Node == i || h.Node < 0 || h.Node >= len(r.nodes) || h.Rail < 0 || h.Rail >= len(r.opened[i]) || h.FromRail < 0 || h.FromRail >= r.result.Rails {
				continue
			}
			sender := r.result.end(r.end(h.Node, h.FromRail))
			switch {
			case sender == nil:
			case h.Repeated:
				r.result.Unknown = append(r.result.Unknown, fmt.Sprintf(
					"%s: broadcasts of %s arrive from another station, or twice: something in the network repeats them, which proves no cable", r.end(i, h.Rail), sender.End))
			default:
				sender.ReceivedOn = append(sender.ReceivedOn, r.end(i, h.Rail))
			}
		}
	})
	for i := range r.result.Ends {
		e := &r.result.Ends[i]
		slices.SortFunc(e.ReceivedOn, r.result.compare)
		e.ReceivedOn = slices.Compact(e.ReceivedOn)
	}
}

// rounds measures the ways for which wanted returns true, round by round.
func (r *run) rounds(ctx context.Context, wanted func(Way) bool) {
	for k, pairs := range r.plan.Rounds {
		var all sync.WaitGroup
		for _, pair := range pairs {
			if r.opened[pair.A] == nil || r.opened[pair.B] == nil {
				continue
			}
			ways := slices.DeleteFunc(r.plan.Ways(pair), func(w Way) bool { return !wanted(w) })
			if len(ways) > 0 && ctx.Err() == nil {
				all.Go(func() { r.pair(ctx, pair, ways) })
			}
		}
		all.Wait()
		if r.Done != nil {
			r.Done(k+1, len(r.plan.Rounds))
		}
	}
}

// job is a flow, and the place for its result.
type job struct {
	Flow
	way  Way
	path *Path // nil if the flow is between different rails
}

// pair measures the ways between two nodes, first with short packets and then with full packets.
func (r *run) pair(ctx context.Context, pair Pair, ways []Way) {
	var small, full []*job
	for _, w := range ways {
		from, to, err := r.between(w)
		if w.Expect == MustNot {
			if err == nil {
				small = append(small, r.job(w, nil, from, to, smallSize, crossCount))
			}
			continue
		}
		p := &Path{From: r.end(w.From, w.FromRail), To: r.end(w.To, w.ToRail)}
		if err != nil {
			p.Error = err.Error()
			r.keep(w, p)
			continue
		}
		j := r.job(w, p, from, to, smallSize, r.Count)
		j.Route = true
		small = append(small, j)
		if !r.Brief {
			full = append(full, r.job(w, p, from, to, r.opened[w.From][w.FromRail].MTU, r.Full))
		}
	}
	r.measure(ctx, pair, small)
	r.measure(ctx, pair, full)
	r.rdma(ctx, pair, small)
	for _, j := range small {
		if j.path != nil {
			r.keep(j.way, j.path)
		}
	}
}

func (r *run) job(w Way, p *Path, from netip.Addr, to netip.AddrPort, size, count int) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flows++
	return &job{way: w, path: p, Flow: Flow{
		ID: r.flows, Rail: w.FromRail, From: from, To: to, Size: size, Count: count,
		Interval: int(r.Interval.Milliseconds()), Wait: int(r.Wait.Milliseconds()),
	}}
}

// between returns the two addresses of a way. Both have the same family.
func (r *run) between(w Way) (netip.Addr, netip.AddrPort, error) {
	ends := [][]Interface{r.opened[w.From], r.opened[w.To]}
	for k, rail := range []int{w.FromRail, w.ToRail} {
		if rail >= len(ends[k]) {
			return netip.Addr{}, netip.AddrPort{}, errors.New("a node has fewer rails than others")
		}
		if i := ends[k][rail]; i.Problem != "" {
			return netip.Addr{}, netip.AddrPort{}, fmt.Errorf("%s: %s", i.Name, i.Problem)
		}
	}
	for _, from := range ends[0][w.FromRail].Addresses {
		for _, to := range ends[1][w.ToRail].Addresses {
			if from.Addr().Is4() == to.Addr().Is4() {
				return from.Addr(), to, nil
			}
		}
	}
	return netip.Addr{}, netip.AddrPort{}, errors.New("the ends have no addresses of the same family")
}

// measure runs the flows of both nodes at the same time. Then it asks each node which probes
// arrived.
func (r *run) measure(ctx context.Context, pair Pair, jobs []*job) {
	nodes := []int{pair.A, pair.B}
	byID := map[uint32]*job{}
	sent, received := map[int][]Flow{}, map[int][]uint32{}
	for _, j := range jobs {
		byID[j.ID] = j
		sent[j.way.From] = append(sent[j.way.From], j.Flow)
		received[j.way.To] = append(received[j.way.To], j.ID)
	}
	echoes, seen := map[uint32]*Echo{}, map[uint32]*Seen{}
	ask := func(request func(node int) *Request, use func(a *Answer)) {
		var both sync.WaitGroup
		for _, node := range nodes {
			q := request(node)
			if q == nil {
				continue
			}
			both.Go(func() {
				a, err := r.do(ctx, node, q)
				if err != nil {
					r.unknown("%s: %v", r.nodes[node].Name, err)
					return
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				use(a)
			})
		}
		both.Wait()
	}
	ask(func(node int) *Request {
		if len(sent[node]) == 0 {
			return nil
		}
		return &Request{Flows: sent[node]}
	}, func(a *Answer) {
		for i := range a.Echoes {
			echoes[a.Echoes[i].ID] = &a.Echoes[i]
		}
	})
	ask(func(node int) *Request {
		if len(received[node]) == 0 {
			return nil
		}
		return &Request{Report: received[node]}
	}, func(a *Answer) {
		for i := range a.Seen {
			seen[a.Seen[i].ID] = &a.Seen[i]
		}
	})
	for id, j := range byID {
		r.note(j, echoes[id], seen[id])
	}
}

// note writes the outcome of a flow to the result.
func (r *run) note(j *job, e *Echo, seen *Seen) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.path == nil {
		r.result.Tested++
		if seen != nil && len(seen.Holds) > 0 {
			r.result.Crossed = append(r.result.Crossed, Crossing{r.end(j.way.From, j.way.FromRail), r.end(j.way.To, j.way.ToRail)})
		}
		return
	}
	switch {
	case e == nil:
		j.path.Error = cmp.Or(j.path.Error, "the prober did not answer")
	case j.Size == smallSize && j.Flow.Route:
		j.path.Small, j.path.Route = traffic(j.Size, e, seen), e.Route
	default:
		j.path.Full = traffic(j.Size, e, seen)
	}
	if e != nil && e.Error != "" && j.Flow.Route {
		j.path.Error = cmp.Or(j.path.Error, e.Error)
	}
}

// keep adds a path to the result. If the path was measured before, keep combines the two
// measurements.
func (r *run) keep(w Way, p *Path) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.paths[w]; old != nil {
		p.Small, p.Full = old.Small.and(p.Small), old.Full.and(p.Full)
		p.RDMA = old.RDMA.and(p.RDMA)
		p.Error = cmp.Or(p.Error, old.Error)
	}
	r.paths[w] = p
}

// and combines two measurements: it returns the losses of both, and the times of the faster one.
func (t Traffic) and(o Traffic) Traffic {
	sum := t
	if o.Received > 0 && (t.Received == 0 || o.RTT < t.RTT) {
		sum.RTT, sum.Times = o.RTT, o.Times
	}
	sum.Size = max(t.Size, o.Size)
	sum.Late = t.Late + o.Late
	sum.Sent, sum.Received = t.Sent+o.Sent, t.Received+o.Received
	sum.Lost = Loss{t.Lost.From + o.Lost.From, t.Lost.Forward + o.Lost.Forward, t.Lost.To + o.Lost.To, t.Lost.Back + o.Lost.Back}
	return sum
}

// fill writes the paths to the result, sorted by nodes and rails.
func (r *run) fill() {
	r.result.Paths = r.result.Paths[:0]
	for _, p := range r.paths {
		r.result.Paths = append(r.result.Paths, *p)
	}
	slices.SortFunc(r.result.Paths, func(a, b Path) int {
		return cmp.Or(r.result.compare(a.From, b.From), r.result.compare(a.To, b.To))
	})
	slices.SortFunc(r.result.Crossed, func(a, b Crossing) int {
		return cmp.Or(r.result.compare(a.From, b.From), r.result.compare(a.To, b.To))
	})
	slices.Sort(r.result.Unknown)
	r.result.Unknown = slices.Compact(r.result.Unknown)
}

// compare compares two ends by the order of their nodes, and then by their rails.
func (r *Result) compare(a, b End) int {
	return cmp.Or(cmp.Compare(slices.Index(r.Nodes, a.Node), slices.Index(r.Nodes, b.Node)), cmp.Compare(a.Rail, b.Rail))
}
