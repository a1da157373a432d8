package plans_test

import (
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// TestMacvlanEndsWhereTheHostNetnsIsGone ends the attachment of a nested runtime whose network
// namespace is gone, where the machine's first one may not be opened (a confined container).
// Nothing has to return there.
func TestMacvlanEndsWhereTheHostNetnsIsGone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.call("ADD", b.macvlanConfig(map[string]any{"ipam": localIPAM("172.31.1.0/24")}))
	b.node.MustRun(c)
	b.node.Delete()
	other := testnet.NewNetns(t, "other")
	confined := filepath.Join(t.TempDir(), "confined")
	writeExecutable(t, confined, "#!/bin/sh\nmount -t tmpfs none /proc/1 && exec "+filepath.Join(testnet.Bin(t), "macvlan")+"\n")
	c.Plugin = confined
	other.MustRun(c.With("DEL"))
	if len(b.records()) > 0 || len(b.held()) > 0 {
		t.Errorf("left: %v %v", b.records(), b.held())
	}
}

// TestNICLentFromElsewhereIsNoneOfThisHost has a NIC that is lent, in a state directory that nested
// runtimes share, or that is on a disk. A NIC of that name is missing here, unless it was lent from
// this host netns since the machine booted.
func TestNICLentFromElsewhereIsNoneOfThisHost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.state = filepath.Join(testnet.OnDisk(t), "state")
	before := b.node.State()
	lent := b.call("ADD", b.config(nil))
	b.node.MustRun(lent)
	for _, config := range []string{b.config(nil), b.macvlanConfig(nil)} {
		second := b.call("ADD", config)
		second.ContainerID, second.IfName = "c2", "net2"
		_, err := b.node.Run(second)
		fails(t, err, cnierr.NICLent)
		was := b.changeRecord(0, func(r *ledger.Record) { r.HostNetns.Inode += 1 << 20; r.HostNetns.Cookie += 1 << 40 })
		_, err = b.node.Run(second)
		fails(t, err, cnierr.NICNotFound)
		_, err = b.node.Run(second.With("STATUS"))
		fails(t, err, cnierr.NotAvailable)
		b.changeRecord(0, func(r *ledger.Record) { r.HostNetns = was.HostNetns })
	}
	was := b.changeRecord(0, func(r *ledger.Record) { r.BootID = "11111111-2222-3333-4444-555555555555" })
	_, err := b.node.Run(b.call("STATUS", b.config(nil))) // what was lent before a reboot does not come back
	fails(t, err, cnierr.NotAvailable)
	b.changeRecord(0, func(r *ledger.Record) { r.BootID = was.BootID })
	b.node.MustRun(b.call("STATUS", b.config(nil))) // the NIC comes back
	b.node.MustRun(lent.With("DEL"))
	b.untouched(before)
}
