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

// ReleaseOrder is the order in which the parts of any recorded attachment are released. Its value
// is plans.ReleaseOrder in pkg/part/plans/order.go. The parts in it have no configuration, because
// they release by the record alone.
type ReleaseOrder struct {
	// Interface has the parts that take the interface and its devices from the
	// pod, one after another.
	Interface []Part
	// Addresses frees the addresses as soon as no interface answers for them, while the rest of
	// Interface is still being released. An IPAM plugin that works on the interface frees them
	// earlier, right before the interface is set down ([Releasing.Leaving]).
	Addresses Addresses
	// Files has the parts that are released last. They are always released, whatever the record
	// contains, and an error is only logged.
	Files []Part
}

// Releasing has everything that parts need to release a recorded attachment. Only the parts in
// ReleaseOrder.Interface get Pod, Home and Wait.
type Releasing struct {
	Node   *Node
	Record *ledger.Record
	// Pod is the pod netns, nil if it is gone.
	Pod *netns.Netns
	// Home is the host netns of the record, or init_net if that host netns is gone. For an
	// attachment that lends nothing, Home may be the netns of the caller.
	Home *netns.Netns
	// Wait bounds the wait for what the kernel is about to return to the host.
	Wait time.Duration
	// Failed is set if an earlier part could not be released, so that the interface may still
	// be in the pod.
	Failed bool

	end     time.Time // of all waits together
	freeing *freeing
}

// Conclusive reports whether Wait is long enough to conclude that a device which has not
// returned no longer exists. A driver may need seconds to make its netdev again.
func (r *Releasing) Conclusive() bool { return r.Wait >= returnWait }

// Await calls done until done returns true or an error, or the wait ends. came reports whether
// done returned true or an error before the wait ended. The kernel returns the devices of dead pods
// one after another, and a driver may take seconds to stop each device (ndo_stop, under the RTNL).
// So if Wait is conclusive, the wait starts over as long as missing, which returns the number
// of devices that are still to return, returns a smaller number each time. All waits of one release
// end after [maxReturn].
func (r *Releasing) Await(ctx context.Context, missing func() int, done func() (bool, error)) (came bool, err error) {
	if ok, err := done(); ok || err != nil {
		return true, err
	}
	ctx, cancel := context.WithDeadline(ctx, r.end)
	defer cancel()
	left := 0
	if r.Conclusive() {
		left = missing()
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
		if left = missing(); left >= before {
			return false, nil
		}
	}
}

// Served returns a context for the wait until the kernel serves a returned device. The context
// ends after Wait or least, whichever is longer, but not later than all waits of the release.
func (r *Releasing) Served(ctx context.Context, least time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(max(r.Wait, least), time.Until(r.end)))
}

// waitFor returns how long to wait for a device of the record that returns to the host:
// three times as long as its move into the pod netns took, at least [returnWait] and at most
// [maxReturn].
func waitFor(r *ledger.Record) time.Duration {
	return max(returnWait, min(3*time.Duration(r.MovedMS)*time.Millisecond, maxReturn))
}

// Leaving lets an IPAM plugin that works on the interface free the addresses. The part that
// releases the interface calls Leaving right before it sets the interface down or deletes the
// interface, when nothing can prevent that any more. The interface must still be up, because a DHCP
// client sends its release from the address. Leaving returns when the addresses are free, but not
// later than after [freeWait], because a NIC must not wait for a plugin that hangs. waited reports
// whether Leaving had to wait. If it had to, the caller's knowledge of the interface is out of
// date, because the pod ran meanwhile.
func (r *Releasing) Leaving(ctx context.Context) (waited bool) {
	if r.freeing == nil || !r.freeing.byInterface {
		return false
	}
	r.freeing.decide(true)
	r.freeing.waitAtMost(ctx, freeWait)
	return true
}

// freeWait bounds the wait for an IPAM plugin that works on the interface to free the addresses.
const freeWait = 10 * time.Second

// Silent starts to free the addresses of the interface, while the release continues. The part that
// releases the interface calls Silent as soon as the interface is down or deleted.
func (r *Releasing) Silent() {
	if r.freeing != nil {
		r.freeing.decide(true)
	}
}

// all selects every part.
func all(Part) bool { return true }

// release ends a recorded attachment: it releases the parts that selected accepts,
// frees the addresses if selected accepts their part, and removes the record. The caller
// holds the attachment's lock.
//
// A missing IPAM plugin delays neither the return of the NIC nor the runtime: the record
// stays, in phase Freeing, and every sweep tries again to free the addresses.
func (n *Node) release(ctx context.Context, r *ledger.Record, bound time.Duration, selected func(Part) bool) error {
	log := n.LogOf(r)
	freeing := n.startFreeing(ctx, r, selected)
	var released error
	// If the record is from an earlier boot, everything that it names is gone. Something new may
	// have the same name.
	if n.Ledger.Holds(r) {
		r.Phase = ledger.Returning
		if err := n.Ledger.Put(r); err != nil {
			log.Warn("cannot update the record", "err", err)
		}
		released = n.releaseInterface(ctx, r, bound, selected, freeing)
	}
	freeing.decide(!n.mayAnswer(r, released)) // if they stay now, the next process that ends the attachment frees them
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

// releaseParts releases the parts of [ReleaseOrder].Interface that selected accepts. The caller
// writes or removes the record.
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
// its release returned err. An interface that could not be taken out of a living pod keeps its
// addresses.
func (n *Node) mayAnswer(r *ledger.Record, err error) bool {
	return err != nil && (errors.Is(err, ErrNowhere) || n.Alive(r))
}

// freeing frees the addresses of an attachment while its interface is being released. Most of
// the time of a release is the kernel's work on an interface that is already down.
type freeing struct {
	byInterface bool
	once        sync.Once
	decided     chan bool
	freed       chan struct{} // closed when err is set
	err         error
}

// startFreeing returns a freeing of r's addresses. It starts to free them as soon as decide is
// called with true.
func (n *Node) startFreeing(ctx context.Context, r *ledger.Record, selected func(Part) bool) *freeing {
	f := &freeing{decided: make(chan bool, 1), freed: make(chan struct{})}
	part := n.order.Addresses
	if selected(part) && part.Recorded(r) {
		f.byInterface = part.ByInterface(r.IPAM.Type)
	} else {
		f.decide(false)
	}
	record := *r // a copy, because the phase of r changes meanwhile
	go func() {
		defer close(f.freed)
		if <-f.decided {
			f.err = part.Release(ctx, &Releasing{Node: n, Record: &record})
		}
	}()
	return f
}

// decide sets whether the addresses are to be freed. Only the first call counts.
func (f *freeing) decide(yes bool) { f.once.Do(func() { f.decided <- yes }) }

// wait waits until the addresses are freed, or until decide has been called with false.
func (f *freeing) wait() error {
	<-f.freed
	return f.err
}

// waitAtMost waits as wait does, but not longer than limit.
func (f *freeing) waitAtMost(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-f.freed:
	case <-ctx.Done():
	}
}
