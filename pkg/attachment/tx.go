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
	// Parent is the link that the interface is, or is stacked on, before ADD
	// changes anything: the NIC of the host, or the macvlan's parent. Claim of
	// the part that makes the interface sets it. It is nil if no netdev is
	// involved.
	Parent *link.Link
	// Link is the interface in the pod, with its MAC and MTU there. Apply of the
	// part that makes it sets it. It is nil if no netdev is lent.
	Link *link.Link
	// Rail is the rail of the NIC by the node file, and Rails are all rails of the node,
	// sorted. Claim of the part that selects the NIC sets them, if the network needs them
	// (Rails for a network that has them in its addresses). Rail is in the record, too.
	Rail  *int
	Rails []int
	// Layer3 is the interface's configuration except its name.
	Layer3 Layer3

	locked   []func()
	beside   sync.WaitGroup
	recorded bool            // a record may have been written
	begun    map[string]bool // by the names of the parts whose Apply has begun
}

// UntilRecorded keeps a lock until the record is written, or the ADD has failed.
func (tx *Tx) UntilRecorded(unlock func()) { tx.locked = append(tx.locked, unlock) }

// Go runs f concurrently. The ADD does not end, and releases nothing, before f returns.
func (tx *Tx) Go(f func()) { tx.beside.Go(f) }

func (tx *Tx) unlock() {
	for _, f := range tx.locked {
		f()
	}
	tx.locked = nil
}

// Step calls the node's Fault at a step within Apply.
func (tx *Tx) Step(name string) error { return tx.Node.step(name) }

// NoteMove notes in the record how long the move of a device into the pod netns took, if it
// is the longest. It sets the wait for the return, see waitFor.
func (tx *Tx) NoteMove(took time.Duration) {
	tx.Record.MovedMS = max(tx.Record.MovedMS, took.Milliseconds())
}

// NameFree fails if a link of the pod has one of the names, or has it as an
// altname. The kernel would notice only after the move.
func (tx *Tx) NameFree(names ...string) error {
	taken, name, err := link.NameTaken(tx.Pod, names, 0)
	if err != nil || taken == nil {
		return err
	}
	return failure.New(failure.NameTaken, "the pod netns %s already has an interface %q (%s)", tx.Pod.Path, name, taken.Describe()).
		Cure("remove that interface, or attach the network under another name")
}

// Begin marks the part with this name as begun, so that a failed ADD releases it even if its Apply is not
// reached.
func (tx *Tx) Begin(part string) { tx.begun[part] = true }

// claim calls Claim of the parts, and writes the record while their locks are
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
		return false, nil // the configuration can do without it
	}
	tx.recorded = true
	return true, errors.Join(tx.Node.step("record"), tx.Node.Ledger.Put(tx.Record))
}

// run is the transaction. Every change is in the record first, and is released
// by the record if a step fails.
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
		result = tx.result() // before the record is written: it notes the addresses there
	}
	r.Phase = ledger.Lent
	return result, errors.Join(n.step("close"), n.Ledger.Put(r))
}

// rollback releases everything that the ADD has applied. The record is removed
// last, and stays if a release failed.
func (tx *Tx) rollback(ctx context.Context, p *Plan) error {
	if !tx.recorded {
		return nil
	}
	tx.beside.Wait() // else an address could be allocated after it was freed
	n, r := tx.Node, tx.Record
	ctx = context.WithoutCancel(ctx) // an ADD whose time is up must release what it has, too
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

// failed joins the reason of a failed ADD with what could not be released.
func failed(reason, rollback error) error {
	if rollback == nil {
		return reason
	}
	return fmt.Errorf("%w (and the rollback failed: %w; a DEL of the attachment or `railctl gc` tries again)", reason, rollback)
}
