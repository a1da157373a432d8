package collect

import (
	"fmt"
	"sync"
	"time"
)

// mostPending bounds the reads of earlier runs that have not ended.
const mostPending = 32

// Pending keeps the reads that have not ended when their run did, for a program that collects
// again and again. A source that hangs is not read again until it answers: each read of it has
// a thread that cannot be stopped. The zero value is ready for use, by several runs at a time.
type Pending struct {
	mu    sync.Mutex
	reads map[string]*pendingRead
}

// pendingRead are the reads of one source by one run.
type pendingRead struct {
	run   *collector
	since time.Time
	count int
}

// begin notes a read of the run c. It returns an error if an earlier run still reads the
// source, or if too many sources hang.
func (p *Pending) begin(c *collector, source string) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	earlier := 0
	for _, r := range p.reads {
		if r.run != c {
			earlier++
		}
	}
	r := p.reads[source]
	switch {
	case r != nil && r.run != c:
		return fmt.Errorf("it has not answered since %s", r.since.UTC().Format(time.RFC3339))
	case earlier >= mostPending:
		return fmt.Errorf("not read, because %d other sources do not answer", earlier)
	case r == nil:
		if p.reads == nil {
			p.reads = map[string]*pendingRead{}
		}
		r = &pendingRead{run: c, since: time.Now()}
		p.reads[source] = r
	}
	r.count++
	return nil
}

// end notes the end of a read that began.
func (p *Pending) end(source string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.reads[source]
	if r.count--; r.count == 0 {
		delete(p.reads, source)
	}
}
