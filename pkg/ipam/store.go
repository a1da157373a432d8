package ipam

import (
	"context"
	"net/netip"
)

// Owner is the owner of an address: an attachment of a pod.
type Owner struct {
	ContainerID string
	IfName      string
	// PodRef is the pod's "namespace/name", or the container ID if there is no pod. PodRef
	// and IfName stay the same when the pod gets a new container, so a pod whose sandbox is
	// made again keeps its address.
	PodRef string
	// Network is the name of the CNI network, for GC.
	Network string
}

// Same reports whether o and held are the same owner: the same interface of the same pod,
// or the same attachment under another pod name.
func (o Owner) Same(held Owner) bool {
	return held.PodRef == o.PodRef && held.IfName == o.IfName || held.ContainerID == o.ContainerID && held.IfName == o.IfName
}

// Ends reports whether a DEL of o frees the address that held holds. The container must be
// the same, so that a late DEL of an old container does not free the address of the new
// one. The interface may be missing in held, because entries that whereabouts wrote before
// its version 0.8 have no interface name.
func (o Owner) Ends(held Owner) bool {
	return held.ContainerID == o.ContainerID && (held.IfName == o.IfName || held.IfName == "")
}

// Claim asks for one address of one pool.
type Claim struct {
	Pool  Pool
	Range *Range
	// Want is the requested address; the zero Addr means any.
	Want netip.Addr
	// Exclusive is set if the address must be free in all pools of the address space. The
	// address is then reserved there (enable_overlapping_ranges).
	Exclusive bool
	// Rotate is set if the search begins after the address that this node handed out last
	// in the pool, so that a freed address is handed out again as late as possible. If
	// Rotate is not set, the lowest free address is assigned.
	Rotate bool
	// SameHost has the networks of all rails of the node, including the network of Pool.
	// The address then gets the host part that the container has on the other rails. If the
	// container has none yet, it gets a host part that is free on all rails. If SameHost is
	// nil, the pools of the rails are independent. Only the local store and the store of
	// blocks use SameHost.
	SameHost []netip.Prefix
}

// Attachment is a runtime's identification of an attachment: a container and
// one of its interfaces.
type Attachment struct{ ContainerID, IfName string }

// Store remembers the assigned addresses. Several processes use one store concurrently, on
// several nodes if the store spans them. So a method may lose a race and try again, or wait
// to commit together with others, for as long as ctx allows. A method that failed has
// either changed nothing, or left a state that Release or a later Allocate of the same
// owner repairs. It never leaves one address with two owners.
type Store interface {
	// Allocate assigns owner one address of each claim. It returns the addresses in the
	// order of the claims, with the mask of each claim's network. If it returns an error,
	// it has assigned no address. If owner already holds an address, Allocate returns this
	// address again, and now for owner.ContainerID.
	Allocate(ctx context.Context, owner Owner, claims []Claim) ([]netip.Prefix, error)
	// Release frees the addresses in pools that owner ends (see [Owner.Ends]). It is no
	// error if owner has no address in a pool. Release continues after errors and joins
	// them.
	Release(ctx context.Context, owner Owner, pools []Pool) error
	// Check returns the address that owner's attachment holds in each pool, in the order of
	// pools. If the attachment holds no address in a pool, Check returns an error of kind
	// Mismatch.
	Check(ctx context.Context, owner Owner, pools []Pool) ([]netip.Prefix, error)
	// GC frees the addresses of network whose attachment is not in valid. It searches the
	// pools of the configuration, and all other pools that the store knows for that
	// network. Addresses of other networks stay, even in a shared pool. GC continues after
	// errors and joins them.
	GC(ctx context.Context, network string, pools []Pool, valid []Attachment) error
	// Status returns nil if an Allocate of each claim, one by one, would succeed now.
	// Otherwise it returns an error of kind NotAvailable.
	Status(ctx context.Context, claims []Claim) error
}
