package verify

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Thresholds are the limits above which a value is a defect. In the zero value, each limit has its
// default.
type Thresholds struct {
	Loss     float64 // the share of short packets that a path may lose in both directions together; default 0.01
	Relative float64 // how much longer than the median a round trip may take, as a share of the median; default 0.5
	Micros   float64 // a round trip must also be at least this much longer, in µs; default 100
}

func (t Thresholds) filled() Thresholds {
	return Thresholds{cmp.Or(t.Loss, 0.01), cmp.Or(t.Relative, 0.5), cmp.Or(t.Micros, 100)}
}

// analysis is a result while it is judged.
type analysis struct {
	*Result
	Thresholds
	dead  map[End]bool // ends that already have a finding that explains all their bad paths
	small map[End]bool // ends that already have a finding that explains lost full packets
}

// Analyze sets the findings and the status of the result from its measurements. Each defect is
// named only once. For example, if an end is down or at the wrong place, its bad paths have no
// findings of their own.
func (r *Result) Analyze(t Thresholds) {
	a := &analysis{Result: r, Thresholds: t.filled(), dead: map[End]bool{}, small: map[End]bool{}}
	r.Findings = []Finding{}
	a.down()
	a.mtus()
	a.swaps()
	a.routes()
	a.unreachable()
	if !a.Brief {
		a.fullPackets()
		a.losses()
		a.latencies()
	}
	a.rdmaWorks()
	a.rdmaOutliers()
	a.crossings()
	unmeasured := len(r.Unknown) > 0 || len(r.Paths) == 0
	for i := range r.Paths {
		unmeasured = unmeasured || (r.Paths[i].Error != "" || r.Paths[i].Small.Sent == 0) && !a.skipped(&r.Paths[i])
	}
	switch {
	case len(r.Findings) > 0:
		r.Status = Defects
	case unmeasured:
		r.Status = Unknown
	default:
		r.Status = Healthy
	}
}

func (a *analysis) add(f Finding) { a.Findings = append(a.Findings, f) }

// skipped reports whether one of the path's ends already has a finding that explains why the path
// is bad.
func (a *analysis) skipped(p *Path) bool { return a.dead[p.From] || a.dead[p.To] }

// down adds findings for ends that cannot pass packets.
func (a *analysis) down() {
	for i := range a.Ends {
		if e := &a.Ends[i]; e.Interface.Problem != "" {
			a.dead[e.End] = true
			if e.Unknown != "" {
				continue
			}
			a.add(Finding{Kind: KindDown, Ends: []End{e.End}, Evidence: cmp.Or(e.Interface.Name, "interface") + ": " + e.Interface.Problem})
		}
	}
}

// mtus adds findings for ends that have another MTU than most ends of the rail. If no MTU is the
// MTU of most ends of the rail, it compares with all ends of the run.
func (a *analysis) mtus() {
	byRail, all := map[int][]int{}, []int{}
	for i := range a.Ends {
		if e := &a.Ends[i]; !a.dead[e.End] {
			byRail[e.Rail] = append(byRail[e.Rail], e.Interface.MTU)
			all = append(all, e.Interface.MTU)
		}
	}
	for i := range a.Ends {
		e := &a.Ends[i]
		if a.dead[e.End] {
			continue
		}
		usual := majority(byRail[e.Rail])
		if usual == 0 {
			usual = majority(all)
		}
		if usual == 0 || e.Interface.MTU == usual {
			continue
		}
		a.small[e.End] = true
		a.add(Finding{
			Kind: KindMTU, Ends: []End{e.End}, Value: float64(e.Interface.MTU), Median: float64(usual), Unit: "bytes",
			Evidence: fmt.Sprintf("%s has MTU %d, and most others have %d", e.Interface.Name, e.Interface.MTU, usual),
		})
	}
}

// majority returns the value that more than half of the values are equal to. It returns 0 if there
// is no such value.
func majority(values []int) int {
	count := map[int]int{}
	for _, v := range values {
		if count[v]++; 2*count[v] > len(values) {
			return v
		}
	}
	return 0
}

