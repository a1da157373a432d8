package nicstate_test

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// Move a NIC to the network namespace of a pod and back, and restore its settings. It
// needs root.
func ExampleRestore() {
	lend := func(nic, podPath string, use func(pod *netns.Netns, index int)) error {
		host, err := netns.Current()
		if err != nil {
			return err
		}
		defer host.Close()
		pod, err := netns.Open(podPath)
		if err != nil {
			return err
		}
		defer pod.Close()

		l, err := link.ByName(host, nic)
		if err != nil {
			return err
		}
		view, err := link.ReadView(host, l.Index)
		if err != nil {
			return err
		}
		snapshot, err := nicstate.Take(host, view)
		if err != nil {
			return err
		}
		if err := link.Move(host, l.Index, pod, "net1", nic); err != nil {
			return err
		}
		lent, err := link.Find(pod, l.Identity(), "net1")
		if err != nil {
			return err
		}
		if lent == nil {
			return fmt.Errorf("%s is not in the pod", nic)
		}
		use(pod, lent.Index)

		if err := link.MoveAs(pod, lent, host, nic, snapshot.Alias); err != nil {
			return err
		}
		returned, err := link.ByName(host, nic)
		if err != nil {
			return err
		}
		lost, err := nicstate.Restore(host, returned, snapshot)
		for _, reason := range lost {
			fmt.Println("not restored:", reason)
		}
		return err
	}
	if err := lend("ens12np0", "/run/netns/pod", func(*netns.Netns, int) {}); err != nil {
		fmt.Println(err)
	}
}
