package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// hasLedger reports whether there is a ledger. An ordinary user can find out only that there is no
// state directory. In any other case hasLedger returns an error for such a user.
func (c *collector) hasLedger() (bool, error) {
	_, err := os.Lstat(c.StateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !c.root:
		return false, errRoot
	}
	return ledger.Exists(c.StateDir), nil
}

// ledgerRecords returns the records of this boot. It leaves out records that cannot be read,
// because they are a separate fact.
func (c *collector) ledgerRecords(context.Context) ([]*ledger.Record, error) {
	there, err := c.hasLedger()
	if err != nil || !there {
		return nil, err
	}
	l, err := ledger.Open(c.StateDir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	records, _ := l.SinceBoot()
	return records, nil
}

// ofLedger reads the facts about the ledger.
func (c *collector) ofLedger(ctx context.Context, to *doctor.Ledger) {
	take(ctx, c, &to.Attachments, c.StateDir+"/attachments", localTime, func(ctx context.Context) ([]doctor.Attachment, error) {
		there, err := c.hasLedger()
		if err != nil || !there {
			return []doctor.Attachment{}, err
		}
		return settled(ctx, c.attachments)
	})
	take(ctx, c, &to.Unreadable, c.StateDir+"/attachments", localTime, func(context.Context) ([]string, error) {
		return c.inLedger(func(l *ledger.Ledger) ([]string, error) {
			_, errs := l.List()
			return texts(errs), nil
		})
	})
	take(ctx, c, &to.Changed, c.StateDir+"/returned", localTime, func(context.Context) ([]string, error) {
		return c.inLedger(func(l *ledger.Ledger) ([]string, error) {
			notes, errs := l.Returned()
			found := []string{}
			for _, n := range notes {
				found = append(found, fmt.Sprintf("%s: %v (%s)", n.NIC, n.Changed, n.File))
			}
			return found, errors.Join(errs...)
		})
	})
}

// attachments returns the present facts about the attachments.
func (c *collector) attachments() ([]doctor.Attachment, error) {
	list, err := inventory.Collect(c.StateDir, false)
	if err != nil {
		return nil, err
	}
	found := []doctor.Attachment{}
	for i := range list.Attachments {
		found = append(found, c.attachment(&list.Attachments[i]))
	}
	return found, nil
}

// settling is the time between two reads of attachments. One read is not enough, because an ADD or
// a DEL may move a NIC after the record was read and before its netns is read.
const settling = 500 * time.Millisecond

// settled reads the attachments until the same attachments lack their netns or their interface in
// two consecutive reads, but at most five times. After the fifth read it leaves out each attachment
// that lacks something for the first time, because its ADD or DEL is still under way.
func settled(ctx context.Context, read func() ([]doctor.Attachment, error)) ([]doctor.Attachment, error) {
	lacks := func(a *doctor.Attachment) bool { return !a.Alive || !a.InPod }
	lacked := map[ledger.Key]bool{}
	for range 4 {
		found, err := read()
		if err != nil {
			return nil, err
		}
		fresh := slices.ContainsFunc(found, func(a doctor.Attachment) bool { return lacks(&a) && !lacked[keyOf(&a)] })
		if !fresh {
			return found, nil
		}
		lacked = map[ledger.Key]bool{}
		for i := range found {
			if lacks(&found[i]) {
				lacked[keyOf(&found[i])] = true
			}
		}
		if wait.For(ctx, settling) != nil {
			return nil, ctx.Err()
		}
	}
	found, err := read()
	return slices.DeleteFunc(found, func(a doctor.Attachment) bool { return lacks(&a) && !lacked[keyOf(&a)] }), err
}

func keyOf(a *doctor.Attachment) ledger.Key {
	return ledger.Key{ContainerID: a.ContainerID, IfName: a.IfName}
}

// inLedger opens the ledger, if there is one, and calls read with it.
func (c *collector) inLedger(read func(*ledger.Ledger) ([]string, error)) ([]string, error) {
	there, err := c.hasLedger()
	if err != nil || !there {
		return []string{}, err
	}
	l, err := ledger.Open(c.StateDir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return read(l)
}

func texts(errs []error) []string {
	found := []string{}
	for _, err := range errs {
		found = append(found, err.Error())
	}
	return found
}

// attachment returns the facts about an attachment.
func (c *collector) attachment(a *inventory.Attachment) doctor.Attachment {
	found := doctor.Attachment{
		Pod: a.Pod, ContainerID: a.ContainerID, IfName: a.IfName, Plugin: a.Plugin, Network: a.Network, NIC: a.NIC, PCI: a.PCI,
		Phase: string(a.Phase), Alive: a.State == inventory.Alive, InPod: a.Link != "", Addresses: a.Addresses, Created: a.Created,
	}
	if a.Driver != "" { // with a userspace driver the NIC has no interface
		found.InPod = found.Alive
	}
	if a.RDMA != nil {
		for _, d := range a.RDMA.Devices {
			if d.Lent {
				found.RDMA = append(found.RDMA, d.Name)
			}
		}
	}
	for _, r := range c.records {
		if r.Key == (ledger.Key{ContainerID: a.ContainerID, IfName: a.IfName}) {
			found.Rail, found.Updated = r.Rail, r.Updated
			if !indexKnown(r) {
				found.InPod = found.Alive
			}
			if r.Pod != nil {
				found.UID = r.Pod.UID
			}
		}
	}
	return found
}

// indexKnown reports whether the record has the index of the attachment's interface in the pod.
// Without the index, it cannot be known that the interface is missing.
func indexKnown(r *ledger.Record) bool {
	switch {
	case r.LendsNetdev():
		return r.Loan.PodIndex != 0
	case r.Child != nil:
		return r.Child.PodIndex != 0
	}
	return r.RDMA != nil && r.RDMA.PodIndex != 0
}
