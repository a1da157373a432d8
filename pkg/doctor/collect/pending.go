package collect

import (
	"fmt"
	"sync"
	"time"
)

// maxPending is the maximum number of reads of earlier runs that have not ended.
const maxPending = 32

// Pending remembers reads that had not ended when their run ended. It is for a program that
// collects facts again and again. A source that hangs is not read again until it answers, because
// each such read needs another thread that cannot be stopped. The zero value is ready for use.
// Several runs may use it at the same time.
type Pending struct {
	mu    sync.Mutex
	reads map[string]*pendingRead
}

// pendingRead are the reads of one source that have not ended.
type pendingRead struct {
	since time.Time // when the first of these reads began
	count int
	hangs bool // true if a run has stopped waiting for a read; while a run still waits, the source does not count as hanging
}

// hanging returns the sources that hang, each with the time since when it hangs.
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

// begin notes that a read of the source begins. It returns an error if the source hangs, or if too
// many other sources hang.
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

// giveUp notes that a run no longer waits for a read of the source.
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

// end notes that a read of the source has ended.
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
