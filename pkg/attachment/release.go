package attachment

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// ReleaseOrder is the order in which the parts of any recorded attachment are released:
// plans.ReleaseOrder in pkg/part/plans/order.go. Its parts have no configuration, because
// they release by the record alone.
type ReleaseOrder struct {
	// Interface are the parts that take the interface and its devices from the
	// pod, one after another.
	Interface []Part
	// Addresses frees the addresses as soon as no interface answers for them, while the rest of Interface is still
	// being released; by an IPAM plugin that works on the interface right before ([Releasing.Leaving]).
	Addresses Addresses
	// Files are the parts that come last. They are released whatever the record has,
	// and an error is only logged.
	Files []Part
}

// Releasing has everything that parts need to release a recorded attachment. Only the parts in
// ReleaseOrder.Interface get Pod, Home and Wait.
type Releasing struct {
	Node   *Node
	Record *ledger.Record
	// Pod is the pod netns, nil if it is gone.
	Pod *netns.Netns
	// Home is the host netns of the record, or init_net if that is gone. For an attachment that
	// lends nothing it may be the caller's own.
	Home *netns.Netns
	// Wait bounds the wait for what the kernel is about to return to the host.
	Wait time.Duration
	// Failed is set if a part before could not be released: the interface may still be in
	// the pod.
	Failed bool

	end     time.Time // of all waits together
	freeing *freeing
}

// Conclusive reports whether Wait is long enough to conclude that a device which has not
// returned does not exist. A driver may need seconds to make its netdev again.
func (r *Releasing) Conclusive() bool { return r.Wait >= returnWait }

// Await calls done until it returns true or an error, and reports whether it did before
// the wait ended. The kernel returns the devices of dead pods one after another, and a
// driver may take seconds to stop each (ndo_stop, under the RTNL). So Wait, if it is
// conclusive, starts over as long as away, the number of devices that are still to return,
// gets smaller. All waits of one release end after [maxReturn].
func (r *Releasing) Await(ctx context.Context, away func() int, done func() (bool, error)) (came bool, err error) {
	if ok, err := done(); ok || err != nil {
		return true, err
	}
	ctx, cancel := context.WithDeadline(ctx, r.end)
	defer cancel()
	left := 0
	if r.Conclusive() {
		left = away()
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, r.Wait)
		err := wait.Until(waiting, 10*time.Millisecond, done)
		cancel()
		if !wait.Ended(waiting, err) {
			return true, err
		}
		before := left
		if before == 0 || ctx.Err() != nil {
			return false, nil
		}
		if left = away(); left >= before {
			return false, nil
		}
	}
}

// Served returns a context for the wait until the kernel serves a returned device. It ends
// after the longer of Wait and least, or with all waits of the release.
func (r *Releasing) Served(ctx context.Context, least time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(max(r.Wait, least), time.Until(r.end)))
}

// waitFor returns how long to wait for a device of the record that returns to the host:
// three times as long as its move into the pod netns took, at least [returnWait] and at most
// [maxReturn].
func waitFor(r *ledger.Record) time.Duration {
	return max(returnWait, min(3*time.Duration(r.MovedMS)*time.Millisecond, maxReturn))
}

// Leaving is called by the part that releases the interface, right before it sets the
// interface down or deletes it, when nothing can hinder it any more. An IPAM plugin that works
// on the interface frees the addresses now: a client of DHCP sends its release from the
// address. Leaving returns when they are free, at the latest after [freeWait]: a NIC does not
// wait for a plugin that hangs. It reports whether it has waited: the caller's knowledge of
// the interface is out of date then, because the pod continues to run.
func (r *Releasing) Leaving(ctx context.Context) (waited bool) {
	if r.freeing == nil || !r.freeing.byInterface {
		return false
	}
	r.freeing.decide(true)
	r.freeing.waitAtMost(ctx, freeWait)
	return true
}

// freeWait bounds the wait for an IPAM plugin that frees addresses by the interface.
const freeWait = 10 * time.Second

// Silent is called by the part that releases the interface, once the interface is down
// or deleted. From then on its addresses may be freed, while the release continues.
func (r *Releasing) Silent() {
	if r.freeing != nil {
		r.freeing.decide(true)
	}
}

// all selects every part of a record.
func all(Part) bool { return true }

