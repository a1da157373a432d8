package attachment

import (
	"context"
	"errors"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Part is a part of an attachment: the NIC that moves, the macvlan, the RDMA devices
// or the addresses, for example. Embed [Base] for the methods that a part does not
// need.
//
// Everything that Apply changes must be in the record before, so that Release can
// take it back by the record alone. Release is called again after a failure or a
// crash, even if Apply never began.
type Part interface {
	// Name is the name of the part's step in an ADD. A part has the same name in a
	// [Plan] and in [ReleaseOrder]: a failed ADD releases by it.
	Name() string
	// Holder returns the record of another attachment that has what this ADD
	// needs, or nil. An attachment whose pod is gone is ended before the ADD goes on.
	Holder(tx *Tx) (*ledger.Record, error)
	// Claim decides what the pod gets, and writes it to tx.Record. It changes
	// nothing on the host. Locks that must be held until the record is written
	// are passed to [Tx.UntilRecorded].
	Claim(ctx context.Context, tx *Tx) error
	// Confirm checks what is certain only after the record is written: of two
	// ADDs at the same time, one sees the other's record.
	Confirm(tx *Tx) error
	// Apply makes what Claim recorded. It may fail halfway.
	Apply(ctx context.Context, tx *Tx) error
	// Check compares the attachment with what ADD made.
	Check(ctx context.Context, c *Checking) error
	// Available returns the reason why an ADD cannot work now, or nil.
	Available(n *Node) error
	// Recorded reports whether the record has an entry of the part. Parts in
	// [ReleaseOrder].Files are released whatever it reports.
	Recorded(r *ledger.Record) bool
	// Release undoes the recorded changes of the part. It does nothing if none is
	// left.
	Release(ctx context.Context, r *Releasing) error
	// TakeOver ends what an upstream plugin began for the attachment.
	TakeOver(ctx context.Context, u *Upstream) error
}

// Base has the methods of [Part] that do nothing, all but Name.
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

// Plan has the parts that one call of a plugin makes an attachment of.
type Plan struct {
	// Claim is the order for all methods but Apply and Release.
	Claim []Part
	// Apply is the order of Apply.
	Apply []Part
	// Chained is set for a chained plugin, which adds its part to the attachment of
	// the plugin before it.
	Chained Chained
}

// Chained is the part of a chained plugin.
type Chained interface {
	Part
	// Off reports whether the configuration turns the part off.
	Off() bool
	// InPlace reports whether everything that the record has of the part is still
	// where Apply put it.
	InPlace(r *ledger.Record, pod *netns.Netns) bool
	// Forget removes the part from the record.
	Forget(r *ledger.Record)
}

// Addresses is the part that gets addresses from an IPAM plugin.
type Addresses interface {
	Part
	// Pass passes a verb without a result on to the IPAM plugin of the
	// configuration, if there is one.
	Pass(ctx context.Context, n *Node, c *Call, verb string) error
	// ByInterface reports whether an IPAM plugin works on the interface, as one of DHCP
	// does: it gets the interface before it is asked, and frees before the interface leaves.
	ByInterface(plugin string) bool
}

var (
	// ErrNotInstalled is wrapped if an IPAM plugin is not in CNI_PATH.
	ErrNotInstalled = errors.New("not found in CNI_PATH")
	// ErrNowhere is wrapped if an interface is not found although its device
	// has a driver. It may still answer for its addresses: a netns that only a
	// socket keeps alive, or one within the pod's, cannot be found on every
	// kernel.
	ErrNowhere = errors.New("it is being moved, or in a netns that cannot be found")
)
