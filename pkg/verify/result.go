package verify

import (
	"encoding/json"
	"io"
	"math"
	"slices"
	"time"
)

// ResultSchema is the schema of results in JSON. New versions may add fields, but they never change
// a field.
const ResultSchema = "rail-cni.io/verify/v1"

// Status is the outcome of a run.
type Status string

// These are the outcomes of a run.
const (
	Healthy Status = "healthy"
	Defects Status = "defects"
	Unknown Status = "unknown" // something could not be measured, but no defect was found
)

// Result has the measurements of a run, and the findings that follow from them.
type Result struct {
	Schema   string     `json:"schema"`
	Taken    time.Time  `json:"taken"`
	Version  string     `json:"version"` // of the program
	Fabric   string     `json:"fabric,omitempty"`
	Brief    bool       `json:"brief,omitempty"` // true if losses, round trips and packets of the MTU are not judged
	Status   Status     `json:"status"`
	Findings []Finding  `json:"findings"`
	Unknown  []string   `json:"unknown,omitempty"` // the things that could not be measured, with the reasons
	Nodes    []string   `json:"nodes"`
	Rails    int        `json:"rails"`
	Rounds   int        `json:"rounds"`
	Seconds  float64    `json:"seconds"`
	Ends     []EndState `json:"ends"`
	Paths    []Path     `json:"paths"`
	Crossed  []Crossing `json:"crossed,omitempty"`
	Tested   int        `json:"crossingsTested"` // the number of tested paths between different rails
}

// EndState has the facts about an end that do not depend on a path.
type EndState struct {
	End
	Interface  Interface `json:"interface"`
	Unknown    string    `json:"unknown,omitempty"` // the reason why it could not be measured, if the reason is not a defect of the rail
	ReceivedOn []End     `json:"heardOn,omitempty"` // the ends of other nodes that received this end's broadcasts
}

// Path is the path of a rail from one node to another node.
type Path struct {
	From  End     `json:"from"`
	To    End     `json:"to"`
	Route *Route  `json:"route,omitempty"`
	Error string  `json:"error,omitempty"` // the reason why it could not be measured
	Small Traffic `json:"small"`           // short packets
	Full  Traffic `json:"full"`            // packets of the interface's MTU
	RDMA  *RDMA   `json:"rdma,omitempty"`  // nil if it was not measured
}

// Traffic has the results of the probes of one size. Times are medians in microseconds.
type Traffic struct {
	Size     int     `json:"size"` // the size of the IP packets, in bytes
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	Late     int     `json:"late,omitempty"` // further probes that a busy machine answered too late; they do not count as losses
	Lost     Loss    `json:"lost"`
	RTT      float64 `json:"rttMicros"`       // does not include the time that the responder's program took
	Times    *Times  `json:"times,omitempty"` // nil if the kernel did not report when packets left the interfaces
}

// Loss counts the lost probes, by the place where they were lost.
type Loss struct {
	From    int `json:"from,omitempty"`    // probes that did not leave the sender's interface
	Forward int `json:"forward,omitempty"` // probes that left the sender's interface but did not arrive
	To      int `json:"to,omitempty"`      // probes that arrived, but whose answer did not leave
	Back    int `json:"back,omitempty"`    // probes whose answer left but did not arrive
}

// Times has the parts of a round trip's time, in microseconds.
type Times struct {
	From   float64 `json:"from"`   // in the sender, until the packet left the sender's interface
	Fabric float64 `json:"fabric"` // between the two interfaces, in both directions
	To     float64 `json:"to"`     // in the receiver, until the answer left the receiver's interface
}

// Crossing is a packet that arrived at another rail although the rails must not reach each other.
type Crossing struct {
	From End `json:"from"`
	To   End `json:"to"`
}

// Kind is the kind of a finding.
type Kind string

