package block

import (
	"context"
	"errors"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// confirm asks the server whether the node still holds its blocks, if a confirmation is
// old. It returns an error only if no block is usable. If a block is usable, confirm waits
// only a short time for the server, and does not wait for another process that is asking.
func (p *pool) confirm(ctx context.Context) error {
	f, err := p.peek(ctx)
	if err != nil {
		return err
	}
	alone, within := p.alone, ctx
	if len(f.usable(p.now())) > 0 {
		alone = p.aloneNow
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, optionalWait)
		defer cancel()
	}
	return alone(ctx, func() error {
		f, err := p.peek(ctx)
		if err != nil {
			return err
		}
		if !f.asks(p.now()) { // another process was quicker
			return nil
		}
		var errs []error
		for _, e := range f.Blocks {
			if e.State != held {
				continue
			}
			_, err := p.confirmOne(within, e)
			if errs = append(errs, err); api.IsTransient(err) {
				break
			}
		}
		if err := errors.Join(errs...); err != nil {
			return p.unconfirmed(ctx, err)
		}
		return nil
	})
}

// unconfirmed notes that the server did not confirm the blocks.
func (p *pool) unconfirmed(ctx context.Context, why error) error {
	usable := 0
	err := p.change(ctx, func(f *file) {
		f.Silent = p.now()
		usable = len(f.usable(f.Silent))
	})
	if err == nil && usable == 0 {
		return failure.From(why, failure.TryAgain, "the server has not confirmed this node's blocks of %s for %s or longer", p.Prefix, api.BlockUsableFor).
			Cure("correct the cause; the next ADD asks again")
	}
	p.warnIf(failure.Wrap(why, failure.TryAgain, "the server does not confirm this node's blocks of %s", p.Prefix))
	return err
}

// confirmOne asks the server about one block, and returns the block as the server has it.
// If the block was freed or claimed anew, confirmOne removes it from the node's file and
// returns nil.
func (p *pool) confirmOne(ctx context.Context, e entry) (*api.PoolState, error) {
	name := api.BlockName(p.Pool, e.Prefix)
	asked := p.now()
	now, err := api.ReadBlock(ctx, p.client, name)
	if err != nil {
		return nil, err
	}
	ok := true
	switch {
	case now == nil:
		// Somebody has deleted the block. The node makes it again, unless another node is
		// quicker.
		self := p.self
		self.Claim = e.Claim
		ok, err = api.CreateBlock(ctx, p.client, name, e.Prefix, self)
		now = &api.PoolState{Name: name, Base: e.Prefix.Addr(), Prefix: e.Prefix, Block: &api.Block{Holder: self}}
	case now.Block.Claim == e.Claim && now.Block.Revoked != "":
		ok, err = api.RevokeBlock(ctx, p.client, name, *now.Block, "")
		now.Block.Revoked = ""
	}
	switch {
	case err != nil:
		return nil, err
	case !ok: // perhaps this request itself changed the block, and its first answer was lost
		return nil, changedError(name)
	case now.Block.Claim != e.Claim:
		p.warnIf(failure.New(failure.Mismatch, "this node no longer holds the block %s: the block was freed, or somebody claimed it anew", e.Prefix).
			Cure("delete this node's pods that have addresses of the block: other pods may get the same addresses"))
		return nil, p.change(ctx, func(f *file) { f.drop(e.Prefix) })
	}
	return now, p.change(ctx, func(f *file) {
		if kept := f.find(e.Prefix); kept != nil && kept.Claim == e.Claim {
			kept.Confirmed = asked
		}
		f.Silent = 0
	})
}

// changedError is the error of a block that changed between a read and a patch.
func changedError(name string) error {
	return failure.New(failure.TryAgain, "IPPool %s changed meanwhile", name).Cure("try again")
}