// swaps adds findings for two rails of a node that are swapped: on other nodes, the broadcasts of
// each of the two arrive at the other rail.
func (a *analysis) swaps() {
	hears := map[[2]End]bool{}
	for i := range a.Ends {
		for _, end := range a.Ends[i].ReceivedOn {
			hears[[2]End{a.Ends[i].End, end}] = true
		}
	}
	for i := range a.Rails {
		for j := i + 1; j < a.Rails; j++ {
			g := newGraph()
			for x, n := range a.Nodes {
				for _, m := range a.Nodes[x+1:] {
					crossed := hears[[2]End{{n, i}, {m, j}}] && hears[[2]End{{n, j}, {m, i}}]
					straight := hears[[2]End{{n, i}, {m, i}}] || hears[[2]End{{n, j}, {m, j}}]
					g.pair(End{n, i}, End{m, i}, crossed && !straight)
				}
			}
			for _, ends := range g.blame(a.compare) {
				var both []End
				var names []string
				for _, e := range ends {
					both = append(both, e, End{e.Node, j})
					names = append(names, e.Node)
				}
				for _, e := range both {
					a.dead[e] = true
				}
				evidence := fmt.Sprintf("broadcasts of rail %d arrive at rail %d of other nodes, and broadcasts of rail %d arrive at rail %d", i, j, j, i)
				if len(ends) > 1 {
					evidence += "; the rails are swapped on " + strings.Join(names, " or ") + ": verify with one more node to know on which"
				}
				a.add(Finding{Kind: KindSwapped, Ends: both, Either: len(ends) > 1, Evidence: evidence})
			}
		}
	}
}

// routes adds findings for ends whose packets leave by another interface. It also adds findings for
// ends whose address another interface answers for.
func (a *analysis) routes() {
	macs := map[string][]End{}
	for i := range a.Ends {
		if m := a.Ends[i].Interface.MAC; m != "" {
			macs[m] = append(macs[m], a.Ends[i].End)
		}
	}
	done, misled := map[string]bool{}, map[End]bool{}
	once := func(f Finding) {
		if key := string(f.Kind) + f.Ends[0].String() + f.Evidence; !done[key] {
			done[key] = true
			a.add(f)
		}
	}
	for i := range a.Paths {
		p := &a.Paths[i]
		from := a.end(p.From)
		if p.Route == nil || from == nil || a.skipped(p) {
			continue
		}
		switch {
		case p.Route.Problem != "":
			once(Finding{Kind: KindRoute, Ends: []End{p.From}, Evidence: "no route to the other nodes' addresses of the rail: " + p.Route.Problem})
		case p.Route.Interface != from.Interface.Name:
			once(Finding{Kind: KindRoute, Ends: []End{p.From}, Evidence: fmt.Sprintf("packets from the address of %s leave by %s", from.Interface.Name, p.Route.Interface)})
		}
		to, who := a.end(p.To), ""
		switch owners := macs[p.Route.MAC]; {
		case to == nil || p.Route.MAC == "" || p.Route.NextHop != to.address(p.Route.NextHop):
		case len(owners) == 1 && owners[0] != p.To:
			who = owners[0].String()
		case len(owners) == 0 && to.Interface.MAC != "" && p.Small.Sent > 0 && p.Small.Received == 0: // with answers, a switch may answer for the end and forward
			who = "an interface of none of the nodes, " + p.Route.MAC + ","
		}
		if who != "" {
			misled[p.To] = true
			once(Finding{Kind: KindNeighbor, Ends: []End{p.To}, Evidence: fmt.Sprintf("%s answers for the address %s", who, p.Route.NextHop)})
		}
	}
	for e := range misled { // packets to the end arrive at the other interface, which does not answer
		a.dead[e] = true
	}
}

// address returns s as an address, if it is an address of the end.
func (e *EndState) address(s string) string {
	for _, a := range e.Interface.Addresses {
		if a.Addr().String() == s {
			return s
		}
	}
	return ""
}

// place is the place on a path where something goes wrong.
type place int

const (
	between place = iota // between the two interfaces, or at an unknown place
	atFrom
	atTo
)

// place returns where most packets were lost.
func (l Loss) place() place {
	all := l.From + l.Forward + l.To + l.Back
	switch {
	case 2*l.From > all:
		return atFrom
	case 2*l.To > all:
		return atTo
	}
	return between
}

