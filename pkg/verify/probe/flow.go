package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/verify"
)

// These are the limits of requests, and of what a responder remembers.
const (
	maxFlows    = 4096
	maxProbes   = 10_000
	maxDuration = 10 * time.Second       // the maximum of an interval or a wait
	leaveWait   = 200 * time.Millisecond // how long to wait for the kernel's reports about the last answers
)

// arrival has the times of a probe that arrived and of its answer.
type arrival struct {
	time    time.Time
	program time.Duration // from the arrival of the probe until the program answered it
	out     time.Duration // from then until the answer left the interface; 0 as long as it has not left
}

// respond answers the probes of a socket until it is closed.
func (p *Prober) respond(s *socket) {
	s.read(p.token, func(in *packet) {
		if in.answer || !p.remember(in) {
			return
		}
		header{in.flow, in.number, true}.write(in.data, p.token)
		_, _ = s.WriteToUDPAddrPort(in.data, in.from) // an answer that cannot be sent counts as a loss
	}, func(out *packet) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if a := p.seen[out.flow][out.number]; a != nil && a.out == 0 {
			a.out = max(out.time.Sub(a.time)-a.program, 1)
		}
	}, func() bool { return false })
}

// remember notes a probe. It reports whether the probe is the first with its number.
func (p *Prober) remember(in *packet) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	flow := p.seen[in.flow]
	if flow == nil {
		if p.reported[in.flow] || len(p.seen) >= maxFlows {
			return false
		}
		flow = map[uint32]*arrival{}
		p.seen[in.flow] = flow
	}
	if flow[in.number] != nil || len(flow) >= maxProbes {
		return false
	}
	// The answer is sent after this function returns. The wall clock is used, because the kernel's
	// times are from the wall clock.
	flow[in.number] = &arrival{time: in.time, program: max(time.Now().Round(0).Sub(in.time), 0)}
	return true
}

