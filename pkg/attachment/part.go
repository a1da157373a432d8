package attachment

import (
	"context"
	"errors"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Part is a part of an attachment, for example the NIC that moves, the macvlan, the RDMA
// devices or the addresses. A part embeds [Base] for the methods that it does not need.
//
// The record must name everything that Apply changes before Apply is called, so that Release
// can undo the changes by the record alone. Release is called again after a failure or a
// crash, even if Apply never began.
type Part interface {
	// Name returns the name of the part's step in an ADD. A part must have the same name in a
	// [Plan] and in [ReleaseOrder], because a failed ADD finds the parts to release by name.
	Name() string
	// Holder returns the record of another attachment that holds what this ADD needs, or nil.
	// If the pod of that attachment is gone, the attachment is ended before the ADD continues.
	Holder(tx *Tx) (*ledger.Record, error)
	// Claim decides what the pod gets, and notes that in tx.Record. It changes nothing on the
	// host. It passes the locks that must be held until the record is written to
	// [Tx.UntilRecorded].
	Claim(ctx context.Context, tx *Tx) error
	// Confirm checks what can be known only after the record is written. For example, if two
	// ADDs run at the same time, at least one of them sees the record of the other ADD.
	Confirm(tx *Tx) error
	// Apply makes the changes that Claim recorded. It may fail halfway.
	Apply(ctx context.Context, tx *Tx) error
	// Check compares the part with what ADD made, and returns an error if they differ.
	Check(ctx context.Context, c *Checking) error
	// Available returns the reason why an ADD cannot work now, or nil.
	Available(n *Node) error
	// Recorded reports whether the record has an entry of the part. The result does not
	// matter for the parts in [ReleaseOrder].Files: they are always released.
	Recorded(r *ledger.Record) bool
	// Release undoes the recorded changes of the part. It does nothing if no change is left.
	Release(ctx context.Context, r *Releasing) error
	// TakeOver ends what an upstream plugin began for the attachment.
	TakeOver(ctx context.Context, u *Upstream) error
}

// Base implements all methods of [Part] except Name. Its methods do nothing.
type Base struct{}

// Holder implements [Part].
func (Base) Holder(*Tx) (*ledger.Record, error) { return nil, nil }

// Claim implements [Part].
func (Base) Claim(context.Context, *Tx) error { return nil }

// Confirm implements [Part].
func (Base) Confirm(*Tx) error { return nil }

// Apply implements [Part].
func (Base) Apply(context.Context, *Tx) error { return nil }

// Check implements [Part].
func (Base) Check(context.Context, *Checking) error { return nil }

// Available implements [Part].
func (Base) Available(*Node) error { return nil }

// Recorded implements [Part].
func (Base) Recorded(*ledger.Record) bool { return false }

// Release implements [Part].
func (Base) Release(context.Context, *Releasing) error { return nil }

// TakeOver implements [Part].
func (Base) TakeOver(context.Context, *Upstream) error { return nil }

// Plan lists the parts of the attachment that one call of a plugin makes.
type Plan struct {
	// Claim has the parts in the order for all methods except Apply and Release.
	Claim []Part
	// Apply has the parts in the order in which their Apply is called.
	Apply []Part
	// Chained is set only for a chained plugin: a plugin that adds its part to the attachment
	// of the previous plugin in the chain.
	Chained Chained
}

// Chained is the part of a chained plugin.
type Chained interface {
	Part
	// Off reports whether the configuration turns the part off.
	Off() bool
	// InPlace reports whether everything that the record names for the part is still
	// where Apply put it.
	InPlace(r *ledger.Record, pod *netns.Netns) bool
	// Forget removes the part from the record.
	Forget(r *ledger.Record)
}

// Addresses is the part that gets addresses from an IPAM plugin.
type Addresses interface {
	Part
	// Pass calls the IPAM plugin of the configuration, if there is one, with a verb that has
	// no result.
	Pass(ctx context.Context, n *Node, c *Call, verb string) error
	// ByInterface reports whether an IPAM plugin works on the interface, as a DHCP plugin does.
	// Such a plugin is called only after the interface is in the pod, and it frees the
	// addresses before the interface leaves.
	ByInterface(plugin string) bool
}

var (
	// ErrNotInstalled is wrapped by errors that say that an IPAM plugin is not in CNI_PATH.
	ErrNotInstalled = errors.New("not found in CNI_PATH")
	// ErrNowhere is wrapped if an interface is not found although its device has a driver.
	// The interface may still answer for its addresses, because not every kernel lets us find
	// a netns that only a socket keeps alive, or a netns that was made inside the pod.
	ErrNowhere = errors.New("it is being moved, or in a netns that cannot be found")
)
