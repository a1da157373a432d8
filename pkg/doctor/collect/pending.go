package collect

import (
	"fmt"
	"sync"
	"time"
)

// maxPending bounds the reads of earlier runs that have not ended.
const maxPending = 32

// Pending keeps the reads that have not ended when their run did, for a program that collects
// again and again. A source that hangs is not read again until it answers: each read of it has
// a thread that cannot be stopped. The zero value is ready for use, by several runs at a time.
type Pending struct {
	mu    sync.Mutex
	reads map[string]*pendingRead
}

// pendingRead are the reads of one source that have not ended.
type pendingRead struct {
	since time.Time // the first one
	count int
	hangs bool // a run has given one up; a source that another run reads now does not hang
}

// hanging returns the sources that hang, and since when.
func (p *Pending) hanging() map[string]time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := map[string]time.Time{}
	for source, r := range p.reads {
		if r.hangs {
			found[source] = r.since
		}
	}
	return found
}

// begin notes a read. It returns an error if the source hangs, or if too many do.
func (p *Pending) begin(source string) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	hanging := 0
	for _, r := range p.reads {
		if r.hangs {
			hanging++
		}
	}
	r := p.reads[source]
	switch {
	case r != nil && r.hangs:
		return fmt.Errorf("it has not answered since %s", r.since.UTC().Format(time.RFC3339))
	case hanging >= maxPending:
		return fmt.Errorf("not read, because %d other sources do not answer", hanging)
	case r == nil:
		if p.reads == nil {
			p.reads = map[string]*pendingRead{}
		}
		r = &pendingRead{since: time.Now()}
		p.reads[source] = r
	}
	r.count++
	return nil
}

// giveUp notes that a run does not wait any longer for a read that began.
func (p *Pending) giveUp(source string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.reads[source]; r != nil {
		r.hangs = true
	}
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
