package inventory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// List is the list of a node's attachments.
type List struct {
	Attachments []Attachment
	Others      int                // number of attachments of other host network namespaces; Attachments does not have them
	Returned    []*ledger.Returned // notes about NICs that were not returned as they were
	Errors      []error            // parts that cannot be read, and reasons why the node cannot lend NICs
}

// Collect returns the attachments in the ledger of a state directory. The ledger must exist. If all
// is false, Collect returns only the attachments of the calling thread's network namespace. It
// needs root.
func Collect(stateDir string, all bool) (*List, error) {
	host, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	records, err := ledger.Open(stateDir)
	if err != nil {
		return nil, err
	}
	defer records.Close()
	now := live{Namespaces: Namespaces{HostNetns: host}}
	defer now.Close()
	list := &List{}
	list.Attachments, list.Others, list.Errors = collect(records, &now, all)
	if _, err := nodefile.Read(nodefile.Path()); err != nil {
		list.Errors = append(list.Errors, fmt.Errorf("no NIC can be lent now: %w", err))
	}
	var errs []error
	list.Returned, errs = records.Returned()
	list.Errors = append(list.Errors, errs...)
	return list, nil
}

// collect returns the attachments of a ledger with their current state. Unless all is true, it
// leaves out the attachments of other host network namespaces. others is the number of these
// attachments.
func collect(records *ledger.Ledger, now *live, all bool) (attachments []Attachment, others int, errs []error) {
	found, errs := records.List()
	for i, err := range errs {
		errs[i] = failure.WithCure(err, "\"railctl gc\" ends the attachment, or says what keeps it")
	}
	attachments = []Attachment{}
	for _, r := range found {
		if !all && !records.OfHost(r, now.HostNetns.ID) {
			others++
			continue
		}
		a := describe(r, stateOf(records, r))
		a.ofEarlierBoot = !records.OfThisBoot(r)
		if a.State == Alive && r.Phase != ledger.Freeing && errors.Is(now.FindPod(r).Err, errPodGone) {
			a.State = Gone
		}
		if a.State == Alive && r.Phase != ledger.Freeing {
			now.fillLink(&a, r)
			if a.RDMA != nil {
				errs = append(errs, lasting(records, r, now.fill(a.RDMA, r))...)
			}
		}
		attachments = append(attachments, a)
	}
	return attachments, others, errs
}

// lasting returns the errors that are not temporary. It leaves out errors about RDMA devices that
// are not found because the ADD or the DEL of the attachment is moving them.
func lasting(records *ledger.Ledger, r *ledger.Record, errs []error) []error {
	gone := func(err error) bool { return errors.Is(err, rdma.ErrNotFound) }
	if !slices.ContainsFunc(errs, gone) {
		return errs
	}
	now, err := records.Peek(r.Key)
	if errors.Is(err, ledger.ErrNoRecord) || err == nil && (now.Phase != ledger.Lent || !now.Updated.Equal(r.Updated)) {
		return slices.DeleteFunc(errs, gone)
	}
	return errs
}
