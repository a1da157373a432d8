package block

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/local"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// passEvery is the time between two passes of a [Keeper] over the node's files. A pass
	// makes a request only if something has changed, or a confirmation is old.
	passEvery = 15 * time.Second
	// keptFresh is the age of a confirmation at which the Keeper asks again, so that ADDs
	// need not ask.
	keptFresh = 5 * time.Minute
	// returnAfter is how long a block must have had no address before the node returns it.
	returnAfter = time.Hour
	passTime    = 2 * time.Minute
	// claimTime is longer than the server may still work on a request whose sender has
	// ended.
	claimTime = 5 * time.Minute
)

// Keeper does for a node's blocks what no ADD should wait for. It asks the server whether
// the node still holds the blocks, publishes which pods have addresses of them, and returns
// empty blocks. A Keeper is not safe for concurrent use, but several Keepers may run on one
// node.
type Keeper struct {
	StateDirs []string
	// Open returns the client for a kubeconfig and a flat file, or an error if the node
	// does not permit the two.
	Open func(kubeconfig, flatFile string) (*kube.Client, error)
	Log  *slog.Logger

	published map[string]map[string]api.Entry // what the server has, by claim
	emptied   map[string]moment               // when a block was first seen empty, by claim
	lastError string                          // the last error

	// Set by tests: the node's clock and boot.
	now  func() moment
	boot string
}

// Run keeps the blocks until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for wait.For(ctx, passEvery) == nil { // at first nothing is due
		bounded, cancel := context.WithTimeout(ctx, passTime)
		err := k.Pass(bounded)
		cancel()
		text := fmt.Sprint(err)
		if err != nil && text != k.lastError && ctx.Err() == nil {
			k.Log.Warn("cannot update all address blocks, retrying", "err", err)
		}
		k.lastError = text
	}
}

// Pass does the work that is due now.
func (k *Keeper) Pass(ctx context.Context) error {
	if k.published == nil {
		k.published, k.emptied = map[string]map[string]api.Entry{}, map[string]moment{}
	}
	var errs []error
	for _, dir := range k.StateDirs {
		eachFile(dir, func(server string, f *file) {
			if err := k.keep(ctx, dir, server, f); err != nil {
				errs = append(errs, fmt.Errorf("blocks of %s: %w", f.Pool.Prefix, err))
			}
		})
	}
	return errors.Join(errs...)
}

func (k *Keeper) keep(ctx context.Context, stateDir, server string, f *file) error {
	if len(f.Blocks) == 0 {
		return nil
	}
	client, err := k.Open(f.Kubeconfig, f.FlatFile)
	if err != nil {
		return err
	}
	if statefile.Name(client.Server(), client.Namespace()) != server {
		return failure.New(failure.InvalidConfig, "kubeconfig %s names another server or namespace than the one that has this node's blocks", f.Kubeconfig).
			Cure("write the earlier server and namespace into the kubeconfig, or reboot the node")
	}
	s, err := New(Options{
		Client: client, Kubeconfig: f.Kubeconfig, FlatFile: f.FlatFile, StateDir: stateDir, Node: f.Node, Size: f.Size,
		Warn: func(err error) {
			k.Log.Warn("a step of updating an address block has failed", "pool", f.Pool.Name(), "err", err)
		},
	})
	if err != nil {
		return err
	}
	defer s.Close()
	s.self.Machine = f.Machine
	if k.now != nil {
		s.now, s.self.Boot = k.now, k.boot
	}
	p := s.pool(f.Pool)
	return p.alone(ctx, func() error {
		f, err := p.peek(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for _, e := range f.Blocks {
			err := k.keepBlock(ctx, p, f.Rails, e)
			if errs = append(errs, err); kube.IsUnavailable(err) {
				errs = append(errs, p.change(ctx, func(f *file) { f.Silent = p.now() }))
				break // ADDs may wait for this process
			}
		}
		return errors.Join(errs...)
	})
}

// keepBlock does for one block what is due. rails are the Rails of the node's file. The
// caller must have called [pool.alone].
func (k *Keeper) keepBlock(ctx context.Context, p *pool, rails []ipam.Pool, e entry) error {
	switch { // a killed process may have left the block in one of these states
	case e.State == claiming && e.Confirmed.age(p.now()) < claimTime:
		return nil
	case e.State != held:
		return k.end(ctx, p, e)
	}
	entries, err := p.entries(ctx, rails, e.Prefix)
	if err != nil {
		return err
	}
	t := p.now()
	since, wasEmpty := k.emptied[e.Claim]
	switch {
	case len(entries) > 0:
		delete(k.emptied, e.Claim)
	case !wasEmpty:
		k.emptied[e.Claim] = t
	case since.age(t) >= returnAfter:
		return k.end(ctx, p, e)
	}
	known, ok := k.published[e.Claim]
	if ok && e.Confirmed.age(t) < keptFresh {
		if maps.Equal(known, entries) {
			return nil
		}
		name, b := api.BlockName(p.Pool, e.Prefix), api.Block{Holder: api.Holder{Claim: e.Claim}}
		ok, err := api.PublishBlock(ctx, p.client, name, b, entries)
		if err != nil {
			return err
		}
		if ok {
			k.published[e.Claim] = entries
			return nil
		}
		// The block was revoked, deleted or lost.
	}
	now, err := p.confirmOne(ctx, e)
	if err != nil || now == nil {
		return err
	}
	if !maps.Equal(now.Entries, entries) {
		ok, err := api.PublishBlock(ctx, p.client, now.Name, *now.Block, entries)
		if err != nil || !ok {
			return err // the next pass asks again
		}
	}
	k.published[e.Claim] = entries
	return nil
}

// end returns a block to the cluster, and forgets what the Keeper knew of it.
func (k *Keeper) end(ctx context.Context, p *pool, e entry) error {
	delete(k.published, e.Claim)
	delete(k.emptied, e.Claim)
	return p.returnBlock(ctx, e)
}

// entriesOf returns the entries for the IPPool of a block, from the allocations that are in
// the block.
func entriesOf(all []local.Allocation, block netip.Prefix) map[string]api.Entry {
	entries := map[string]api.Entry{}
	base := &api.PoolState{Base: block.Addr(), Prefix: block}
	for _, a := range all {
		if !block.Contains(a.Addr) {
			continue
		}
		if key, err := base.Key(a.Addr); err == nil {
			entries[key] = api.NewEntry(a.Owner)
		}
	}
	return entries
}

// returnBlock returns a block to the cluster if the block has no addresses. The caller must
// have called [pool.alone].
func (p *pool) returnBlock(ctx context.Context, e entry) error {
	empty := false
	err := p.locked(ctx, func(f *file) (bool, error) {
		entries, err := p.entries(ctx, f.Rails, e.Prefix)
		if err != nil {
			return false, err
		}
		kept := f.find(e.Prefix)
		if empty = len(entries) == 0 && kept != nil; empty {
			kept.State = returning
		}
		return empty, nil
	})
	if err != nil || !empty {
		return err
	}
	now, err := api.ReadBlock(ctx, p.client, api.BlockName(p.Pool, e.Prefix))
	if err == nil && now != nil && now.Block.Claim != "" && (now.Block.Claim == e.Claim || now.Block.Claim == e.Former) {
		var ok bool
		if ok, err = api.FreeBlock(ctx, p.client, now.Name, *now.Block); err == nil && !ok {
			err = changedError(now.Name)
		}
	}
	if err != nil {
		return err
	}
	return p.change(ctx, func(f *file) { f.drop(e.Prefix) })
}
