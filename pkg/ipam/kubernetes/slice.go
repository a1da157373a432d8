package kubernetes

import (
	"context"
	"encoding/json"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// slicePool is a NodeSlicePool. whereabouts' controller makes it, and gives
// each node its slice.
type slicePool struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		Range     string `json:"range"`
		SliceSize string `json:"sliceSize"`
	} `json:"spec"`
	Status struct {
		Allocations []struct {
			NodeName   string `json:"nodeName"`
			SliceRange string `json:"sliceRange"`
		} `json:"allocations"`
	} `json:"status"`
}

// Slice returns the node's slice in the NodeSlicePool name, and completes the journal
// entries of owner's attachment that wait for it. It fails if it cannot: a later replay
// would free the address that the attachment gets now.
func (s *Store) Slice(ctx context.Context, owner ipam.Owner, name, node string) (netip.Prefix, error) {
	slice, err := s.readSlice(ctx, name, node)
	if err != nil {
		return slice, err
	}
	if err := s.enterOwn(ctx, owner, name, node, slice); err != nil {
		return netip.Prefix{}, cnierr.Wrap(err, cnierr.TryAgain, "try again", "an earlier end of this attachment waits in %s for its slice", s.journal.path)
	}
	return slice, nil
}

func (s *Store) readSlice(ctx context.Context, name, node string) (netip.Prefix, error) {
	data, err := s.client.Get(ctx, Slices(s.client.Namespace()), name)
	if kube.NotFound(err) {
		return netip.Prefix{}, cnierr.Wrap(err, cnierr.NotAvailable,
			"whereabouts' node slice controller makes it for each network with node_slice_size: is it running?", "node slices of network %s", name)
	}
	if kube.Unavailable(err) {
		s.silent(err)
	}
	if err != nil {
		return netip.Prefix{}, err
	}
	var p slicePool
	bad := func(err error) error {
		return cnierr.Wrap(err, cnierr.BadRecord, "correct or delete the object", "NodeSlicePool %s/%s", s.client.Namespace(), name)
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return netip.Prefix{}, bad(err)
	}
	for _, a := range p.Status.Allocations {
		if a.NodeName != node {
			continue
		}
		slice, err := netip.ParsePrefix(a.SliceRange)
		if err != nil {
			return netip.Prefix{}, bad(err)
		}
		return slice.Masked(), nil
	}
	return netip.Prefix{}, cnierr.New(cnierr.NotAvailable,
		"check that the controller knows the node by this name, and that the range has slices left",
		"NodeSlicePool %s/%s has no slice of %s for node %q", s.client.Namespace(), name, p.Spec.Range, node)
}
