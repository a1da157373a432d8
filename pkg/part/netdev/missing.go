package netdev

import (
	"fmt"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// Missing returns the attachments whose NIC cannot be in the pod, each with the reason: either the
// NIC is on the host, or the NIC no longer exists. lent has the records to look at, each of which
// lends a NIC. Missing does not enter the netns of a pod.
func Missing(n *attachment.Node, lent []*ledger.Record) (map[ledger.Key]string, error) {
	links, err := link.Links(n.Netns)
	if err != nil {
		return nil, err
	}
	host, missing := n.Host(), map[ledger.Key]string{}
	for _, r := range lent {
		id := r.Loan.Identity
		i := slices.IndexFunc(links, func(l *link.Link) bool {
			now := l.Identity()
			return l.ParentDev == id.ParentDev && (now.Hardware() == id.Hardware() || host.HasOneNIC(id.ParentDev))
		})
		switch {
		case i >= 0:
			missing[r.Key] = fmt.Sprintf("the NIC is on the host, as %s: its driver re-created it, or the pod moved it into a netns that has ended", links[i].Name)
		case !host.HasNetdev(id.ParentDev):
			missing[r.Key] = "the NIC no longer exists: it was unplugged, or its driver was unbound"
		}
	}
	return missing, nil
}
