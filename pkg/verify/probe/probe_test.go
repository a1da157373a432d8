package probe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

// onLoopback returns a prober whose only rail is the loopback interface.
func onLoopback(t *testing.T) (*Prober, verify.Interface) {
	t.Helper()
	p := &Prober{}
	a, err := p.Do(t.Context(), &verify.Request{Open: &verify.Open{Token: 7, Interfaces: []string{"lo"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if i := a.Opened[0]; !i.Up || i.Problem != "" || len(i.Addresses) == 0 || i.Deaf == "" {
		t.Fatalf("lo: %+v", i)
	}
	return p, a.Opened[0]
}

// probes runs one flow to the prober's own responder.
func probes(t *testing.T, p *Prober, f verify.Flow) (verify.Echo, verify.Seen) {
	t.Helper()
	a, err := p.Do(t.Context(), &verify.Request{Flows: []verify.Flow{f}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Do(t.Context(), &verify.Request{Report: []uint32{f.ID}})
	if err != nil {
		t.Fatal(err)
	}
	return a.Echoes[0], r.Seen[0]
}

// TestReportWaitsForTheLastAnswers: the kernel reports that an answer has left only some time after
// the answer was sent.
func TestReportWaitsForTheLastAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		late, never int // answers of which the report comes late, or never
		wait, least time.Duration
	}{
		"all left":              {0, 0, time.Hour, 0},
		"the last ones leave":   {3, 0, time.Minute, 20 * time.Millisecond},
		"one was lost":          {0, 1, leaveWait, leaveWait},
		"a driver that is mute": {0, 10, time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			flow := map[uint32]*arrival{}
			for i := range uint32(10) {
				flow[i] = &arrival{}
				if int(i) >= c.late+c.never {
					flow[i].out = 1
				}
			}
			p := &Prober{seen: map[uint32]map[uint32]*arrival{7: flow}, reported: map[uint32]bool{}}
			began := time.Now()
			later := time.AfterFunc(20*time.Millisecond, func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				for i := range uint32(c.late) {
					flow[i].out = 1
				}
			})
			defer later.Stop()
			a := p.report(t.Context(), []uint32{7}, c.wait)
			if took := time.Since(began); took < c.least {
				t.Errorf("it took %v", took)
			}
			lost := 0
			for _, h := range a.Seen[0].Holds {
				if h.Out == 0 {
					lost++
				}
			}
			if lost != c.never {
				t.Errorf("%d answers did not leave, not %d", lost, c.never)
			}
		})
	}
}

func TestKernelReportsWhenProbesAndAnswersLeaveAndArrive(t *testing.T) {
	p, lo := onLoopback(t)
	for i, to := range lo.Addresses {
		for k, size := range []int{96, 1500, 9000, 65535} {
			f := verify.Flow{ID: uint32(10*i + k), From: to.Addr(), To: to, Size: size, Count: 20, Interval: 1, Wait: 2000, Route: true}
			e, seen := probes(t, p, f)
			if e.Error != "" || len(e.Samples) != 20 || len(seen.Holds) != 20 {
				t.Fatalf("%s, %d bytes: %+v, %+v", to, size, e, seen)
			}
			for n, s := range e.Samples {
				if hold := seen.Holds[uint32(n)]; s.Out <= 0 || hold.Out <= 0 || hold.Program < 0 || s.RTT < s.Out+hold.Program+hold.Out {
					t.Errorf("%s, %d bytes, probe %d: %+v, and the answer %+v", to, size, n, s, hold)
				}
			}
			if e.Route == nil || e.Route.Interface != "lo" || e.Route.Problem != "" || e.Route.Failed {
				t.Errorf("%s: route %+v", to, e.Route)
			}
		}
	}
}

func TestPacketsAreNotFragmented(t *testing.T) {
	p, lo := onLoopback(t)
	to := lo.Addresses[0]
	if lo.MTU >= 65536 {
		// The largest possible IP packet is allowed. Only a larger packet is an error.
		if e, _ := probes(t, p, verify.Flow{ID: 1, From: to.Addr(), To: to, Size: 65535, Count: 1, Interval: 1, Wait: 2000}); e.Samples[0].RTT == 0 {
			t.Errorf("%+v", e)
		}
	}
	s, err := listen("lo", to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.WriteToUDPAddrPort(make([]byte, 65530), to); err == nil {
		t.Error("a packet of more than 64 KiB left")
	}
}

func TestProbesOfAnotherRunAreIgnored(t *testing.T) {
	p, lo := onLoopback(t)
	s, err := listen("lo", lo.Addresses[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	foreign := make([]byte, 64)
	header{flow: 5, number: 1}.write(foreign, [8]byte{9})
	other := slices.Clone(foreign)
	header{flow: 5, number: 1}.write(other, p.token)
	other[len(mark)+3]++ // another flow than the signed one
	for _, data := range [][]byte{foreign, foreign[:8], {}, p.token[:], other} {
		if _, err := s.WriteToUDPAddrPort(data, lo.Addresses[0]); err != nil {
			t.Fatal(err)
		}
	}
	// A probe that is sent after them is answered, so they were read before it.
	if e, _ := probes(t, p, verify.Flow{ID: 6, From: lo.Addresses[0].Addr(), To: lo.Addresses[0], Size: 96, Count: 1, Interval: 1, Wait: 2000}); e.Samples[0].RTT == 0 {
		t.Fatalf("%+v", e)
	}
	a, err := p.Do(t.Context(), &verify.Request{Report: []uint32{5}})
	if err != nil || len(a.Seen[0].Holds) != 0 || len(p.seen) > 0 {
		t.Errorf("%v, %+v, %v", err, a, p.seen)
	}
}

// TestBroadcastDoesNotLetOthersFloodAResponder sends probes and uses each part of a broadcast as
// the token, because everybody in a rail's network receives broadcasts.
func TestBroadcastDoesNotLetOthersFloodAResponder(t *testing.T) {
	p, lo := onLoopback(t)
	to := lo.Addresses[0]
	p.rails[0].link = &link.Link{Index: 1, Name: "lo", MAC: []byte{2, 0, 0, 0, 0, 9}}
	frame := p.helloFrame(0, 0)
	s, err := listen("lo", to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	foreign := make([]byte, 64)
	for at := helloData; at < helloData+12; at += 4 {
		for flow := range uint32(maxFlows + 100) {
			header{flow: 100 + flow, number: 1}.write(foreign, [8]byte(frame[at:]))
			if _, err := s.WriteToUDPAddrPort(foreign, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	if e, seen := probes(t, p, verify.Flow{ID: 6, From: to.Addr(), To: to, Size: 96, Count: 1, Interval: 1, Wait: 2000}); e.Samples[0].RTT == 0 || len(seen.Holds) != 1 {
		t.Errorf("%+v, %+v", e, seen)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) > 0 {
		t.Errorf("%d flows are remembered", len(p.seen))
	}
}

// TestRepeatedPacketsAreNotRemembered sends the packets of a prober again.
func TestRepeatedPacketsAreNotRemembered(t *testing.T) {
	p, lo := onLoopback(t)
	to := lo.Addresses[0]
	if _, seen := probes(t, p, verify.Flow{ID: 6, From: to.Addr(), To: to, Size: 96, Count: 2, Interval: 1, Wait: 2000}); len(seen.Holds) != 2 {
		t.Fatalf("%+v", seen)
	}
	for range 2 {
		if p.remember(&packet{header: header{flow: 6, number: 1}}) {
			t.Error("a probe of a flow that is over has an answer")
		}
	}
	if len(p.seen) > 0 {
		t.Errorf("%v", p.seen)
	}
	if !p.remember(&packet{header: header{flow: 7, number: 1}}) || p.remember(&packet{header: header{flow: 7, number: 1}}) {
		t.Error("a probe is answered twice, or never")
	}
}

// TestFloodOfAPortDoesNotKeepAFlowFromItsEnd: a flood of packets to a port must not prevent the
// flow that reads the port from ending.
func TestFloodOfAPortDoesNotKeepAFlowFromItsEnd(t *testing.T) {
	p, lo := onLoopback(t)
	to := lo.Addresses[0]
	s, err := listen("lo", to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	// The reader always finds a further packet: each packet that is read is followed by another
	// packet.
	flood, err := listen("lo", to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	data := make([]byte, headerSize)
	header{flow: 1, number: 1}.write(data, p.token)
	again := func() {
		if _, err := flood.WriteToUDPAddrPort(data, s.address()); err != nil {
			t.Error(err)
		}
	}
	again()
	ended := make(chan struct{})
	started := make(chan struct{}, 1)
	go func() {
		defer close(ended)
		s.read(p.token, func(*packet) {
			again()
			select {
			case started <- struct{}{}:
			default:
			}
		}, func(*packet) {}, func() bool { return false })
	}()
	<-started
	if err := s.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it reads for ever")
	}
	_ = s.Close()
}

func TestBroadcastsOfOthersAreNotHeard(t *testing.T) {
	p, _ := onLoopback(t)
	other := &Prober{token: p.token, node: 3, rails: []rail{{link: &link.Link{MAC: []byte{2, 0, 0, 0, 0, 9}}}}}
	frame := other.helloFrame(0, 0)
	for number := range 3 {
		p.take(0, other.helloFrame(0, number))
	}
	for node := range 1 << 10 { // forged from one that was heard
		forged := slices.Clone(frame)
		forged[helloData], forged[helloData+1] = byte(node>>8), byte(node)
		if node != 3 {
			p.take(0, forged)
		}
	}
	p.take(0, frame[:helloData+helloFrom])
	if len(p.received) != 1 || !p.received[verify.Broadcast{Node: 3}] {
		t.Errorf("%d broadcasts are remembered", len(p.received))
	}
	station := slices.Clone(frame)
	station[6] ^= 4 // sent again by another station
	p.take(1, station)
	if p.take(0, frame); len(p.received) != 3 || !p.received[verify.Broadcast{Rail: 1, Node: 3, Repeated: true}] || !p.received[verify.Broadcast{Node: 3, Repeated: true}] {
		t.Errorf("repeated: %v", p.received)
	}
}

// TestPodWithoutRDMAIsNoDefectOfARail does not need perftest, because perftest is never started.
func TestPodWithoutRDMAIsNoDefectOfARail(t *testing.T) {
	p, lo := onLoopback(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ib_send_lat"), []byte("#!/bin/false"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	a, err := p.Do(t.Context(), &verify.Request{RDMA: []verify.RDMATest{{ID: 1, Program: "ib_send_lat", From: lo.Addresses[0].Addr(), Port: 18600}}})
	if err == nil || !strings.Contains(err.Error(), "no rail has an RDMA device") || !strings.Contains(err.Error(), "NRI") {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestForeignListenerIsNamed(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port() //nolint:errcheck // that of a TCP listener
	p := &Prober{}
	o := p.server(&verify.RDMATest{ID: 1, Program: "ib_send_lat", Port: port}, []string{"/nonexistent"})
	if !o.Unknown || o.Own || !strings.Contains(o.Error, fmt.Sprintf("another program listens on TCP port %d", port)) {
		t.Errorf("%+v", o)
	}
}

func TestUnansweredProbesAreLost(t *testing.T) {
	p, lo := onLoopback(t)
	silent, err := listen("lo", lo.Addresses[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	e, _ := probes(t, p, verify.Flow{ID: 1, From: lo.Addresses[0].Addr(), To: silent.address(), Size: 96, Count: 3, Interval: 1, Wait: 50})
	for _, s := range e.Samples {
		if s.RTT != 0 || s.Out == 0 {
			t.Errorf("%+v", s)
		}
	}
}

func TestBadRequestsAreErrors(t *testing.T) {
	p, lo := onLoopback(t)
	to := lo.Addresses[0]
	good := verify.Flow{From: to.Addr(), To: to, Size: 96, Count: 1, Interval: 1}
	with := func(change func(f *verify.Flow)) []verify.Flow { f := good; change(&f); return []verify.Flow{f} }
	for name, r := range map[string]*verify.Request{
		"nothing":      {},
		"open twice":   {Open: &verify.Open{}},
		"no such rail": {Flows: with(func(f *verify.Flow) { f.Rail = 1 })},
		"bad rail":     {Flows: with(func(f *verify.Flow) { f.Rail = -1 })},
		"no address":   {Flows: with(func(f *verify.Flow) { f.From = netip.Addr{} })},
		"two families": {Flows: with(func(f *verify.Flow) { f.From = netip.IPv6Loopback() })},
		"too small":    {Flows: with(func(f *verify.Flow) { f.Size = 40 })},
		"too large":    {Flows: with(func(f *verify.Flow) { f.Size = 65536 })},
		"no probe":     {Flows: with(func(f *verify.Flow) { f.Count = 0 })},
		"too many":     {Flows: with(func(f *verify.Flow) { f.Count = maxProbes + 1 })},
		"no interval":  {Flows: with(func(f *verify.Flow) { f.Interval = 0 })},
		"a long wait":  {Flows: with(func(f *verify.Flow) { f.Wait = 1 << 40 })},
		"many flows":   {Flows: make([]verify.Flow, maxFlows+1)},
	} {
		if a, err := p.Do(t.Context(), r); err == nil {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if _, err := (&Prober{}).Do(t.Context(), &verify.Request{Hello: true}); err == nil || !strings.Contains(err.Error(), "open") {
		t.Errorf("the first request: %v", err)
	}
}

func TestServeAnswersEachLine(t *testing.T) {
	in := `{"open": {"token": 1, "interfaces": ["lo", "none0"]}}` + "\nno JSON\n" + `{"report": [1]}` + "\n"
	var out bytes.Buffer
	if err := Serve(t.Context(), strings.NewReader(in), &out, 0); err != nil {
		t.Fatal(err)
	}
	var answers []verify.Answer
	for d := json.NewDecoder(&out); d.More(); {
		var a verify.Answer
		if err := d.Decode(&a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if len(answers) != 3 || len(answers[0].Opened) != 2 || answers[0].Opened[1].Problem == "" || answers[1].Error == "" || answers[2].Error != "" || len(answers[2].Seen) != 1 {
		t.Errorf("%+v", answers)
	}
}

func TestRailsAreInTheOrderOfTheirNumbers(t *testing.T) {
	var links []*link.Link
	for _, name := range []string{"net10", "eth0", "net2", "net1", "net", "net1x", "lo", "net0"} {
		links = append(links, &link.Link{Name: name})
	}
	if have := netNames(links); !slices.Equal(have, []string{"net0", "net1", "net2", "net10"}) {
		t.Errorf("%v", have)
	}
}

// TestHelloIsAnARPProbe compares the broadcast with RFC 5227, section 2.1.1.
func TestHelloIsAnARPProbe(t *testing.T) {
	p := &Prober{token: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, node: 258, rails: make([]rail, 4)}
	p.rails[3] = rail{link: &link.Link{MAC: []byte{2, 0, 0, 0, 0, 9}}}
	p.rails[3].Addresses = []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:9")}
	want := []byte{
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 0x08, 0x06,
		0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 2, 3,
		1, 2, 0, 3, 2, 0, 0, 0, 0, 9, 0, 1,
	}
	want = append(want, sign(p.token, []byte{1, 2, 0, 3, 2, 0, 0, 0, 0, 9, 0, 1})...)
	if have := p.helloFrame(3, 1); !bytes.Equal(have, want) {
		t.Errorf("%x\nnot\n%x", have, want)
	}
}

func FuzzParse(f *testing.F) {
	token := [8]byte{1}
	probe := make([]byte, headerSize)
	header{1, 2, true}.write(probe, token)
	f.Add(probe)
	f.Fuzz(func(t *testing.T, data []byte) {
		h, ok := parse(data, token)
		if !ok {
			return
		}
		back := make([]byte, headerSize)
		h.write(back, token)
		if !bytes.Equal(back, data[:headerSize]) {
			t.Errorf("%x is read as %+v", data, h)
		}
	})
}

var _ verify.Prober = (*Prober)(nil)

var _ verify.Prober = (*Child)(nil)
