package devices

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// meanwhile runs these commands of ip(8) in the namespace again and again, until the test ends.
func meanwhile(t *testing.T, n *testnet.Netns, commands ...string) {
	t.Helper()
	var over atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		for !over.Load() && !t.Failed() {
			n.Batch(nil, commands...)
		}
	})
	t.Cleanup(func() { over.Store(true); running.Wait() })
}

func TestPodIsReadWhileItsLinksComeAndGo(t *testing.T) {
	pod, wire := testnet.NewNetns(t, "pod"), testnet.NewNetns(t, "wire")
	pod.NIC("net1", wire)
	index, err := pod.Index("net1")
	if err != nil {
		t.Fatal(err)
	}
	r := &ledger.Record{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: ledger.Netns{ID: pod.ID, Path: pod.Path},
		Phase: ledger.Lent, Child: &ledger.Child{PodIndex: index},
	}
	meanwhile(t, pod, "link add other type ifb", "link set other name another", "link set another name other", "link del other")
	others := 0
	for reads := 0; reads < 300 || others == 0; reads++ {
		found, err := Interfaces([]*ledger.Record{r})
		if err != nil {
			t.Fatal(err)
		}
		own := 0
		for _, i := range found {
			if i.Name == "net1" {
				own++
			} else if strings.HasSuffix(i.Name, "other") {
				others++
			}
		}
		if own != 1 {
			t.Fatalf("%+v", found)
		}
	}
}

func TestNICThatMovesWhileItIsReadIsReadWhereItIs(t *testing.T) {
	node, wire := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "wire")
	node.NIC("ens1", wire)
	at := &spaces{inventory.Namespaces{HostNetns: node.Netns}}
	l, err := link.ByName(node.Netns, "ens1")
	if err != nil {
		t.Fatal(err)
	}
	if err := at.podNetns(nil).orGone(nil, l); err != nil {
		t.Errorf("it is there: %v", err)
	}
	node.IP("link", "set", "ens1", "down")
	node.IP("link", "set", "ens1", "name", "ens7")
	if err := at.podNetns(nil).orGone(nil, l); !errors.Is(err, link.ErrNotFound) {
		t.Errorf("it was renamed: %v", err)
	}
	node.IP("link", "set", "ens7", "netns", wire.Path)
	if err := at.podNetns(nil).orGone(errors.New("a file is missing"), l); !errors.Is(err, link.ErrNotFound) {
		t.Errorf("it has left: %v", err)
	}
	var found fact.NIC
	if now := (&target{}).readLink(&found, &inventory.NIC{Name: "ens1"}, at); now != nil || found.MTU.Error != errMoving.Error() {
		t.Errorf("%+v, %+v", now, found.MTU)
	}
}
