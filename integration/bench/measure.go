package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// settle is a pause before each measured process, for what the kernel still
// does about the one before (link events, RCU).
const settle = 80 * time.Millisecond

// result is what was measured of one contender.
type result struct {
	Add, Del       []float64 // wall time, milliseconds
	AddCPU, DelCPU []float64 // CPU time, milliseconds
	Err            error
}

// process is what was measured of one binary.
type process struct {
	Start []float64 // milliseconds of one VERSION
	RSS   int64     // largest of all verbs, bytes
	Size  int64
	Err   error
}

// measurement is one run.
type measurement struct {
	results   map[string]*result  // by contender's id
	processes map[string]*process // by binary's path
}

// run measures rounds rounds, after one that does not count.
func run(s *scratch, list []*contender, files []*binary, rounds int, progress func(round int)) *measurement {
	m := &measurement{results: map[string]*result{}, processes: map[string]*process{}}
	for _, c := range list {
		m.results[c.id] = &result{}
	}
	for _, b := range files {
		m.processes[b.path] = sizeOf(b.path)
	}
	for round := range rounds + 1 {
		progress(round)
		counts := round > 0
		m.ready(list)
		for i := range list {
			c := list[(i+round)%len(list)]
			if r := m.results[c.id]; r.Err == nil {
				r.Err = r.take(s, c, counts)
			}
		}
		for i := range files {
			b := files[(i+round)%len(files)]
			if p := m.processes[b.path]; p.Err == nil && b.plugin {
				p.Err = p.take(s, b.path, counts)
			}
		}
	}
	m.memory(s, list, files)
	return m
}

// ready prepares the NICs of all that are still in the run.
func (m *measurement) ready(list []*contender) {
	nics := map[string]string{}
	for _, c := range list {
		if m.results[c.id].Err == nil {
			nics[c.nic] = c.address
		}
	}
	if err := readyNICs(nics); err != nil {
		for _, c := range list {
			r := m.results[c.id]
			r.Err = errors.Join(r.Err, err)
		}
	}
}

// take measures one ADD and one DEL of a contender.
func (r *result) take(s *scratch, c *contender, counts bool) error {
	time.Sleep(settle)
	add, out, err := s.time(c.add)
	if err != nil {
		return err
	}
	if err := c.check(true); err != nil {
		return fmt.Errorf("%s succeeded, but %w", c.add, err)
	}
	undo, err := c.del(out)
	if err != nil {
		return err
	}
	time.Sleep(settle)
	del, _, err := s.time(undo)
	if err != nil {
		return err
	}
	if err := c.check(false); err != nil {
		return fmt.Errorf("%s succeeded, but %w", undo, err)
	}
	if counts {
		r.Add = append(r.Add, milliseconds(add.wall))
		r.Del = append(r.Del, milliseconds(del.wall))
		r.AddCPU = append(r.AddCPU, milliseconds(add.cpu))
		r.DelCPU = append(r.DelCPU, milliseconds(del.cpu))
	}
	return nil
}

// check makes sure that a verb did its work: a plugin that is quick because it
// does nothing must not win.
func (c *contender) check(added bool) error {
	if c.group == groupIPAM {
		return nil
	}
	inPod := false
	err := within(c.pod, func() error {
		_, err := net.InterfaceByName(ifName)
		inPod = err == nil
		return nil
	})
	if err != nil {
		return err
	}
	if inPod != added {
		return fmt.Errorf("%s in the pod: %v, want %v", ifName, inPod, added)
	}
	_, err = net.InterfaceByName(c.nic)
	atHome := err == nil
	if want := !added || c.group == groupMacvlan; atHome != want {
		return fmt.Errorf("%s on the node: %v, want %v", c.nic, atHome, want)
	}
	return nil
}

// take measures one start of a binary.
func (p *process) take(s *scratch, path string, counts bool) error {
	start, _, err := s.time(versionCommand(path))
	if err == nil && counts {
		p.Start = append(p.Start, milliseconds(start.wall))
	}
	return err
}

// memory looks at each contender's memory, a few times, apart from the timed
// rounds because a traced process is slow.
func (m *measurement) memory(s *scratch, list []*contender, files []*binary) {
	const times = 5
	for range times {
		m.ready(list)
		for _, c := range list {
			p, r := m.processes[c.add.path], m.results[c.id]
			if p == nil || p.Err != nil || r.Err != nil {
				continue
			}
			p.Err = p.peak(s, c)
		}
		for _, b := range files {
			if p := m.processes[b.path]; p.Err == nil && b.plugin {
				p.Err = p.keepPeak(s, versionCommand(b.path))
			}
		}
	}
}

// peak looks at the memory of one ADD and DEL. The result of ADD is what DEL
// gets, and is read before DEL's own output takes its place.
func (p *process) peak(s *scratch, c *contender) error {
	if err := p.keepPeak(s, c.add); err != nil {
		return err
	}
	out, err := s.printed()
	if err != nil {
		return err
	}
	undo, err := c.del(out)
	if err != nil {
		return err
	}
	return p.keepPeak(s, undo)
}

func (p *process) keepPeak(s *scratch, c command) error {
	peak, err := s.peakRSS(c)
	p.RSS = max(p.RSS, peak)
	return err
}

func sizeOf(path string) *process {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return &process{Err: fmt.Errorf("%s is not built", filepath.Base(path))}
	}
	if err != nil {
		return &process{Err: err}
	}
	return &process{Size: info.Size()}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile gives the value below which the share q of the samples lies, by
// linear interpolation, and 0 of no samples.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low == len(sorted)-1 {
		return sorted[low]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

func median(samples []float64) float64 { return quantile(samples, 0.5) }
