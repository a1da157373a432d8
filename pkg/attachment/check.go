package attachment

import (
	"context"
	"errors"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Mismatch returns the error of a CHECK that has found a change in the attachment.
func Mismatch(format string, args ...any) error {
	return failure.New(failure.Mismatch, format, args...).Cure("recreate the pod")
}

// Checking has what the parts compare in a CHECK.
type Checking struct {
	*Call
	Node *Node
	Pod  *netns.Netns
	// Record is nil for an attachment that upstream's plugin made before the node was switched
	// over to our plugins.
	Record *ledger.Record
	// Link is the interface in the pod, nil if there is none.
	Link *link.Link
	// Result is the prevResult of the configuration.
	Result *current.Result
}

// IPs returns the addresses of prevResult that belong to the interface.
func (c *Checking) IPs() []*current.IPConfig { return c.addressesOf(c.Result) }

// Check compares the attachment with what ADD made, part by part, and returns an error if they
// differ. It accepts what a later plugin of the chain added, and what a later plugin changed in
// prevResult. It does not compare the MTU, because upstream's plugin tuning changes the MTU of the
// interface but not the MTU in prevResult.
func (n *Node) Check(ctx context.Context, c *Call, p *Plan) error {
	if p.Chained != nil {
		return n.checkChained(ctx, c, p)
	}
	result, err := c.prevResult()
	if err != nil {
		return err
	}
	if err := n.order.Addresses.Pass(ctx, n, c, "CHECK"); err != nil {
		return err
	}
	checking, done, err := n.checking(c)
	if err != nil {
		return err
	}
	defer done()
	checking.Result = result
	for _, part := range p.Claim {
		if err := part.Check(ctx, checking); err != nil {
			return err
		}
	}
	return nil
}

// checking opens the pod netns, and reads the record and the link that a CHECK compares. The caller
// calls done.
func (n *Node) checking(c *Call) (checking *Checking, done func(), err error) {
	pod, err := netns.Open(c.Netns)
	if err != nil {
		return nil, nil, err
	}
	checking = &Checking{Call: c, Node: n, Pod: pod}
	checking.Record, err = n.Ledger.Get(c.Key)
	switch {
	case errors.Is(err, ledger.ErrNoRecord):
		checking.Record, err = nil, nil
	case err == nil && !checking.Record.Netns.Equal(pod.ID):
		err = Mismatch("%s was attached to netns %s, but %s is another netns now", c.Key, checking.Record.Netns.ID, c.Netns)
	}
	if err == nil {
		checking.Link, err = link.ByName(pod, c.IfName)
		if errors.Is(err, link.ErrNotFound) {
			checking.Link, err = nil, nil
		}
	}
	if err != nil {
		pod.Close()
		return nil, nil, err
	}
	return checking, pod.Close, nil
}
