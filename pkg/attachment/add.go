package attachment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// Add makes an attachment and returns its result as JSON, in the CNI version of the
// configuration. If Add fails, nothing of the attachment is left on the host or in the pod.
func (n *Node) Add(ctx context.Context, c *Call, p *Plan) (json.RawMessage, error) {
	if err := netconf.CheckEnv(c.ContainerID, c.IfName, c.Netns, c.Args, c.Path); err != nil {
		return nil, err
	}
	n.CNIPath = c.Path
	if p.Chained != nil {
		return n.addChained(ctx, c, p)
	}
	tx, done, err := n.begin(ctx, c)
	if err != nil {
		return nil, err
	}
	defer done()
	tx.Record = c.newRecord(tx.Pod, n.HostNetns())
	if err := n.endEarlier(ctx, tx); err != nil {
		return nil, err
	}
	if err := n.endOthers(ctx, tx, p); err != nil {
		return nil, err
	}
	if err := errors.Join(n.step("name"), tx.NameFree(c.IfName)); err != nil {
		return nil, err
	}
	var encoded json.RawMessage
	result, err := tx.run(ctx, p)
	if err == nil {
		encoded, err = c.encode(result)
	}
	if err != nil {
		return nil, failed(err, tx.rollback(ctx, p))
	}
	return encoded, nil
}

// begin opens the pod netns and takes the attachment's lock. The caller calls done.
func (n *Node) begin(ctx context.Context, c *Call) (tx *Tx, done func(), err error) {
	pod, err := netns.Open(c.Netns)
	if err != nil {
		return nil, nil, err
	}
	if pod.ID.Equal(n.Netns.ID) {
		pod.Close()
		return nil, nil, failure.New(failure.InvalidNetns, "CNI_NETNS %s is the plugin's own netns: nothing can be lent to the host itself", c.Netns)
	}
	unlock, err := n.lock(ctx, c.Key)
	if err != nil {
		pod.Close()
		return nil, nil, err
	}
	return &Tx{Call: c, Node: n, Pod: pod}, func() { unlock(); pod.Close() }, nil
}

// maxHolders bounds the number of dead holders of the same NIC that an ADD ends, one after
// another.
const maxHolders = 5

// endOthers ends other attachments whose pods are gone: the attachments that a sweep finds, and
// the attachments that hold a device which a part needs. If a part needs a device, endOthers waits
// for the device, which may be on its way to the host. An ADD ends other attachments only here.
func (n *Node) endOthers(ctx context.Context, tx *Tx, p *Plan) error {
	n.sweep(ctx, tx.Key, 0)
	for _, part := range p.Claim {
		for range maxHolders {
			holder, err := part.Holder(tx)
			if err != nil {
				return err
			}
			if holder == nil || n.Alive(holder) {
				break // Claim refuses a NIC that a living pod holds
			}
			if err := n.endIfUnchanged(ctx, holder, returnWait); err != nil {
				return err
			}
		}
	}
	return nil
}

// endEarlier ends an earlier recorded attachment that has the key of this ADD. If that attachment
// is complete and its pod is alive, endEarlier returns an error, because the ADD is refused.
func (n *Node) endEarlier(ctx context.Context, tx *Tx) error {
	old, err := n.getOrSetAside(tx.Key)
	if err != nil || old == nil {
		return err
	}
	if old.Netns.Equal(tx.Pod.ID) && n.Ledger.Holds(old) && old.Phase == ledger.Lent && old.HasInterface() {
		return failure.New(failure.NameTaken, "%s is attached already, since %s, with %s", tx.Key, old.Created.Format(time.RFC3339), old.NICName()).
			Cure("end it with DEL first")
	}
	return n.endFirst(ctx, old)
}

// endFirst ends an attachment before another attachment gets its key, because a record keeps the
// addresses of only one attachment.
func (n *Node) endFirst(ctx context.Context, old *ledger.Record) error {
	err := n.release(ctx, old, returnWait, all)
	if err == nil {
		if _, kept := n.Ledger.Get(old.Key); kept == nil {
			err = failure.New(failure.TryAgain, "the IPAM plugin that is to free its addresses is not in CNI_PATH").Cure("install it again")
		}
	}
	if err != nil {
		return fmt.Errorf("an earlier attachment of %s must end first: %w", old.Key, err)
	}
	return nil
}

// newRecord returns the record of an attachment before its parts have claimed
// anything.
func (c *Call) newRecord(pod *netns.Netns, host ledger.Netns) *ledger.Record {
	args := netconf.ParseArgs(c.Args)
	r := &ledger.Record{
		Key: c.Key, Network: c.Conf.Name, Plugin: c.Conf.Type, Phase: ledger.Lending,
		Created: time.Now().UTC(), Netns: ledger.Netns{ID: pod.ID, Path: c.Netns}, HostNetns: host,
	}
	if args.PodName != "" {
		r.Pod = &ledger.Pod{Namespace: args.PodNamespace, Name: args.PodName, UID: args.PodUID}
	}
	return r
}
