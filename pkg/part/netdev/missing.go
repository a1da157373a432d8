package netdev

import (
	"fmt"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// Missing returns, of attachments whose NIC is lent, those whose NIC cannot be in the
// pod, and the reason: the NIC is on the host, or no longer exists. It enters no pod.
func Missing(n *attachment.Node, lent []*ledger.Record) (map[ledger.Key]string, error) {
	links, err := link.Links(n.Netns)
	if err != nil {
		return nil, err
	}
	host, missing := n.Host(), map[ledger.Key]string{}
	for _, r := range lent {
		id := r.Loan.Identity
		at := slices.IndexFunc(links, func(l *link.Link) bool {
			now := l.Identity()
			return l.ParentDev == id.ParentDev && (now.Hardware() == id.Hardware() || host.HasOneNIC(id.ParentDev))
		})
		switch {
		case at >= 0:
			missing[r.Key] = fmt.Sprintf("it is on the host, as %s: its driver re-created it, or the pod put it into a netns that ended", links[at].Name)
		case !host.HasNetdev(id.ParentDev):
			missing[r.Key] = "it no longer exists: it was unplugged, or its driver was unbound"
		}
	}
	return missing, nil
}
