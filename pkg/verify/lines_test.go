package verify

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestLinesEndWithTheProber(t *testing.T) {
	long := `{"error": "` + strings.Repeat("x", 9000) + `"}` + "\n"
	l := NewLines(io.Discard, strings.NewReader(`{"heard": [{"rail": 1}]}`+"\n"+"no JSON\n"+long), 16<<10)
	if a, err := l.Do(&Request{Received: true}); err != nil || len(a.Received) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err := l.Do(&Request{Alive: true}); err == nil || errors.Is(err, ErrEnded) {
		t.Errorf("no JSON: %v", err)
	}
	if _, err := l.Do(&Request{Alive: true}); err == nil || len(err.Error()) > maxText {
		t.Errorf("a long error: %.100v", err)
	}
	if _, err := l.Do(&Request{Alive: true}); !errors.Is(err, ErrEnded) {
		t.Errorf("the end: %v", err)
	}
	endless := NewLines(io.Discard, strings.NewReader(strings.Repeat("y", 64<<10)), 16<<10)
	if _, err := endless.Do(&Request{Alive: true}); !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a line without an end: %v", err)
	}
}

func TestAnswersThatNoProberGivesAreRefused(t *testing.T) {
	open, flows, report := &Request{Open: &Open{}}, &Request{Flows: []Flow{{ID: 7, Count: 2}}}, &Request{Report: []uint32{7}}
	address := netip.MustParseAddrPort("10.1.2.3:9")
	many := strings.Repeat("x", maxText+1)
	for name, c := range map[string]struct {
		request *Request
		answer  Answer
	}{
		"many rails":              {open, Answer{Opened: make([]Interface, maxRails+1)}},
		"a long name":             {open, Answer{Opened: []Interface{{Name: many}}}},
		"a long problem":          {open, Answer{Opened: []Interface{{Problem: many}}}},
		"a negative MTU":          {open, Answer{Opened: []Interface{{MTU: -1}}}},
		"no address":              {open, Answer{Opened: []Interface{{Addresses: make([]netip.AddrPort, 1)}}}},
		"all hosts' address":      {open, Answer{Opened: []Interface{{Addresses: []netip.AddrPort{netip.MustParseAddrPort("224.0.0.1:9")}}}}},
		"many addresses":          {open, Answer{Opened: []Interface{{Addresses: slices.Repeat([]netip.AddrPort{address}, maxSocketAddresses+1)}}}},
		"many broadcasts":         {&Request{Received: true}, Answer{Received: make([]Broadcast, MaxReceived+1)}},
		"another flow":            {flows, Answer{Echoes: []Echo{{ID: 8, Samples: make([]Sample, 2)}}}},
		"a flow twice":            {flows, Answer{Echoes: []Echo{{ID: 7, Samples: make([]Sample, 2)}, {ID: 7, Samples: make([]Sample, 2)}}}},
		"more samples":            {flows, Answer{Echoes: []Echo{{ID: 7, Samples: make([]Sample, 3)}}}},
		"no samples and no error": {flows, Answer{Echoes: []Echo{{ID: 7}}}},
		"a negative time":         {flows, Answer{Echoes: []Echo{{ID: 7, Samples: []Sample{{RTT: -1}, {}}}}}},
		"a time of years":         {flows, Answer{Echoes: []Echo{{ID: 7, Samples: []Sample{{Out: 1 << 60}, {}}}}}},
		"a long route":            {flows, Answer{Echoes: []Echo{{ID: 7, Samples: make([]Sample, 2), Route: &Route{NextHop: many}}}}},
		"another report":          {report, Answer{Seen: []Seen{{ID: 8}}}},
		"a report twice":          {report, Answer{Seen: []Seen{{ID: 7}, {ID: 7}}}},
		"a negative hold":         {report, Answer{Seen: []Seen{{ID: 7, Holds: map[uint32]Hold{1: {Program: -5}}}}}},
		"flows without a request": {&Request{Alive: true}, Answer{Echoes: []Echo{{ID: 7}}}},
	} {
		if err := c.answer.check(c.request); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
	good := Answer{Echoes: []Echo{{ID: 7, Samples: []Sample{{RTT: 5, Out: 1}, {}}, Route: &Route{Interface: "net1"}}}}
	if err := good.check(flows); err != nil {
		t.Error(err)
	}
}

// FuzzAnswers lets one of two nodes answer anything. The run must end, and its outputs must not
// contain control characters.
func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{
		`{"opened": [{"name": "net1\u001b[2J", "mtu": 9000, "addresses": ["10.0.9.1:7"]}]}`,
		`{"opened": [{"name": "net1", "addresses": ["10.0.9.1:7"]}], "heard": [{"rail": -1, "node": 0, "fromRail": 999999}]}`,
		`{"opened": [{}], "echoes": [{"id": 1}], "seen": [{"id": 1}]}`, `{"error": "\n"}`, `{}`, `[`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		lab := newFabric(2, 2, 1)
		r, err := Run(context.Background(), []Node{{Name: "n0", Prober: &simulated{lab, 0}}, {Name: "n1", Prober: canned(answer)}}, Options{Fabric: Isolated})
		if err != nil {
			return
		}
		for _, write := range []func(io.Writer) error{r.WriteText, r.WriteJSON} {
			var out strings.Builder
			if err := write(&out); err != nil {
				t.Fatal(err)
			}
			if i := strings.IndexFunc(out.String(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }); i >= 0 {
				t.Errorf("a control character in %q", out.String()[max(0, i-40):i+1])
			}
		}
	})
}

