package store

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Slice returns the node's slice in the NodeSlicePool name. It also fills in the slice in
// the journal entries of owner's attachment that wait for the slice. If it cannot do that,
// it returns an error, because a later replay of these entries would free the attachment's
// new address.
func (s *Store) Slice(ctx context.Context, owner ipam.Owner, name, node string) (netip.Prefix, error) {
	slice, err := s.readSlice(ctx, name, node)
	if err != nil {
		return slice, err
	}
	if err := s.enterOwn(ctx, owner, name, node, slice); err != nil {
		return netip.Prefix{}, failure.From(err, failure.TryAgain, "an earlier DEL of this attachment waits in %s until the node's slice is known", s.journal.Path).
			Cure("try again")
	}
	return slice, nil
}

// readSlice returns the node's slice as the server has it now. Only the server knows the
// slice. The controller assigns a slice to another node when the Node object of the first
// node is deleted. It divides the range again when the size of the range or of the slices
// changes, or when the NodeSlicePool is deleted. What the node remembers of an earlier read
// makes the answer smaller, but does not save the request.
func (s *Store) readSlice(ctx context.Context, name, node string) (netip.Prefix, error) {
	known := s.lastSlice(name, node)
	now, err := api.ReadSlice(ctx, s.client, name, node, known)
	switch {
	case kube.IsUnavailable(err):
		s.recordSilence(err)
	case err == nil && now != known:
		s.warnIf(s.keepSlice(name, node, now))
	}
	return now.Slice, err
}

const slicesDir = "slices"

// lastSlice returns the node's slice as it was last read, or zero. The slice may belong to
// another node by now. So it must not be used to hand out addresses. It may be used to free
// addresses, because only addresses of one attachment are freed.
func (s *Store) lastSlice(name, node string) (last api.NodeSlice) {
	dir, err := s.dir.Sub(slicesDir)
	if err != nil {
		return api.NodeSlice{}
	}
	defer dir.Close()
	data, err := dir.Read(statefile.Name(name, node))
	if err != nil || json.Unmarshal(data, &last) != nil {
		return api.NodeSlice{}
	}
	return last
}

func (s *Store) keepSlice(name, node string, is api.NodeSlice) error {
	data, err := json.Marshal(is)
	if err != nil {
		return err
	}
	dir, err := s.dir.Sub(slicesDir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Write(statefile.Name(name, node), data), dir.Close())
}