// report returns which probes of the flows have arrived, and forgets them. Probes of these flows
// that arrive later get no answer. report waits for the kernel's reports about the last answers,
// because an answer without a report counts as lost in this node.
func (p *Prober) report(ctx context.Context, flows []uint32, wait time.Duration) *verify.Answer {
	for end := time.Now().Add(wait); p.leaving(flows) && time.Now().Before(end) && ctx.Err() == nil; {
		sleep(ctx, 5*time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := &verify.Answer{}
	for _, id := range flows {
		s := verify.Seen{ID: id, Holds: map[uint32]verify.Hold{}}
		for number, arrived := range p.seen[id] {
			s.Holds[number] = verify.Hold{Program: arrived.program.Nanoseconds(), Out: arrived.out.Nanoseconds()}
		}
		delete(p.seen, id)
		p.reported[id] = true
		a.Seen = append(a.Seen, s)
	}
	return a
}

// leaving reports whether there is a flow for which the kernel has reported that some answers left
// the interface, but not all. If the driver reports nothing, leaving returns false.
func (p *Prober) leaving(flows []uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range flows {
		left := 0
		for _, arrived := range p.seen[id] {
			if arrived.out != 0 {
				left++
			}
		}
		if left > 0 && left < len(p.seen[id]) {
			return true
		}
	}
	return false
}

// measure runs all flows at the same time.
func (p *Prober) measure(ctx context.Context, flows []verify.Flow) (*verify.Answer, error) {
	if len(flows) > maxFlows {
		return nil, fmt.Errorf("%d flows, and at most %d are possible", len(flows), maxFlows)
	}
	for _, f := range flows {
		if err := p.check(&f); err != nil {
			return nil, fmt.Errorf("flow %d: %w", f.ID, err)
		}
	}
	a := &verify.Answer{Echoes: make([]verify.Echo, len(flows))}
	var all sync.WaitGroup
	for i := range flows {
		all.Go(func() { a.Echoes[i] = p.flow(ctx, &flows[i]) })
	}
	all.Wait()
	return a, nil
}

// overhead returns the size of the headers before the payload, in bytes.
func overhead(f *verify.Flow) int {
	const ip4, ip6, udp = 20, 40, 8
	if f.From.Is4() {
		return ip4 + udp
	}
	return ip6 + udp
}

func (p *Prober) check(f *verify.Flow) error {
	wait := time.Duration(max(f.Interval, f.Wait)) * time.Millisecond
	switch {
	case f.Rail < 0 || f.Rail >= len(p.rails) || p.rails[f.Rail].link == nil:
		return fmt.Errorf("there is no rail %d", f.Rail)
	case !f.From.IsValid() || !f.To.IsValid() || f.From.Is4() != f.To.Addr().Is4():
		return errors.New("the addresses are not of the same family")
	case f.Size < overhead(f)+headerSize || f.Size > 65535:
		return fmt.Errorf("packets of %d bytes are not possible", f.Size)
	case f.Count < 1 || f.Count > maxProbes || f.Interval < 1 || f.Wait < 0 || wait > maxDuration:
		return errors.New("its number of probes, interval or wait is out of bounds")
	}
	return nil
}

// flow sends the probes of a flow and waits for their answers.
func (p *Prober) flow(ctx context.Context, f *verify.Flow) verify.Echo {
	e := verify.Echo{ID: f.ID, Samples: make([]verify.Sample, f.Count)}
	s, err := listen(p.rails[f.Rail].Name, f.From)
	if err != nil {
		e.Error = err.Error()
		return e
	}
	defer s.Close()
	var mu sync.Mutex // protects e.Samples, sent and answered
	sent, answered, complete := make([]time.Time, f.Count), 0, false
	sample := func(in *packet) (*verify.Sample, time.Duration) {
		if in.flow != f.ID || in.number >= uint32(f.Count) || sent[in.number].IsZero() {
			return &verify.Sample{}, 0
		}
		return &e.Samples[in.number], max(in.time.Sub(sent[in.number]), 1)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.read(p.token, func(in *packet) {
			mu.Lock()
			defer mu.Unlock()
			if to, after := sample(in); in.answer && in.from == f.To && to.RTT == 0 {
				to.RTT = after.Nanoseconds()
				answered++
			}
		}, func(out *packet) {
			mu.Lock()
			defer mu.Unlock()
			if to, after := sample(out); to.Out == 0 {
				to.Out = after.Nanoseconds()
			}
		}, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return complete && answered >= f.Count
		})
	}()
	failed := s.probe(ctx, f, p.token, func(i int) {
		mu.Lock()
		defer mu.Unlock()
		sent[i] = time.Now().Round(0) // the wall clock, because the kernel's times are from the wall clock
	})
	mu.Lock()
	complete = true
	wait := time.Duration(f.Wait) * time.Millisecond
	if answered == f.Count || failed == f.Count {
		wait = time.Millisecond // all answers are here; wait only for the kernel's reports about the last probes
	}
	mu.Unlock()
	_ = s.SetReadDeadline(time.Now().Add(wait))
	<-ended
	if f.Route {
		e.Route = p.route(f)
	}
	return e
}

// probe sends the probes of a flow with the flow's interval between them, until ctx ends. Before
// each probe it calls sending with the number of the probe. It returns the number of probes that
// the kernel refused.
func (s *socket) probe(ctx context.Context, f *verify.Flow, token [8]byte, sending func(i int)) (failed int) {
	payload := make([]byte, f.Size-overhead(f))
	tick := time.NewTicker(time.Duration(f.Interval) * time.Millisecond)
	defer tick.Stop()
	for i := 0; i < f.Count && ctx.Err() == nil; i++ {
		header{flow: f.ID, number: uint32(i)}.write(payload, token)
		sending(i)
		if _, err := s.WriteToUDPAddrPort(payload, f.To); err != nil {
			failed++
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return failed
}

// isUnreachable reports whether err means that the kernel has no route.
func isUnreachable(err error) bool {
	for _, e := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
