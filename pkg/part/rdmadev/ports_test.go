package rdmadev

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// The chained plugin does not know whether the interface had a carrier before the other
// plugin set it up.
func TestCarrierOfTheChainedPluginAnnouncesTheAddresses(t *testing.T) {
	pod, wire := testnet.NewNetns(t, "pod"), testnet.NewNetns(t, "wire")
	pod.NIC("net1", wire)
	pod.IP("addr", "add", "172.31.1.2/24", "dev", "net1")
	l, err := link.ByName(pod.Netns, "net1")
	if err != nil {
		t.Fatal(err)
	}
	heard := wire.Announced("net1-sw")
	tx := &attachment.Tx{
		Call:   &attachment.Call{Key: ledger.Key{ContainerID: "c1", IfName: "net1"}},
		Node:   &attachment.Node{Log: slog.New(slog.DiscardHandler)},
		Pod:    pod.Netns,
		Record: &ledger.Record{RDMA: &ledger.RDMA{}},
	}
	tx.Layer3.IPs = []*current.IPConfig{{Address: net.IPNet{IP: net.IPv4(172, 31, 1, 2), Mask: net.CIDRMask(24, 32)}}}
	part := Carrier{Chained: &Chained{Conf: &netconf.RDMAChained{}, nic: &lowerNIC{pod: l}}}
	if err := part.Apply(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
	if tx.Record.Link == nil || !tx.Record.Link.Up {
		t.Errorf("link in the record: %+v", tx.Record.Link)
	}
	want := "172.31.1.2 is at " + l.MAC.String()
	for deadline := time.Now().Add(10 * time.Second); !slices.Contains(heard(), want); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never heard that %s, only %q", want, heard())
		}
	}
}
