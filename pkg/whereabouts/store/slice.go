package store

import (
	"context"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Slice returns the node's slice in the NodeSlicePool name, and completes the
// journal entries of owner's attachment that wait for it. If it cannot complete
// them it fails, because a later replay would free the attachment's new
// address.
func (s *Store) Slice(ctx context.Context, owner ipam.Owner, name, node string) (netip.Prefix, error) {
	slice, err := s.readSlice(ctx, name, node)
	if err != nil {
		return slice, err
	}
	if err := s.enterOwn(ctx, owner, name, node, slice); err != nil {
		return netip.Prefix{}, failure.WithCure(failure.Wrap(err, failure.TryAgain, "an earlier end of this attachment waits in %s for its slice", s.journal.Path), "try again")
	}
	return slice, nil
}

func (s *Store) readSlice(ctx context.Context, name, node string) (netip.Prefix, error) {
	slice, err := api.ReadSlice(ctx, s.client, name, node)
	if kube.IsUnavailable(err) {
		s.silent(err)
	}
	return slice, err
}