// canned is a prober that answers each request with this JSON document.
type canned string

func (s canned) Do(context.Context, *Request) (*Answer, error) {
	var a Answer
	if err := json.Unmarshal([]byte(s), &a); err != nil {
		return nil, err
	}
	return &a, nil
}

// altered is a prober whose answers are changed.
type altered struct {
	Prober
	change func(a *Answer)
}

func (p altered) Do(ctx context.Context, r *Request) (*Answer, error) {
	a, err := p.Prober.Do(ctx, r)
	if err == nil {
		p.change(a)
	}
	return a, err
}

// alter verifies three nodes with two rails. It changes the answers of the second node.
func alter(t *testing.T, o Options, change func(a *Answer)) *Result {
	t.Helper()
	f := newFabric(3, 2, 1)
	nodes := make([]Node, 3)
	for i := range nodes {
		nodes[i] = Node{Name: f.name(i), Prober: &simulated{f, i}}
	}
	nodes[1].Prober = altered{nodes[1].Prober, change}
	r, err := Run(t.Context(), nodes, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRepeatedBroadcastsCountOnce(t *testing.T) {
	r := alter(t, Options{}, func(a *Answer) {
		if len(a.Received) > 0 {
			a.Received = append(slices.Repeat(a.Received, 1000), Broadcast{FromRail: 7}, Broadcast{FromRail: -1})
		}
	})
	for _, e := range r.Ends {
		if len(e.ReceivedOn) != 2 && e.Node != "n1" || len(r.Findings) > 0 {
			t.Errorf("%s is heard on %d ends, %+v", e.End, len(e.ReceivedOn), r.Findings)
		}
	}
}

// TestRepeatedBroadcastsAreNoCable: a host that is in the networks of two rails can send the
// broadcasts of one rail again on the other rail.
func TestRepeatedBroadcastsAreNoCable(t *testing.T) {
	r := alter(t, Options{Fabric: Isolated}, func(a *Answer) {
		if len(a.Received) > 0 {
			a.Received = append(a.Received, Broadcast{Rail: 1, Node: 2, FromRail: 0, Repeated: true})
		}
	})
	if len(r.Findings) > 0 || !slices.ContainsFunc(r.Unknown, func(s string) bool { return strings.Contains(s, "broadcasts of n2 rail 0 arrive from another station") }) {
		t.Errorf("%+v, %q", r.Findings, r.Unknown)
	}
}

func TestAddressThatTwoNodesClaimIsADefect(t *testing.T) {
	r := alter(t, Options{}, func(a *Answer) {
		if len(a.Opened) > 0 {
			a.Opened[1].Addresses = []netip.AddrPort{netip.AddrPortFrom(address(2, 1).Addr(), 9)}
		}
	})
	if have := told(r); !slices.Equal(have, []string{"down: n1/1", "down: n2/1"}) {
		t.Errorf("%q", have)
	}
	for _, f := range r.Findings {
		if !strings.Contains(f.Evidence, "its address 10.1.2.1 is also the address of n") {
			t.Errorf("%+v", f)
		}
	}
}

func TestForeignHostThatAnswersForAnAddressIsNamed(t *testing.T) {
	for _, passes := range []bool{false, true} {
		r := alter(t, Options{}, func(a *Answer) {
			for i := range a.Echoes {
				if e := &a.Echoes[i]; e.Route != nil && e.Route.NextHop == address(0, 1).Addr().String() {
					if e.Route.MAC = "02:ff:00:00:00:01"; !passes {
						e.Samples = make([]Sample, len(e.Samples))
					}
				}
			}
		})
		var want []string // a switch may answer for the address, and forward
		if !passes {
			want = []string{"neighbor: n0/1"}
		}
		if have := told(r); !slices.Equal(have, want) || !passes && !strings.Contains(r.Findings[0].Evidence, "02:ff:00:00:00:01, answers for the address 10.1.0.1") {
			t.Errorf("%q, %+v", have, r.Findings)
		}
	}
}

func TestPortOfAnotherProgramIsUnknown(t *testing.T) {
	r := alter(t, Options{RDMA: RDMABandwidth}, func(a *Answer) {
		for i := range a.RDMA {
			if a.RDMA[i].Value == 0 { // of a server
				a.RDMA[i] = RDMAOutcome{ID: a.RDMA[i].ID, Error: "another program listens on TCP port 18601", Unknown: true}
			}
		}
	})
	want := []string{"n1 rail 0: level 3: another program listens on TCP port 18601", "n1 rail 1: level 3: another program listens on TCP port 18601"}
	if r.Status != Unknown || len(r.Findings) > 0 || !slices.Equal(r.Unknown, want) {
		t.Errorf("%s, %q, %+v", r.Status, r.Unknown, r.Findings)
	}
}

func TestRailThatCannotBeMeasuredIsNoDefect(t *testing.T) {
	f := newFabric(3, 4, 1)
	nodes := make([]Node, 3)
	for i := range nodes {
		nodes[i] = Node{Name: f.name(i), Prober: &simulated{f, i}}
	}
	nodes[1].Missing = map[int]string{2: "in use by pod default/trainer"}
	r, err := Run(context.Background(), nodes, Options{Fabric: Isolated})
	if err != nil || r.Status != Unknown || len(r.Findings) > 0 || !slices.Equal(r.Unknown, []string{"n1 rail 2: in use by pod default/trainer"}) {
		t.Errorf("%v, %+v", err, r)
	}
	nodes[1].Missing, nodes[1].Broken = nil, map[int]string{2: "its network cannot be attached"}
	r, err = Run(context.Background(), nodes, Options{Fabric: Isolated})
	if err != nil || r.Status != Defects || len(r.Findings) != 1 || r.Findings[0].Kind != KindDown || r.Findings[0].Ends[0] != (End{"n1", 2}) || !strings.Contains(r.Findings[0].Evidence, "cannot be attached") {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestBriefRunJudgesRoutesOnly(t *testing.T) {
	f := newFabric(3, 4, 1)
	f.defects[End{"n1", 2}] = defect{loss: 0.1, delay: 5000, leaves: "eth0"}
	f.wired[End{"n0", 0}], f.wired[End{"n0", 1}] = 1, 0
	r, err := f.run(Options{Fabric: Isolated, Brief: true})
	if err != nil || !r.Brief {
		t.Fatalf("%v, %+v", err, r)
	}
	var kinds []Kind
	for _, x := range r.Findings {
		kinds = append(kinds, x.Kind)
	}
	slices.Sort(kinds)
	if !slices.Equal(kinds, []Kind{KindRoute, KindSwapped}) {
		t.Errorf("%+v", r.Findings)
	}
	for _, p := range r.Paths {
		if p.Full.Sent > 0 || p.Small.Sent > briefCount*(1+repeats) {
			t.Errorf("%+v", p)
		}
	}
}

func TestAnswersThatWereNotAskedForAreRefused(t *testing.T) {
	open := &Request{Open: &Open{Interfaces: []string{"net1", "net2"}}}
	for _, a := range []*Answer{{}, {Opened: []Interface{{Name: "net1"}}}, {Opened: []Interface{{Name: "net2"}, {Name: "net1"}}}} {
		if a.check(open) == nil {
			t.Errorf("%+v", a)
		}
	}
	if err := (&Answer{Opened: []Interface{{Name: "net1"}, {Name: "net2"}}}).check(open); err != nil {
		t.Error(err)
	}
	for value, o := range map[bool]RDMAOutcome{true: {}, false: {Value: 1, Error: "no"}} {
		if o.check(value) == nil {
			t.Errorf("client %v: %+v", value, o)
		}
	}
	if err := (&RDMAOutcome{}).check(false); err != nil {
		t.Error(err)
	}
}
