package attachment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Tx is a running ADD: the state that its parts share.
type Tx struct {
	*Call
	Node   *Node
	Pod    *netns.Netns
	Record *ledger.Record
	// Parent is the host's link as it was before ADD changed anything: the NIC that moves, or
	// the NIC that the macvlan or IPoIB child is stacked on. It is set in Claim of the part that
	// makes the interface. It is nil if no netdev is involved.
	Parent *link.Link
	// Link is the interface in the pod, with its MAC and MTU there. It is set in Apply of the
	// part that makes the interface. It is nil if no netdev is lent.
	Link *link.Link
	// Rail is the rail of the NIC by the node file. Rails has all rails of the node, sorted.
	// Claim of the part that selects the NIC sets them if the network needs them. A network
	// needs Rails if its addresses contain the rails. The record has the Rail too.
	Rail  *int
	Rails []int
	// Layer3 is the interface's configuration except its name.
	Layer3 Layer3

	locked   []func()
	beside   sync.WaitGroup
	recorded bool            // a record may have been written
	begun    map[string]bool // names of the parts whose Apply has begun
}

// UntilRecorded keeps a lock until the record is written or the ADD has failed. Then it calls
// unlock.
func (tx *Tx) UntilRecorded(unlock func()) { tx.locked = append(tx.locked, unlock) }

// Go runs f concurrently. Before f returns, the ADD neither ends nor releases anything.
func (tx *Tx) Go(f func()) { tx.beside.Go(f) }

func (tx *Tx) unlock() {
	for _, f := range tx.locked {
		f()
	}
	tx.locked = nil
}

// Step calls the node's Fault at a step within Apply.
func (tx *Tx) Step(name string) error { return tx.Node.step(name) }

// NoteMove notes in the record how long the move of a device into the pod netns took. The record
// keeps the longest time of all moves. The wait for the return depends on that time, see waitFor.
func (tx *Tx) NoteMove(took time.Duration) {
	tx.Record.MovedMS = max(tx.Record.MovedMS, took.Milliseconds())
}

// NameFree returns an error if a link of the pod has one of the names, as its name or as an
// altname. The kernel would report that only after the move.
func (tx *Tx) NameFree(names ...string) error {
	taken, name, err := link.NameTaken(tx.Pod, names, 0)
	if err != nil || taken == nil {
		return err
	}
	return failure.New(failure.NameTaken, "the pod netns %s already has an interface %q (%s)", tx.Pod.Path, name, taken.Describe()).
		Cure("remove that interface, or attach the network under another name")
}

// Begin marks the part with this name as begun, so that a failed ADD releases the part even if the
// part's Apply is never called.
func (tx *Tx) Begin(part string) { tx.begun[part] = true }

// claim calls Claim of all parts, and writes the record while the locks of the parts are still
// held. It reports whether there is something to apply.
func (tx *Tx) claim(ctx context.Context, p *Plan) (bool, error) {
	defer tx.unlock()
	for _, part := range p.Claim {
		if err := part.Claim(ctx, tx); err != nil {
			return false, err
		}
	}
	if err := tx.Node.step("claim"); err != nil {
		return false, err
	}
	if p.Chained != nil && !p.Chained.Recorded(tx.Record) {
		return false, nil // the configuration does not require the part
	}
	tx.recorded = true
	return true, errors.Join(tx.Node.step("record"), tx.Node.Ledger.Put(tx.Record))
}

// run makes the attachment in one transaction. Every change is recorded before it is made, so that
// the changes can be released by the record if a step fails.
func (tx *Tx) run(ctx context.Context, p *Plan) (*current.Result, error) {
	n, r := tx.Node, tx.Record
	something, err := tx.claim(ctx, p)
	if err != nil || !something {
		return nil, err
	}
	for _, part := range p.Claim {
		if err := part.Confirm(tx); err != nil {
			return nil, err
		}
	}
	if err := n.step("confirm"); err != nil {
		return nil, err
	}
	tx.begun = map[string]bool{}
	for _, part := range p.Apply {
		tx.begun[part.Name()] = true
		if err := errors.Join(part.Apply(ctx, tx), n.step(part.Name())); err != nil {
			return nil, err
		}
	}
	var result *current.Result
	if p.Chained == nil {
		result = tx.result() // before the record is written, because tx.result notes the addresses in it
	}
	r.Phase = ledger.Lent
	return result, errors.Join(n.step("close"), n.Ledger.Put(r))
}

// rollback releases everything that the ADD has applied. It removes the record last. If a release
// fails, the record stays.
func (tx *Tx) rollback(ctx context.Context, p *Plan) error {
	if !tx.recorded {
		return nil
	}
	tx.beside.Wait() // otherwise an address could be allocated after the addresses were freed
	n, r := tx.Node, tx.Record
	ctx = context.WithoutCancel(ctx) // an ADD whose time is up must still release what it has
	begun := func(part Part) bool { return tx.begun[part.Name()] }
	if p.Chained != nil && r.HasInterface() {
		if err := n.releaseParts(ctx, r, returnWait, begun); err != nil {
			return errors.Join(err, n.Ledger.Put(r))
		}
		p.Chained.Forget(r)
		return n.Ledger.Put(r)
	}
	if len(tx.begun) == 0 {
		return n.Ledger.Remove(r)
	}
	return n.release(ctx, r, returnWait, begun)
}

// failed returns the error of a failed ADD: the reason, joined with the error of the rollback if
// the rollback failed.
func failed(reason, rollback error) error {
	if rollback == nil {
		return reason
	}
	return fmt.Errorf("%w (and the rollback failed: %w; a DEL of the attachment or `railctl gc` tries again)", reason, rollback)
}
