package testnet

import (
	"errors"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// SetRDMAMode sets the machine's RDMA mode, in the rig. It waits until the
// namespaces of pods that ended are gone: the kernel changes the mode only then.
func (n *Netns) SetRDMAMode(t testing.TB, m rdma.Mode) {
	t.Helper()
	core, err := rdma.Open(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := core.SetMode(m)
		if err == nil {
			return
		}
		if !errors.Is(err, rdma.ErrOtherNetns) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
