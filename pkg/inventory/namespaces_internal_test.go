package inventory

import (
	"errors"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestNamespacesAreOpenedOnce(t *testing.T) {
	node, pod := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "pod")
	n := &Namespaces{HostNetns: node.Netns}
	defer n.Close()
	r := &ledger.Record{Netns: ledger.Netns{ID: pod.ID, Path: pod.Path}}
	other := &ledger.Record{Key: ledger.Key{IfName: "net2"}, Netns: r.Netns}
	in := n.Pod(r)
	if in.Err != nil || !in.Netns.ID.Equal(pod.ID) {
		t.Fatal(in.Netns, in.Err)
	}
	if n.Pod(other) != in || n.Host().Netns != node.Netns {
		t.Error("a namespace was opened twice")
	}
	n.Close()
	if _, err := link.Links(node.Netns); err != nil {
		t.Error("the host netns, which is the caller's, was closed")
	}
	if n.Pod(r) == in {
		t.Error("a closed namespace is used")
	}
}

// A process may hold a netns whose path is gone. Who must not keep a pod from ending does not
// search for it.
func TestOnlyFindPodSearchesForANetnsWithoutItsPath(t *testing.T) {
	pod := testnet.NewNetns(t, "pod")
	n := &Namespaces{}
	defer n.Close()
	r := &ledger.Record{Netns: ledger.Netns{ID: pod.ID, Path: pod.Path + "-gone"}}
	if in := n.Pod(r); !errors.Is(in.Err, errPodGone) || in.Netns != nil {
		t.Error(in.Netns, in.Err)
	}
	if _, err := n.Pod(r).Devices(); !errors.Is(err, errPodGone) {
		t.Error(err)
	}
	in := n.FindPod(r)
	if in.Err != nil || !in.Netns.ID.Equal(pod.ID) {
		t.Error(in.Netns, in.Err)
	}
}
