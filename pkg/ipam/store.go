package ipam

import (
	"context"
	"net/netip"
)

// Owner is who holds an address: an attachment of a pod.
type Owner struct {
	ContainerID string
	IfName      string
	// PodRef is "namespace/name", or the container id where there is no pod.
	// (PodRef, IfName) outlives the container: a pod whose sandbox is made anew
	// keeps its address.
	PodRef string
	// Network is the name of the CNI network, for GC.
	Network string
}

// Same reports whether held is o's own: the same interface of the same pod, or
// the same attachment under another pod name.
func (o Owner) Same(held Owner) bool {
	return held.PodRef == o.PodRef && held.IfName == o.IfName || held.ContainerID == o.ContainerID && held.IfName == o.IfName
}

// Ends reports whether DEL of o frees what held holds: the container must be the
// same, so that a late DEL of an old container takes nothing from the new one.
// Entries from before whereabouts 0.8 have no interface name.
func (o Owner) Ends(held Owner) bool {
	return held.ContainerID == o.ContainerID && (held.IfName == o.IfName || held.IfName == "")
}

// Claim asks for one address of one pool.
type Claim struct {
	Pool  Pool
	Range *Range
	// Want is the address that the user asked for; the zero Addr means any.
	Want netip.Addr
	// Exclusive says that the address must be free in all pools of the address
	// space, and is reserved there (enable_overlapping_ranges).
	Exclusive bool
}

// Attachment is what a runtime calls one: a container and one interface of it.
type Attachment struct{ ContainerID, IfName string }

// Store remembers what was handed out. Several processes, on several nodes
// where the store spans them, use one store at the same time: a method may
// lose a race and try again, or wait to commit together with others, for as
// long as ctx allows. A method that failed has either changed nothing, or left
// what Release or a later Allocate of the same owner puts right; it never
// leaves one address with two owners.
type Store interface {
	// Allocate assigns owner one address of each claim, in order, with the mask
	// of the claim's network: all of them or, with an error, none. An address
	// that the owner already holds is returned again, now for
	// owner.ContainerID.
	Allocate(ctx context.Context, owner Owner, claims []Claim) ([]netip.Prefix, error)
	// Release frees what owner ends in pools (see [Owner.Ends]). Where a pool
	// holds nothing of it there is nothing to do. It goes on after errors and
	// joins them.
	Release(ctx context.Context, owner Owner, pools []Pool) error
	// Check returns the address that owner's attachment holds in each pool, in
	// order, and an error with code Mismatch if it holds none.
	Check(ctx context.Context, owner Owner, pools []Pool) ([]netip.Prefix, error)
	// GC frees the addresses of network whose attachment is not in valid, in
	// the pools that the configuration names and wherever else the store knows
	// addresses of that network. Those of other networks stay, also where they
	// share a pool. It goes on after errors and joins them.
	GC(ctx context.Context, network string, pools []Pool, valid []Attachment) error
	// Status reports whether an Allocate of each claim, one by one, would succeed
	// now: nil, or an error with the code NotAvailable.
	Status(ctx context.Context, claims []Claim) error
}
