package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// slicePool is a NodeSlicePool. A controller of whereabouts makes the object and assigns
// each node a slice.
type slicePool struct {
	Metadata kube.Meta `json:"metadata"`
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

// NodeSlice is the slice of a node, with the UID and the resource version of the
// NodeSlicePool that it was read from. As long as the object has this UID and this resource
// version, the slice is the node's.
type NodeSlice struct {
	Slice    netip.Prefix `json:"slice"`
	UID      string       `json:"uid"`
	Revision string       `json:"revision"`
}

// ReadSlice returns node's slice in the NodeSlicePool name. known is the result of an
// earlier call for the same name and node, or zero. If the object has not changed since
// that call, ReadSlice reads only the object's metadata and returns known. The whole object
// has the slices of all nodes: 300 kB for 5 000 nodes.
func ReadSlice(ctx context.Context, client *kube.Client, name, node string, known NodeSlice) (NodeSlice, error) {
	if known.Revision != "" && known.Slice.IsValid() {
		now, err := client.GetMeta(ctx, Slices(client.Namespace()), name)
		if err != nil {
			return NodeSlice{}, missingSlices(err, name)
		}
		if now.UID == known.UID && now.ResourceVersion == known.Revision {
			return known, nil
		}
	}
	data, err := client.Get(ctx, Slices(client.Namespace()), name)
	if err != nil {
		return NodeSlice{}, missingSlices(err, name)
	}
	var p slicePool
	bad := func(err error) error {
		return failure.From(err, failure.BadRecord, "NodeSlicePool %s/%s", client.Namespace(), name).Cure("correct or delete the object")
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return NodeSlice{}, bad(err)
	}
	for _, a := range p.Status.Allocations {
		if a.NodeName != node {
			continue
		}
		slice, err := netip.ParsePrefix(a.SliceRange)
		if err != nil {
			return NodeSlice{}, bad(err)
		}
		return NodeSlice{Slice: slice.Masked(), UID: p.Metadata.UID, Revision: p.Metadata.ResourceVersion}, nil
	}
	return NodeSlice{}, failure.New(failure.NotAvailable, "NodeSlicePool %s/%s has no slice of %s for node %q", client.Namespace(), name, p.Spec.Range, node).
		Cure("check that whereabouts' node slice controller knows the node by this name, and that the range has slices left")
}

// missingSlices returns err. If err means that the server has no NodeSlicePool name, the
// returned error has a cure.
func missingSlices(err error, name string) error {
	if !kube.IsNotFound(err) {
		return err
	}
	return failure.From(err, failure.NotAvailable, "node slices of network %s", name).
		Cure("check that whereabouts' node slice controller runs: it makes a NodeSlicePool for each network with node_slice_size")
}

// NodeSlices is the content of a NodeSlicePool: a range, and the slice of each node.
type NodeSlices struct {
	Range  string
	ByNode map[string]netip.Prefix // slices by node name
}

// InspectSlices returns the NodeSlicePools in client's namespace, by name. The map is empty
// if the cluster does not know this kind of object.
func InspectSlices(ctx context.Context, client *kube.Client) (map[string]*NodeSlices, error) {
	all := map[string]*NodeSlices{}
	_, err := client.List(ctx, Slices(client.Namespace()), kube.ListOptions{}, func(item []byte) error {
		var p slicePool
		if err := json.Unmarshal(item, &p); err != nil {
			return err
		}
		n := &NodeSlices{Range: p.Spec.Range, ByNode: map[string]netip.Prefix{}}
		for _, a := range p.Status.Allocations {
			if slice, err := netip.ParsePrefix(a.SliceRange); err == nil && a.NodeName != "" {
				n.ByNode[a.NodeName] = slice.Masked()
			}
		}
		all[p.Metadata.Name] = n
		return nil
	})
	var refused *kube.Error
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return all, nil
	}
	return all, err
}
