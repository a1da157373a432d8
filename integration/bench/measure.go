package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// pace sets the number of rounds and the pauses of a run.
type pace struct {
	rounds   int
	settle   time.Duration // before each measured verb
	progress func(round int)
}

// result holds the measurements of one contender.
type result struct {
	Add, Del       []float64 // wall time, milliseconds
	AddCPU, DelCPU []float64 // CPU time, milliseconds
	// AddKernel and DelKernel are nil if nothing was counted; NotCounted is
	// why.
	AddKernel, DelKernel *kernel
	NotCounted           error `json:"-"`
	Err                  error `json:"-"`
}

// process holds the measurements of one binary.
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
	traffic   *traffic            // nil outside of the rig
}

// run measures p.rounds rounds, after one that does not count.
func run(s *scratch, list []*contender, files []*binary, p pace) *measurement {
	m := &measurement{results: map[string]*result{}, processes: map[string]*process{}}
	for _, c := range list {
		m.results[c.id] = &result{}
	}
	for _, b := range files {
		m.processes[b.path] = sizeOf(b.path)
	}
	for round := range p.rounds + 1 {
		p.progress(round)
		counts := round > 0
		m.ready(list)
		for _, i := range order(len(list), round) {
			c := list[i]
			if r := m.results[c.id]; r.Err == nil {
				r.Err = r.take(s, c, p.settle, counts)
			}
		}
		for _, i := range order(len(files), round) {
			b := files[i]
			if p := m.processes[b.path]; p.Err == nil && b.plugin {
				p.Err = p.take(s, b.path, counts)
			}
		}
	}
	m.memory(s, list, files)
	return m
}

// order shuffles n contenders for a round, the same way in each run: in a fixed
// order, even with a rotating start, each contender would always have the same
// predecessor.
func order(n, round int) []int { return rand.New(rand.NewPCG(1, uint64(round))).Perm(n) }

// ready prepares the NICs of all contenders that are still in the run.
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
func (r *result) take(s *scratch, c *contender, settle time.Duration, counts bool) error {
	time.Sleep(settle)
	add, out, err := s.perform(c.add, nil)
	if err != nil {
		return err
	}
	if err := c.check(true); err != nil {
		return fmt.Errorf("ADD succeeded, but %w", err)
	}
	time.Sleep(settle)
	del, _, err := s.perform(c.del, out)
	if err != nil {
		return err
	}
	if err := c.check(false); err != nil {
		return fmt.Errorf("DEL succeeded, but %w", err)
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
	if want := !added || slices.Contains([]string{groupMacvlan, groupCrowd, groupIPoIB}, c.group); atHome != want {
		return fmt.Errorf("%s on the node: %v, want %v", c.nic, atHome, want)
	}
	return c.checkDevice(added)
}

// take measures one start of a binary.
func (p *process) take(s *scratch, path string, counts bool) error {
	start, _, err := s.time(versionCommand(path))
	if err == nil && counts {
		p.Start = append(p.Start, milliseconds(start.wall))
	}
	return err
}

// memory measures each contender's memory a few times, apart from the timed
// rounds because a traced process is slow.
func (m *measurement) memory(s *scratch, list []*contender, files []*binary) {
	const times = 5
	for range times {
		m.ready(list)
		for _, c := range list {
			if m.results[c.id].Err == nil {
				m.peaks(s, c)
			}
		}
		for _, b := range files {
			if p := m.processes[b.path]; p.Err == nil && b.plugin {
				p.Err = p.keepPeak(s, versionCommand(b.path))
			}
		}
	}
}

// peaks measures the memory of one ADD and one DEL of a contender, if it is a
// plugin that counts for the memory table.
func (m *measurement) peaks(s *scratch, c *contender) {
	var result []byte
	for _, step := range slices.Concat(c.add, c.del) {
		run, err := step(result)
		p := m.processes[run.path]
		if p == nil || p.Err != nil {
			return
		}
		if err == nil {
			err = p.keepPeak(s, run)
		}
		// Read the output before the next process replaces it.
		out, readErr := s.printed()
		if p.Err = errors.Join(err, readErr); p.Err != nil {
			return
		}
		if len(out) > 0 {
			result = out
		}
	}
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

// quantile returns the q-quantile of the samples by linear interpolation, or 0
// if there are no samples.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	pos := q * float64(len(sorted)-1)
	low := int(pos)
	if low == len(sorted)-1 {
		return sorted[low]
	}
	return sorted[low] + (pos-float64(low))*(sorted[low+1]-sorted[low])
}

func median(samples []float64) float64 { return quantile(samples, 0.5) }
