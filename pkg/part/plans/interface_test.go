package plans_test

import (
	"testing"
)

// TestInterfaceOfARecordIsTheNICThatWasLent has a link in the pod with the index that the record names.
// Root in a pod can give that index to a link of its own once the NIC has left.
func TestInterfaceOfARecordIsTheNICThatWasLent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.config(nil)))
	b.node.Inside(func() {
		r := b.records()[0]
		pod := r.OpenPod()
		if pod == nil {
			t.Fatal("the pod netns is not found")
		}
		defer pod.Close()
		if l := r.InterfaceIn(pod); l == nil || l.Name != "net1" {
			t.Errorf("the interface is %+v", l)
		}
		if up, known := r.LinkUp(); !up || !known {
			t.Errorf("link up %v, known %v", up, known)
		}
		r.Loan.Identity.ParentDev = "0000:77:00.0"
		if l := r.InterfaceIn(pod); l != nil {
			t.Errorf("a link of another device is the interface: %+v", l)
		}
		if _, known := r.LinkUp(); known {
			t.Error("the state of another link is that of the interface")
		}
	})
	b.node.MustRun(b.call("DEL", b.config(nil)))
}
