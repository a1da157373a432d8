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

// With node slices only the server knows the pool of a node that has lost its
// notes, as after a reboot. While the server is silent the journal keeps the name
// of the NodeSlicePool instead. The next call of the node that reads the slice there
// enters the pool.

const (
	sliceSuffix = ".slice"
	sliceLock   = "slices"
)

// ReleaseSlice frees what owner's attachment holds in the slice that whole.Node has
// of whole, by the NodeSlicePool slices. If the server cannot tell the slice now,
// that is left to the journal, and is no error.
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
		s.warnIf(cnierr.Wrap(err, cnierr.TryAgain, "", "only the reconciler frees the address, if there is one"))
		return s.Release(ctx, owner, nil)
	}
	s.warnIf(cnierr.New(cnierr.TryAgain, "", "the address is freed later, by the next call of this node that can read NodeSlicePool %s: %s",
		slices, cmp.Or(silence, fmt.Sprint(err))))
	return errors.Join(s.Release(ctx, owner, nil), s.journal.put(&deferred{
		Kubeconfig: s.kubeconfig, FlatFile: s.flatFile, Server: s.client.Server(), Namespace: s.client.Namespace(),
		Pool: whole, Slices: slices, Owner: owner, Since: time.Now().UTC(),
	}))
}

// DeferSlice is [Defer] for an attachment of a network with node slices.
func DeferSlice(journalDir string, way Way, owner ipam.Owner, whole ipam.Pool, slices string) error {
	d := &deferred{
		Kubeconfig: way.Kubeconfig, FlatFile: way.FlatFile, Namespace: way.Namespace,
		Pool: whole, Slices: slices, Owner: owner, Since: time.Now().UTC(),
	}
	return journal{path: journalDir}.put(d)
}

// replaySlices enters the pools of the journal's entries for this store's server
// that name a NodeSlicePool. Without a slice there is none, and the reconciler frees
// the address, as for a DEL that finds no slice.
func (s *Store) replaySlices(ctx context.Context) error {
	waiting, err := s.journal.sliced()
	errs := []error{err}
	here := isAt(s.client)
	for file, d := range waiting {
		if !here(d) {
			continue
		}
		switch _, err := s.Slice(ctx, d.Slices, d.Pool.Node); {
		case err == nil: // it has entered the pool
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

// noSlice reports whether err, of [Store.Slice], is that the node has none.
func noSlice(err error) bool {
	return cnierr.Code(err) == cnierr.NotAvailable && !passing(err) && !barred(err)
}

// sliced returns what waits for a slice, by file name.
func (j journal) sliced() (map[string]*deferred, error) {
	found := map[string]*deferred{}
	err := j.each(sliceSuffix, func(string) bool { return true }, func(name string, d *deferred) bool {
		found[name] = d
		return true
	})
	return found, err
}

// enterSlice replaces the journal's entries that wait for node's slice by entries
// that name the pool. An ADD does this before it asks for an address, and its turn
// then forgets what the journal has of the same attachment. So the lock keeps
// others from entering that later.
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
