package records

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Reader reads the plugins' records of a node.
type Reader struct {
	StateDir string
	IsRoot   bool // this process is root
}

// HasLedger reports whether there is a ledger. An ordinary user can find out only that there is no
// state directory. In any other case hasLedger returns an error for such a user.
func (c *Reader) HasLedger() (bool, error) {
	_, err := os.Lstat(c.StateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !c.IsRoot:
		return false, files.ErrRoot
	}
	return ledger.Exists(c.StateDir), nil
}

// SinceBoot returns the records of this boot. It leaves out records that cannot be read,
// because they are a separate fact.
func (c *Reader) SinceBoot() ([]*ledger.Record, error) {
	exists, err := c.HasLedger()
	if err != nil || !exists {
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

// Attachments returns the facts of the attachments now. held are the records of this boot.
func (c *Reader) Attachments(held []*ledger.Record) ([]fact.Attachment, error) {
	list, err := inventory.Collect(c.StateDir, false)
	if err != nil {
		return nil, err
	}
	found := []fact.Attachment{}
	for i := range list.Attachments {
		found = append(found, attachmentOf(&list.Attachments[i], held))
	}
	return found, nil
}

// settling is the time between two reads of attachments. One read is not enough, because an ADD or
// a DEL may move a NIC after the record was read and before its netns is read.
const settling = 500 * time.Millisecond

// Settled reads the attachments until the same attachments lack their netns or their interface in
// two consecutive reads, but at most five times. After the fifth read it leaves out each attachment
// that lacks something for the first time, because its ADD or DEL is still under way.
func Settled(ctx context.Context, read func() ([]fact.Attachment, error)) ([]fact.Attachment, error) {
	lacks := func(a *fact.Attachment) bool { return !a.Alive || !a.InPod }
	lacked := map[ledger.Key]bool{}
	for range 4 {
		found, err := read()
		if err != nil {
			return nil, err
		}
		fresh := slices.ContainsFunc(found, func(a fact.Attachment) bool { return lacks(&a) && !lacked[keyOf(&a)] })
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
	return slices.DeleteFunc(found, func(a fact.Attachment) bool { return lacks(&a) && !lacked[keyOf(&a)] }), err
}

func keyOf(a *fact.Attachment) ledger.Key {
	return ledger.Key{ContainerID: a.ContainerID, IfName: a.IfName}
}

// InLedger opens the ledger, if there is one, and calls read with it.
func (c *Reader) InLedger(read func(*ledger.Ledger) ([]string, error)) ([]string, error) {
	exists, err := c.HasLedger()
	if err != nil || !exists {
		return []string{}, err
	}
	l, err := ledger.Open(c.StateDir)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return read(l)
}

// Unreadable returns the reasons why records cannot be read.
func Unreadable(l *ledger.Ledger) []string {
	_, errs := l.List()
	found := []string{}
	for _, err := range errs {
		found = append(found, err.Error())
	}
	return found
}

// attachmentOf returns the facts about an attachment.
func attachmentOf(a *inventory.Attachment, held []*ledger.Record) fact.Attachment {
	found := fact.Attachment{
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
	for _, r := range held {
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
