package keeper

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/component/componenttest"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// TestLinksOfAnEarlierBootHaveNoMetrics has a NIC that is lent now, and a NIC that was lent before
// the machine booted. The second NIC is on the host again.
func TestLinksOfAnEarlierBootHaveNoMetrics(t *testing.T) {
	need.Root(t)
	all, err := New(Options{StateDirs: []string{filepath.Join(testnet.OnDisk(t), "state")}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(all.Close)
	l := all.dirs[0].node.Ledger
	for id, boot := range map[string]string{"now": "", "earlier": "another"} {
		err := l.Put(&ledger.Record{
			Key: ledger.Key{ContainerID: id, IfName: "net1"}, Plugin: "host-device", Phase: ledger.Lent, Created: time.Now().UTC(), BootID: boot,
			Netns: ledger.Netns{ID: netns.ID{Inode: 1}, Path: "/run/netns/gone"}, HostNetns: ledger.Netns{ID: all.dirs[0].node.Netns.ID},
			Loan: &ledger.Loan{NIC: id, Name: id, Snapshot: &nicstate.Snapshot{Name: id}}, Link: &ledger.Link{Up: true, WaitedMS: 1},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if lines := componenttest.Collect(all.collectLinks); len(lines) != 1 {
		t.Errorf("metrics of links: %v, want one", lines)
	}
}
