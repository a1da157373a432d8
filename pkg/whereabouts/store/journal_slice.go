package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// With node slices, a node that has lost its notes (after a reboot, for example) must
// ask the server which pool is its own. If the server does not answer, the journal
// entry names the NodeSlicePool instead of the pool. The pool is filled in by the next
// replay that reads the node's slice, or before that by a call for the same attachment.

const (
	sliceSuffix = ".slice"
	sliceLock   = "slices"
)

// ReleaseSlice frees the addresses that owner's attachment holds in the slice of
// whole.Node. whole is the range that is sliced. The slice is the one that the node read
// last. If the node has read no slice yet, ReleaseSlice reads the slice from the
// NodeSlicePool with the name slices. If the server does not answer, ReleaseSlice writes a
// journal entry and returns no error.
func (s *Store) ReleaseSlice(ctx context.Context, owner ipam.Owner, whole ipam.Pool, slices string) error {
	slice := s.lastSlice(slices, whole.Node).Slice
	var err error
	silence := s.Silence()
	if !slice.IsValid() && silence == "" {
		slice, err = s.readSlice(ctx, slices, whole.Node)
	}
	switch {
	case slice.IsValid():
		whole.Prefix = slice
		s.warnIf(s.enterOwn(ctx, owner, slices, whole.Node, slice))
		return s.Release(ctx, owner, []ipam.Pool{whole})
	case silence == "" && !api.IsTransient(err) && !api.IsAccessError(err):
		s.warnIf(failure.Wrap(err, failure.TryAgain, "the node's slice is unknown, so only the reconciler can free an address in it"))
		return s.Release(ctx, owner, nil)
	}
	s.warnIf(failure.New(failure.TryAgain, "the address is freed later, by rail-agent when it can read NodeSlicePool %s: %s", slices, cmp.Or(silence, fmt.Sprint(err))))
	return errors.Join(s.Release(ctx, owner, nil), s.journal.put(&deferred{
		Kubeconfig: s.kubeconfig, FlatFile: s.flatFile, Server: s.client.Server(), Namespace: s.client.Namespace(),
		Pool: whole, Slices: slices, Owner: owner, Since: time.Now().UTC(),
	}))
}

// AddSlice is like [Journal.Add], for an attachment of a network with node slices.
func (j Journal) AddSlice(e Endpoint, owner ipam.Owner, whole ipam.Pool, slices string) error {
	return j.put(&deferred{
		Kubeconfig: e.Kubeconfig, FlatFile: e.FlatFile, Namespace: e.Namespace,
		Pool: whole, Slices: slices, Owner: owner, Since: time.Now().UTC(),
	})
}

// replaySlices fills in the pool of each journal entry that names a NodeSlicePool of
// this store's server. It reads each slice once. If the node has no slice, the entry
// is dropped: the reconciler frees the address, as after a DEL that finds no slice.
func (s *Store) replaySlices(ctx context.Context) error {
	waiting, err := s.journal.sliced(everyFile)
	errs := []error{err}
	type share struct{ slices, node string }
	shares := map[share]map[string]*deferred{}
	same := ofServer(s.client)
	for file, d := range waiting {
		if same(d) {
			key := share{d.Slices, d.Pool.Node}
			if shares[key] == nil {
				shares[key] = map[string]*deferred{}
			}
			shares[key][file] = d
		}
	}
	for key, entries := range shares {
		slice, err := s.readSlice(ctx, key.slices, key.node)
		switch {
		case err == nil:
			err = s.enterSlice(ctx, entries, slice)
		case noSlice(err):
			s.warnIf(err)
			err = s.journal.dropAll(entries)
		}
		errs = append(errs, err)
		if err != nil && api.IsTransient(err) {
			break
		}
	}
	return errors.Join(errs...)
}

// noSlice reports whether err, from [Store.Slice], means that the node has no slice.
func noSlice(err error) bool {
	return failure.KindOf(err) == failure.NotAvailable && !api.IsTransient(err) && !api.IsAccessError(err)
}

// sliced returns the journal entries in the wanted files that wait for a slice, by
// file name.
func (j Journal) sliced(wanted func(file string) bool) (map[string]*deferred, error) {
	found := map[string]*deferred{}
	err := j.each(sliceSuffix, wanted, func(name string, d *deferred) bool {
		found[name] = d
		return true
	})
	return found, err
}

// dropAll drops the entries. It ends with the first error.
func (j Journal) dropAll(entries map[string]*deferred) error {
	for file := range entries {
		if err := j.drop(file); err != nil {
			return err
		}
	}
	return nil
}

// everyFile makes [Journal.each] read all files.
func everyFile(string) bool { return true }

// enterOwn fills in the slice in the journal entries of owner's attachment. The entries of
// other attachments may be thousands, so it leaves them to [Store.Replay].
func (s *Store) enterOwn(ctx context.Context, owner ipam.Owner, slices, node string, slice netip.Prefix) error {
	entries, err := s.journal.sliced(func(file string) bool { return mayBeOwned(file, owner) })
	if err != nil {
		return err
	}
	same := ofServer(s.client)
	maps.DeleteFunc(entries, func(_ string, d *deferred) bool {
		return d.Slices != slices || d.Pool.Node != node || d.Owner.ContainerID != owner.ContainerID || d.Owner.IfName != owner.IfName || !same(d)
	})
	return s.enterSlice(ctx, entries, slice)
}

// enterSlice replaces each of the entries, which wait for slice, by an entry that names the
// pool. An ADD must do this before it asks for an address: the ADD's turn then drops the
// journal entries of the same attachment. A lock makes sure that each entry is replaced
// only once. Otherwise a slower process could write the new entry after that turn, and the
// entry would free the attachment's new address. The lock is held for one entry at a time,
// so that an ADD does not wait until another process has replaced all its entries.
func (s *Store) enterSlice(ctx context.Context, entries map[string]*deferred, slice netip.Prefix) error {
	if len(entries) == 0 {
		return nil
	}
	dir, err := statefile.OpenExisting(s.journal.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	for file, d := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.enterEntry(ctx, dir, file, d, slice); err != nil {
			return err
		}
	}
	return nil
}

// enterEntry is [Store.enterSlice] for one entry, from a file in dir.
func (s *Store) enterEntry(ctx context.Context, dir *statefile.Dir, file string, d *deferred, slice netip.Prefix) error {
	lock, err := dir.Lock(ctx, sliceLock)
	if err != nil {
		return err
	}
	defer func() { s.warnIf(lock.UnlockAndRemove()) }()
	if !dir.Exists(file) { // another process was quicker
		return nil
	}
	d.Slices, d.Pool.Prefix, d.Server, d.Namespace = "", slice, s.client.Server(), s.client.Namespace()
	if !dir.Exists(d.file()) { // an existing entry may have a note, which d lacks
		if err := s.journal.put(d); err != nil {
			return err
		}
	}
	return s.journal.drop(file)
}