// These are the kinds of findings.
const (
	KindDown        Kind = "down"        // the interface is missing or down, or has no carrier or address
	KindMTU         Kind = "mtu"         // packets as large as the MTU do not arrive, or the MTU differs from the MTU of other ends
	KindSwapped     Kind = "swapped"     // two rails of a node are swapped
	KindRoute       Kind = "route"       // packets leave by another interface
	KindNeighbor    Kind = "neighbor"    // another interface answers for the address
	KindUnreachable Kind = "unreachable" // no packet arrives
	KindLoss        Kind = "loss"        // some packets do not arrive
	KindLatency     Kind = "latency"     // packets take longer than on other paths
	KindRDMA        Kind = "rdma"        // verbs do not work, although packets pass
	KindBandwidth   Kind = "bandwidth"   // writes by RDMA are slower than on other paths
	KindRDMALatency Kind = "rdmaLatency" // messages by RDMA take longer than on other paths
	KindCrossed     Kind = "crossed"     // rails reach each other although they must not
)

// Finding is a defect and the ends that have it.
type Finding struct {
	Kind Kind `json:"kind"`
	// Ends are the ends that have the defect. If Either is set, the defect is at one of
	// them or between them: the measured paths do not show where.
	Ends     []End   `json:"ends"`
	Either   bool    `json:"either,omitempty"`
	Value    float64 `json:"value"` // in the unit Unit
	Median   float64 `json:"median"`
	Unit     string  `json:"unit,omitempty"` // "bytes", "%", "µs", "Gb/s"
	Evidence string  `json:"evidence"`
}

// These are the exit codes of a command that verifies rails.
const (
	ExitHealthy = 0
	ExitDefects = 1
	ExitUnknown = 2
)

// ExitCode returns the exit code of the result.
func (r *Result) ExitCode() int {
	switch r.Status {
	case Healthy:
		return ExitHealthy
	case Defects:
		return ExitDefects
	}
	return ExitUnknown
}

// WriteJSON writes the result.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// end returns the state of the end e. It returns nil if there is none.
func (r *Result) end(e End) *EndState {
	for i := range r.Ends {
		if r.Ends[i].End == e {
			return &r.Ends[i]
		}
	}
	return nil
}

// median returns the median of the values. Without values it returns NaN.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// deviation returns the median absolute deviation (MAD) of the values from middle.
func deviation(values []float64, middle float64) float64 {
	var d []float64
	for _, v := range values {
		d = append(d, math.Abs(v-middle))
	}
	return median(d)
}

// late is a time in nanoseconds. If the responder's program took longer than this, and the answer
// did not arrive in time, the program is the reason and not the rail.
const late = 100_000_000

// traffic returns the traffic of a flow from what the two ends have seen: the sender's echo and the
// responder's report.
func traffic(size int, e *Echo, seen *Seen) Traffic {
	t := Traffic{Size: size, Sent: len(e.Samples)}
	// If there is no time at all at which a probe left, the driver may not report such times.
	stamped := slices.ContainsFunc(e.Samples, func(s Sample) bool { return s.Out > 0 })
	answerStamped := false
	if seen != nil {
		for _, h := range seen.Holds {
			answerStamped = answerStamped || h.Out > 0
		}
	}
	var rtt, out, fabric, hold []float64
	for i, s := range e.Samples {
		h, arrived := Hold{}, false
		if seen != nil {
			h, arrived = seen.Holds[uint32(i)]
		}
		switch {
		case s.RTT > 0:
			t.Received++
			trip := max(s.RTT-h.Program, 1)
			rtt = append(rtt, micros(trip))
			if s.Out > 0 && h.Out > 0 && trip > s.Out+h.Out {
				out, hold = append(out, micros(s.Out)), append(hold, micros(h.Out))
				fabric = append(fabric, micros(trip-s.Out-h.Out))
			}
		case arrived && h.Program > late:
			t.Sent--
			t.Late++
		case arrived && answerStamped && h.Out == 0:
			t.Lost.To++
		case arrived:
			t.Lost.Back++
		case s.Out > 0 || !stamped:
			t.Lost.Forward++
		default:
			t.Lost.From++
		}
	}
	if len(rtt) > 0 {
		t.RTT = median(rtt)
	}
	if len(out) > 0 {
		t.Times = &Times{From: median(out), Fabric: median(fabric), To: median(hold)}
	}
	return t
}

func micros(ns int64) float64 { return math.Round(float64(ns)/100) / 10 }