// judge finds the ends that explain the bad paths. The function bad reports whether a path is bad,
// and at which place. The function found is called for each group of ends. If a group has more than
// one end, the paths do not show which of the ends has the defect.
func (a *analysis) judge(bad func(*Path) (bool, place), found func(ends []End, paths []*Path)) {
	g := newGraph()
	named := map[End]bool{}
	var all []*Path
	for i := range a.Paths {
		p := &a.Paths[i]
		if p.Error != "" || p.Small.Sent == 0 || a.skipped(p) {
			continue
		}
		isBad, side := bad(p)
		g.pair(p.From, p.To, isBad)
		if !isBad {
			continue
		}
		all = append(all, p)
		switch side {
		case atFrom:
			named[p.From] = true
		case atTo:
			named[p.To] = true
		case between: // the other paths show which end it is
		}
	}
	for e := range named {
		g.explain(e)
	}
	var groups [][]End
	for _, e := range slices.SortedFunc(maps.Keys(named), a.compare) {
		groups = append(groups, []End{e})
	}
	for _, ends := range append(groups, g.blame(a.compare)...) {
		found(ends, slices.DeleteFunc(slices.Clone(all), func(p *Path) bool {
			return !slices.Contains(ends, p.From) && !slices.Contains(ends, p.To)
		}))
	}
}

// either returns the text to add to the evidence if a finding has several ends.
func (a *analysis) either(ends []End) string {
	switch {
	case len(ends) < 2:
		return ""
	case len(a.Nodes) == 2:
		return "; verify with a third node to know which end it is"
	}
	return "; the measured paths do not show which end it is"
}

// unreachable adds findings for ends that no packet passes.
func (a *analysis) unreachable() {
	var dead []End
	a.judge(func(p *Path) (bool, place) {
		return p.Small.Received == 0, p.Small.Lost.place()
	}, func(ends []End, paths []*Path) {
		dead = append(dead, ends...)
		failed := 0
		for _, p := range paths {
			if p.Route != nil && p.Route.Failed {
				failed++
			}
		}
		evidence := fmt.Sprintf("no packet passes on %s", plural(len(paths), "path"))
		if failed > 0 {
			evidence += fmt.Sprintf(", and on %d the neighbor does not answer", failed)
		}
		a.add(Finding{Kind: KindUnreachable, Ends: ends, Either: len(ends) > 1, Value: 100, Unit: "%", Evidence: evidence + a.either(ends)})
	})
	for _, e := range dead {
		a.dead[e] = true
	}
}

// fullPackets adds findings for ends that pass short packets, but not packets as large as the MTU.
func (a *analysis) fullPackets() {
	a.judge(func(p *Path) (bool, place) {
		if a.small[p.From] || a.small[p.To] {
			return false, between
		}
		return p.Full.Sent > 0 && 2*p.Full.Received < p.Full.Sent && 2*p.Small.Received > p.Small.Sent, p.Full.Lost.place()
	}, func(ends []End, paths []*Path) {
		size := 0
		for _, p := range paths {
			size = max(size, p.Full.Size)
		}
		for _, e := range ends {
			a.small[e] = true
		}
		a.add(Finding{
			Kind: KindMTU, Ends: ends, Either: len(ends) > 1, Value: float64(size), Unit: "bytes",
			Evidence: fmt.Sprintf("packets of %d bytes, the MTU, do not arrive, and short ones do%s", size, a.either(ends)),
		})
	})
}

// losses adds findings for ends that lose some packets.
func (a *analysis) losses() {
	share := func(p *Path) float64 { return float64(p.Small.Sent-p.Small.Received) / float64(p.Small.Sent) }
	var shares []float64
	a.eachPath(func(p *Path) { shares = append(shares, share(p)) })
	middle := 100 * median(shares)
	a.judge(func(p *Path) (bool, place) { return share(p) > a.Loss, p.Small.Lost.place() }, func(ends []End, paths []*Path) {
		var bad []float64
		for _, p := range paths {
			bad = append(bad, share(p))
		}
		value := 100 * median(bad)
		a.add(Finding{
			Kind: KindLoss, Ends: ends, Either: len(ends) > 1, Value: value, Median: middle, Unit: "%",
			Evidence: fmt.Sprintf("%.1f %% of short packets are lost, and %.1f %% on the median path%s", value, middle, a.either(ends)),
		})
	})
}

// eachPath calls f for each path on which packets pass.
func (a *analysis) eachPath(f func(*Path)) {
	for i := range a.Paths {
		if p := &a.Paths[i]; p.Error == "" && p.Small.Received > 0 && !a.skipped(p) {
			f(p)
		}
	}
}

