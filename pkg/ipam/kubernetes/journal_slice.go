package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// With node slices, a node that has lost its notes (after a reboot, for example) must
// ask the server which pool is its own. If the server does not answer, the journal
// entry names the NodeSlicePool instead of the pool. The next call of the node that
// reads its slice fills in the pool.

const (
	sliceSuffix = ".slice"
	sliceLock   = "slices"
)

// ReleaseSlice frees the addresses that owner's attachment holds in the slice of
// whole.Node, which the NodeSlicePool slices assigns from the range whole. If the
// server does not answer, ReleaseSlice writes a journal entry and returns no error.
func (s *Store) ReleaseSlice(ctx context.Context, owner ipam.Owner, whole ipam.Pool, slices string) error {
	var slice netip.Prefix
	var err error
	silence := s.Silence()
	if silence == "" {
		slice, err = s.Slice(ctx, slices, whole.Node)
	}
	switch {
	case silence == "" && err == nil:
		whole.Prefix = slice
		return s.Release(ctx, owner, []ipam.Pool{whole})
	case silence == "" && !passing(err) && !barred(err):
		s.warnIf(cnierr.Wrap(err, cnierr.TryAgain, "", "the node's slice is unknown, so only the reconciler can free an address in it"))
		return s.Release(ctx, owner, nil)
	}
	s.warnIf(cnierr.New(cnierr.TryAgain, "", "the address is freed later, by the next call of this node that can read NodeSlicePool %s: %s",
		slices, cmp.Or(silence, fmt.Sprint(err))))
	return errors.Join(s.Release(ctx, owner, nil), s.journal.put(&deferred{
		Kubeconfig: s.kubeconfig, FlatFile: s.flatFile, Server: s.client.Server(), Namespace: s.client.Namespace(),
		Pool: whole, Slices: slices, Owner: owner, Since: time.Now().UTC(),
	}))
}

// DeferSlice is like [Defer], for an attachment of a network with node slices.
func DeferSlice(journalDir string, way Way, owner ipam.Owner, whole ipam.Pool, slices string) error {
	d := &deferred{
		Kubeconfig: way.Kubeconfig, FlatFile: way.FlatFile, Namespace: way.Namespace,
		Pool: whole, Slices: slices, Owner: owner, Since: time.Now().UTC(),
	}
	return journal{path: journalDir}.put(d)
}

// replaySlices fills in the pool of each journal entry that names a NodeSlicePool of
// this store's server. If the node has no slice, the entry is dropped: the reconciler
// frees the address, as after a DEL that finds no slice.
func (s *Store) replaySlices(ctx context.Context) error {
	waiting, err := s.journal.sliced()
	errs := []error{err}
	here := isAt(s.client)
	for file, d := range waiting {
		if !here(d) {
			continue
		}
		switch _, err := s.Slice(ctx, d.Slices, d.Pool.Node); {
		case err == nil: // Slice has filled in the pool
		case noSlice(err):
			s.warnIf(err)
			errs = append(errs, s.journal.drop(file))
		case passing(err):
			return errors.Join(append(errs, err)...)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// noSlice reports whether err, from [Store.Slice], means that the node has no slice.
func noSlice(err error) bool {
	return cnierr.Code(err) == cnierr.NotAvailable && !passing(err) && !barred(err)
}

// sliced returns the journal entries that wait for a slice, by file name.
func (j journal) sliced() (map[string]*deferred, error) {
	found := map[string]*deferred{}
	err := j.each(sliceSuffix, func(string) bool { return true }, func(name string, d *deferred) bool {
		found[name] = d
		return true
	})
	return found, err
}

// enterSlice replaces the journal entries that wait for node's slice by entries that
// name the pool. An ADD does this before it asks for an address, and its turn then
// drops the journal entries of the same attachment. The lock keeps another process
// from adding such an entry afterwards, which would free the new address.
func (s *Store) enterSlice(ctx context.Context, slices, node string, slice netip.Prefix) error {
	if waiting, err := s.journal.sliced(); err != nil || len(waiting) == 0 {
		return err
	}
	dir, err := statefile.OpenExisting(s.journal.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	lock, err := dir.Lock(ctx, sliceLock)
	if err != nil {
		return err
	}
	defer func() { s.warnIf(lock.UnlockAndRemove()) }()
	waiting, err := s.journal.sliced()
	if err != nil {
		return err
	}
	here := isAt(s.client)
	for file, d := range waiting {
		if d.Slices != slices || d.Pool.Node != node || !here(d) {
			continue
		}
		d.Slices, d.Pool.Prefix, d.Server, d.Namespace = "", slice, s.client.Server(), s.client.Namespace()
		if err := s.journal.put(d); err != nil {
			return err
		}
		if err := s.journal.drop(file); err != nil {
			return err
		}
	}
	return nil
}
