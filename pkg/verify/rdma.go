package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// RDMATest runs a program of perftest on a rail. Without To, the program is the server, and the
// answer is sent as soon as the program listens. With To, the program is the client, and the answer
// has the results.
type RDMATest struct {
	ID      uint32     `json:"id"`
	Rail    int        `json:"rail"`
	Program string     `json:"program"` // a key of [RDMAPrograms]
	From    netip.Addr `json:"from"`    // the rail's own address
	To      netip.Addr `json:"to,omitzero"`
	Port    uint16     `json:"port"` // the TCP port on which the two ends find each other
}

// RDMAOutcome is the outcome of a test.
type RDMAOutcome struct {
	ID    uint32  `json:"id"`
	Value float64 `json:"value,omitempty"` // µs, or Gb/s
	Error string  `json:"error,omitempty"`
	Own   bool    `json:"own,omitempty"` // true if the error is at this end; for example, this end has no RDMA device
	// Unknown is true if the program could not run for a reason that does not concern the rail.
	Unknown bool `json:"unknown,omitempty"`
}

// These are the names of the programs.
const (
	rdmaPing      = "ib_send_lat"
	rdmaLatency   = "ib_write_lat"
	rdmaBandwidth = "ib_write_bw"
)

// RDMAPrograms has the programs of perftest that may be run. The values are the options that both
// ends get.
var RDMAPrograms = map[string][]string{
	rdmaPing:      {"-n", "100", "-s", "2"},
	rdmaLatency:   {"-n", "200", "-s", "2"},
	rdmaBandwidth: {"-D", "1", "-s", "65536", "--report_gbits"},
}

// rdmaColumns has, for each program, the headings of the table that it prints, and the index of the
// column with the result. A line of the table has one value for each heading (see
// perftest_parameters.h of perftest).
var rdmaColumns = map[string]struct {
	heads []string
	value int
}{
	rdmaPing:      {[]string{"#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]"}, 4},
	rdmaLatency:   {[]string{"#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]"}, 4},
	rdmaBandwidth: {[]string{"#bytes", "#iterations", "BWpeak[Gb/sec]", "BWaverage[Gb/sec]"}, 3},
}

// ParsePerftest returns the result in the output of a program: the typical latency in µs, or the
// average bandwidth in Gb/s. It returns an error if the output does not have exactly one table with
// exactly one line.
func ParsePerftest(program, output string) (float64, error) {
	columns, ok := rdmaColumns[program]
	if !ok {
		return 0, fmt.Errorf("%q is not a known perftest program", program)
	}
	value, tables := math.NaN(), 0
	lines := strings.Split(output, "\n")
	for i, line := range lines {
		heads := strings.Fields(strings.NewReplacer("BW peak", "BWpeak", "BW average", "BWaverage").Replace(line))
		if len(heads) == 0 || heads[0] != "#bytes" {
			continue
		}
		tables++
		if len(heads) < len(columns.heads) || !slices.Equal(heads[:len(columns.heads)], columns.heads) {
			return 0, fmt.Errorf("%s printed a table with other columns: %.200q", program, line)
		}
		if i+1 >= len(lines) {
			continue
		}
		fields := strings.Fields(lines[i+1])
		if len(fields) < len(columns.heads) {
			return 0, fmt.Errorf("%s printed a line that is too short: %.200q", program, lines[i+1])
		}
		// Columns after these may have "-nan" as a deviation.
		for _, f := range fields[:len(columns.heads)] {
			if _, err := strconv.ParseFloat(f, 64); err != nil {
				return 0, fmt.Errorf("%s printed a line with %.40q, which is not a number", program, f)
			}
		}
		value, _ = strconv.ParseFloat(fields[columns.value], 64)
	}
	if tables != 1 || !(value > 0) || value > maxValue {
		return 0, fmt.Errorf("%s printed no result", program)
	}
	return value, nil
}

// maxValue is the largest value that a program can have measured, in µs or Gb/s.
const maxValue = 1e7

// check returns an error if the outcome is impossible. The outcome of a client must have a value or
// an error.
func (o *RDMAOutcome) check(client bool) error {
	if len(o.Error) > maxText || !(o.Value >= 0) || o.Value > maxValue || o.Value != 0 && o.Error != "" || o.Unknown && o.Error == "" || client && o.Value == 0 && o.Error == "" {
		return fmt.Errorf("the prober's RDMA test %d has an impossible outcome", o.ID)
	}
	return nil
}

