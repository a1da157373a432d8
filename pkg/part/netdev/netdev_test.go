package netdev

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
)

// A NIC may be lent between the choice of the NIC and taking its lock. A runtime that tries again
// gets another NIC, or an error that names the pod that has the NIC.
func TestNICThatLeavesWhileItIsChosenAsksForARetry(t *testing.T) {
	host := testnet.NewNetns(t, "host")
	host.NIC("rail0", testnet.NewNetns(t, "switch"))
	host.Inside(func() {
		n, err := attachment.Open(t.TempDir(), attachment.ReleaseOrder{})
		if err != nil {
			t.Error(err)
			return
		}
		defer n.Close()
		chosen, err := link.ByName(n.Netns, "rail0")
		if err != nil {
			t.Error(err)
			return
		}
		host.IP("link", "del", "rail0")
		p := &Part{Conf: &netconf.HostDevice{}, selected: nic.Selector{Device: "rail0"}, chosen: &nic.NIC{Link: chosen}}
		err = p.Claim(t.Context(), &attachment.Tx{Call: &attachment.Call{}, Node: n, Record: &ledger.Record{}})
		if failure.KindOf(err) != failure.TryAgain || !strings.Contains(err.Error(), "rail0") {
			t.Errorf("got %v, kind %v", err, failure.KindOf(err))
		}
	})
}
