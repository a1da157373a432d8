package inventory

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// List is the list of a node's attachments.
type List struct {
	Attachments []Attachment
	Others      int                // attachments of other host network namespaces, which are not in Attachments
	Returned    []*ledger.Returned // NICs that were not returned as they were
	Errors      []error            // unreadable parts, and reasons why the node cannot lend
}

// Collect returns the attachments in the ledger of a state directory, which must exist:
// those of the calling thread's network namespace, or all. It needs root.
func Collect(stateDir string, all bool) (*List, error) {
	host, err := link.CurrentNetns()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	records, err := ledger.Open(stateDir)
	if err != nil {
		return nil, err
	}
	defer records.Close()
	list := &List{Attachments: []Attachment{}}
	list.collect(records, host, all)
	var errs []error
	list.Returned, errs = records.Returned()
	list.Errors = append(list.Errors, errs...)
	return list, nil
}

func (list *List) collect(records *ledger.Ledger, host *link.Netns, all bool) {
	found, errs := records.List()
	if _, err := netconf.ReadNodeFile(netconf.NodeFilePath()); err != nil {
		errs = append(errs, fmt.Errorf("no NIC is lent now: %w", err))
	}
	now := live{host: host}
	defer now.close()
	for _, r := range found {
		if !all && !ofThisHost(records, host, r) {
			list.Others++
			continue
		}
		a := describe(r, stateOf(records, r))
		if a.State == Alive && r.Phase != ledger.Freeing {
			a.Link = linkOf(r)
			if a.RDMA != nil {
				errs = append(errs, now.fill(a.RDMA, r)...)
			}
		}
		list.Attachments = append(list.Attachments, a)
	}
	list.Errors = errs
}