// RDMA has the measurements with verbs on a path. A value is 0 if it was not measured.
type RDMA struct {
	Ping      float64 `json:"pingMicros,omitempty"`    // round trip of a send, in µs
	Latency   float64 `json:"latencyMicros,omitempty"` // latency of a write, in µs
	Bandwidth float64 `json:"gigabits,omitempty"`      // bandwidth of writes, in Gb/s
	Error     string  `json:"error,omitempty"`
	ErrorAt   *End    `json:"errorAt,omitempty"` // the end that has the error, if it is known
}

// and returns the better values of the two measurements m and o.
func (m *RDMA) and(o *RDMA) *RDMA {
	switch {
	case o == nil || m == nil || o.Error != "":
		return cmp.Or(m, o)
	case m.Error != "":
		return o
	}
	least := func(a, b float64) float64 {
		if a == 0 || b == 0 {
			return max(a, b)
		}
		return min(a, b)
	}
	return &RDMA{Ping: least(m.Ping, o.Ping), Latency: least(m.Latency, o.Latency), Bandwidth: max(m.Bandwidth, o.Bandwidth)}
}

// rdmaPort is the TCP port of rail 0. Each rail has its own port after it.
const rdmaPort = 18600

// rdma runs the programs between two nodes. It runs them on all rails at the same time, first in
// one direction and then in the other.
func (r *run) rdma(ctx context.Context, pair Pair, jobs []*job) {
	programs := r.programs()
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool {
		if len(programs) == 0 || j.path == nil || j.From.Is4() {
			return false
		}
		r.unknown("%s to %s: RDMA is not measured between IPv6 addresses", j.path.From, j.path.To)
		return true
	})
	unknown := map[uint32]bool{} // the jobs for which a program could not run
	for _, program := range programs {
		for _, server := range []int{pair.B, pair.A} {
			tests := slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool {
				return unknown[j.ID] || j.path == nil || j.way.To != server || j.path.Small.Received == 0 || j.path.RDMA != nil && j.path.RDMA.Error != ""
			})
			if len(tests) > 0 && ctx.Err() == nil {
				r.converse(ctx, program, tests, unknown)
			}
		}
	}
}

// converse runs one program on the paths of the jobs, which must all go from the same node to the
// same other node. If the program could not run for a job, converse adds the job's ID to unknown.
func (r *run) converse(ctx context.Context, program string, jobs []*job, unknown map[uint32]bool) {
	byID := map[uint32]*job{}
	var servers, clients []RDMATest
	for _, j := range jobs {
		byID[j.ID] = j
		port := uint16(rdmaPort + j.way.ToRail)
		servers = append(servers, RDMATest{ID: j.ID, Rail: j.way.ToRail, Program: program, From: j.Flow.To.Addr(), Port: port})
		clients = append(clients, RDMATest{ID: j.ID, Rail: j.way.FromRail, Program: program, From: j.From, To: j.Flow.To.Addr(), Port: port})
	}
	fail := func() {
		for id := range byID {
			unknown[id] = true
		}
	}
	if !r.rdmaOutcomes(ctx, jobs[0].way.To, &Request{RDMA: servers}, func(o *RDMAOutcome) {
		p := byID[o.ID].path
		if o.Unknown {
			unknown[o.ID] = true
			r.unknown("%s: level %d: %s", p.To, r.RDMA+1, o.Error)
			return
		}
		if p.RDMA == nil {
			p.RDMA = &RDMA{}
		}
		if o.Error != "" {
			p.RDMA.Error = o.Error
			if o.Own {
				p.RDMA.ErrorAt = &p.To
			}
		}
	}) {
		fail()
		return
	}
	clients = slices.DeleteFunc(clients, func(t RDMATest) bool { return unknown[t.ID] || byID[t.ID].path.RDMA.Error != "" })
	if len(clients) == 0 {
		return
	}
	if !r.rdmaOutcomes(ctx, jobs[0].way.From, &Request{RDMA: clients}, func(o *RDMAOutcome) {
		p := byID[o.ID].path
		if o.Error != "" {
			p.RDMA.Error = o.Error
			if o.Own {
				p.RDMA.ErrorAt = &p.From
			}
		}
		switch program {
		case rdmaPing:
			p.RDMA.Ping = o.Value
		case rdmaLatency:
			p.RDMA.Latency = o.Value
		case rdmaBandwidth:
			p.RDMA.Bandwidth = o.Value
		}
	}) {
		fail()
	}
}