// release ends a recorded attachment: it releases the parts that selected accepts,
// frees the addresses if their part is among them, and removes the record. The caller
// holds the attachment's lock.
//
// A missing IPAM plugin delays neither the NIC nor the runtime: the record
// stays in phase Freeing, and every sweep tries again.
func (n *Node) release(ctx context.Context, r *ledger.Record, bound time.Duration, selected func(Part) bool) error {
	log := n.LogOf(r)
	freeing := n.startFreeing(ctx, r, selected)
	var released error
	// Everything that a record of an earlier boot names is gone. Something new may have
	// the same name.
	if n.Ledger.Holds(r) {
		r.Phase = ledger.Returning
		if err := n.Ledger.Put(r); err != nil {
			log.Warn("cannot update the record", "err", err)
		}
		released = n.releaseInterface(ctx, r, bound, selected, freeing)
	}
	freeing.decide(!n.mayAnswer(r, released)) // if not now, the next to end the attachment frees them
	for _, part := range n.order.Files {
		if !selected(part) {
			continue
		}
		if err := part.Release(ctx, &Releasing{Node: n, Record: r}); err != nil {
			log.Warn("cannot remove a file of the attachment", "part", part.Name(), "err", err)
		}
	}
	freed := freeing.wait()
	switch {
	case released != nil:
		return errors.Join(released, freed)
	case errors.Is(freed, ErrNotInstalled):
		log.Warn("cannot free the addresses yet", "err", freed)
		r.Phase = ledger.Freeing
		return n.Ledger.Put(r)
	case freed != nil:
		r.Phase = ledger.Freeing
		return errors.Join(freed, n.Ledger.Put(r))
	}
	return n.Ledger.Remove(r)
}

// releaseParts releases those parts of the interface that are selected, and leaves
// the record to the caller.
func (n *Node) releaseParts(ctx context.Context, r *ledger.Record, bound time.Duration, selected func(Part) bool) error {
	return n.releaseInterface(ctx, r, bound, selected, n.startFreeing(ctx, r, func(Part) bool { return false }))
}

func (n *Node) releaseInterface(ctx context.Context, r *ledger.Record, bound time.Duration, selected func(Part) bool, freeing *freeing) error {
	pod, err := netns.Find(r.Netns.ID, r.Netns.Path)
	if err != nil {
		return err
	}
	defer pod.Close()
	if pod != nil {
		pod.Unread = func(index int, name string, err error) { warnUnread(n.LogOf(r), pod, index, name, err) }
	}
	home, done, err := n.homeOf(r)
	if err != nil {
		return err
	}
	defer done()
	releasing := &Releasing{
		Node: n, Record: r, Pod: pod, Home: home, Wait: bound, end: time.Now().Add(maxReturn), freeing: freeing,
	}
	if releasing.Conclusive() { // a sweep keeps its short bound
		releasing.Wait = waitFor(r)
	}
	var errs []error
	for _, part := range n.order.Interface {
		if selected(part) && part.Recorded(r) {
			err := part.Release(ctx, releasing)
			releasing.Failed = releasing.Failed || err != nil
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// mayAnswer reports whether the interface may still answer for its addresses after
// its release returned err. While an interface cannot be taken out of a living pod, it
// keeps its addresses.
func (n *Node) mayAnswer(r *ledger.Record, err error) bool {
	return err != nil && (errors.Is(err, ErrNowhere) || n.Alive(r))
}

// freeing frees the addresses of an attachment while its interface is released. Most of
// that release is the kernel's work on an interface that is already down.
type freeing struct {
	byInterface bool
	once        sync.Once
	decided     chan bool
	freed       chan struct{} // closed when err is set
	err         error
}

// startFreeing starts a freeing of r's addresses, which waits for decide.
func (n *Node) startFreeing(ctx context.Context, r *ledger.Record, selected func(Part) bool) *freeing {
	f := &freeing{decided: make(chan bool, 1), freed: make(chan struct{})}
	part := n.order.Addresses
	if selected(part) && part.Recorded(r) {
		f.byInterface = part.ByInterface(r.IPAM.Type)
	} else {
		f.decide(false)
	}
	of := *r // the record's phase is written meanwhile
	go func() {
		defer close(f.freed)
		if <-f.decided {
			f.err = part.Release(ctx, &Releasing{Node: n, Record: &of})
		}
	}()
	return f
}

// decide sets whether the addresses are freed. Only the first call counts.
func (f *freeing) decide(yes bool) { f.once.Do(func() { f.decided <- yes }) }

// wait waits until the addresses are freed, or until decide has said that they stay.
func (f *freeing) wait() error {
	<-f.freed
	return f.err
}

// waitAtMost is wait for at most the time limit.
func (f *freeing) waitAtMost(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-f.freed:
	case <-ctx.Done():
	}
}