// latencies adds findings for ends whose round trips take longer than the round trips of other
// ends.
func (a *analysis) latencies() {
	var rtt, from, fabric, to []float64
	a.eachPath(func(p *Path) {
		rtt = append(rtt, p.Small.RTT)
		if t := p.Small.Times; t != nil {
			from, fabric, to = append(from, t.From), append(fabric, t.Fabric), append(to, t.To)
		}
	})
	middle := median(rtt)
	limit := middle + max(3*deviation(rtt, middle), middle*a.Relative, a.Micros)
	slow := map[[2]End]bool{}
	a.eachPath(func(p *Path) { slow[[2]End{p.From, p.To}] = p.Small.RTT > limit })
	a.judge(func(p *Path) (bool, place) {
		// A round trip goes in both directions. So if round trips are slow only when they begin at
		// one of the two ends, that is chance.
		back, measured := slow[[2]End{p.To, p.From}]
		if !slow[[2]End{p.From, p.To}] || measured && !back {
			return false, between
		}
		return true, p.Small.Times.place(p.Small.RTT-middle, median(from), median(to))
	}, func(ends []End, paths []*Path) {
		var bad []float64
		for _, p := range paths {
			bad = append(bad, p.Small.RTT)
		}
		value := median(bad)
		a.add(Finding{
			Kind: KindLatency, Ends: ends, Either: len(ends) > 1, Value: value, Median: middle, Unit: "µs",
			Evidence: fmt.Sprintf("a round trip takes %s, and %s on the median path%s", duration(value), duration(middle), a.either(ends)),
		})
	})
}

// place returns where more than half of the excess time is spent. from and to are the
// usual times in a sender and in a receiver.
func (t *Times) place(excess, from, to float64) place {
	switch {
	case t == nil:
		return between
	case 2*(t.From-from) > excess:
		return atFrom
	case 2*(t.To-to) > excess:
		return atTo
	}
	return between
}

// crossings adds findings for rails that reach each other although the fabric is isolated. There is
// one finding for each two rails. If the same node is part of all their crossings, the finding
// names this node's two ends.
func (a *analysis) crossings() {
	if a.Fabric != Isolated {
		return
	}
	byRails := map[[2]int][]Crossing{}
	note := func(from, to End) {
		if from.Rail != to.Rail && !a.dead[from] && !a.dead[to] {
			key := [2]int{min(from.Rail, to.Rail), max(from.Rail, to.Rail)}
			byRails[key] = append(byRails[key], Crossing{from, to})
		}
	}
	for _, c := range a.Crossed {
		note(c.From, c.To)
	}
	for i := range a.Ends {
		for _, end := range a.Ends[i].ReceivedOn {
			note(a.Ends[i].End, end)
		}
	}
	keys := slices.SortedFunc(maps.Keys(byRails), func(x, y [2]int) int { return cmp.Or(x[0]-y[0], x[1]-y[1]) })
	for _, key := range keys {
		ends := []End{}
		either := true
		for _, n := range a.Nodes {
			in := !slices.ContainsFunc(byRails[key], func(c Crossing) bool { return c.From.Node != n && c.To.Node != n })
			if in && len(a.Nodes) > 2 && len(byRails[key]) > 1 {
				ends, either = []End{{n, key[0]}, {n, key[1]}}, false
			}
		}
		if either {
			for _, c := range byRails[key] {
				ends = append(ends, c.From, c.To)
			}
			slices.SortFunc(ends, a.compare)
			ends = slices.Compact(ends)
		}
		c := byRails[key][0]
		a.add(Finding{
			Kind: KindCrossed, Ends: ends, Either: either,
			Evidence: fmt.Sprintf("rails %d and %d reach each other, and the fabric is isolated: %s reaches %s", key[0], key[1], c.From, c.To),
		})
	}
}

// suspects returns the ends of findings that may have been caused by chance.
func (r *Result) suspects() map[End]bool {
	again := map[End]bool{}
	for _, f := range r.Findings {
		if slices.Contains([]Kind{KindUnreachable, KindMTU, KindLoss, KindLatency, KindRDMA, KindBandwidth, KindRDMALatency}, f.Kind) {
			for _, e := range f.Ends {
				again[e] = true
			}
		}
	}
	return again
}

// plural returns the number n and the noun, with an "s" after the noun if n is not 1.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// duration returns a time in microseconds as a text with a suitable unit.
func duration(micros float64) string {
	switch {
	case math.IsNaN(micros):
		return "-"
	case micros >= 1000:
		return fmt.Sprintf("%.1f ms", micros/1000)
	}
	return fmt.Sprintf("%.0f µs", micros)
}