// rdmaOutcomes sends q to a node, and calls use for each outcome in the answer. It reports whether
// the node answered.
func (r *run) rdmaOutcomes(ctx context.Context, node int, q *Request, use func(o *RDMAOutcome)) bool {
	a, err := r.do(ctx, node, q)
	if err == nil && len(a.RDMA) != len(q.RDMA) {
		err = errors.New("the prober does not answer for all RDMA tests")
	}
	if err != nil {
		r.unknown("%s: level %d: %v", r.nodes[node].Name, r.RDMA+1, err)
		return false
	}
	for i := range a.RDMA {
		use(&a.RDMA[i])
	}
	return true
}

// programs returns the programs that o.RDMA asks for.
func (o Options) programs() []string {
	switch o.RDMA {
	case RDMAPing:
		return []string{rdmaPing}
	case RDMABandwidth:
		return []string{rdmaPing, rdmaLatency, rdmaBandwidth}
	}
	return nil
}

// These are the values of [Options.RDMA].
const (
	RDMAPing      = 1 // test whether verbs pass messages
	RDMABandwidth = 2 // also measure latency and bandwidth
)

// rdmaWorks adds findings for ends on which verbs do not work.
func (a *analysis) rdmaWorks() {
	a.judge(func(p *Path) (bool, place) {
		switch m := p.RDMA; {
		case m == nil || m.Error == "":
			return false, between
		case m.ErrorAt != nil && *m.ErrorAt == p.From:
			return true, atFrom
		case m.ErrorAt != nil:
			return true, atTo
		}
		return true, between
	}, func(ends []End, paths []*Path) {
		for _, e := range ends {
			a.dead[e] = true
		}
		why := ""
		for _, p := range paths {
			why = cmp.Or(why, p.RDMA.Error)
		}
		a.add(Finding{Kind: KindRDMA, Ends: ends, Either: len(ends) > 1, Evidence: "RDMA does not work: " + why + a.either(ends)})
	})
}

// rdmaOutliers adds findings for ends that are slower with RDMA than other ends.
func (a *analysis) rdmaOutliers() {
	a.outliers(KindBandwidth, "Gb/s", func(p *Path) float64 { return p.RDMA.Bandwidth }, func(v, middle, deviation float64) bool {
		return v < min(middle-3*deviation, middle*bandwidthShare)
	}, "writes pass at %.1f Gb/s, and at %.1f Gb/s on the median path%s")
	a.outliers(KindRDMALatency, "µs", func(p *Path) float64 { return cmp.Or(p.RDMA.Latency, p.RDMA.Ping) }, func(v, middle, deviation float64) bool {
		return v > middle+max(3*deviation, middle*a.Relative, rdmaMicros)
	}, "a message by RDMA takes %.1f µs, and %.1f µs on the median path%s")
}

const (
	bandwidthShare = 0.8 // bandwidth below this share of the median is a defect
	rdmaMicros     = 5   // latency that exceeds the median by this many µs is a defect
)

func (a *analysis) outliers(kind Kind, unit string, value func(*Path) float64, bad func(v, middle, deviation float64) bool, text string) {
	var values []float64
	a.eachPath(func(p *Path) {
		if p.RDMA != nil && value(p) > 0 {
			values = append(values, value(p))
		}
	})
	middle := median(values)
	spread := deviation(values, middle)
	a.judge(func(p *Path) (bool, place) {
		return p.RDMA != nil && value(p) > 0 && bad(value(p), middle, spread), between
	}, func(ends []End, paths []*Path) {
		var rates []float64
		for _, p := range paths {
			rates = append(rates, value(p))
		}
		v := median(rates)
		a.add(Finding{Kind: kind, Ends: ends, Either: len(ends) > 1, Value: v, Median: middle, Unit: unit, Evidence: fmt.Sprintf(text, v, middle, a.either(ends))})
	})
}
