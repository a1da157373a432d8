package link_test

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// Move a NIC to the network namespace of a pod and back, and restore its settings. It
// needs root.
func ExampleNetns_Move() {
	lend := func(nic, podPath string, use func(pod *link.Netns, index int)) error {
		host, err := link.CurrentNetns()
		if err != nil {
			return err
		}
		defer host.Close()
		pod, err := link.OpenNetns(podPath)
		if err != nil {
			return err
		}
		defer pod.Close()

		l, err := host.ByName(nic)
		if err != nil {
			return err
		}
		view, err := host.View(l.Index)
		if err != nil {
			return err
		}
		snapshot, err := host.Snapshot(view)
		if err != nil {
			return err
		}
		if err := host.Move(l.Index, pod, "net1", nic); err != nil {
			return err
		}
		lent, err := pod.Find(l.Identity(), "net1")
		if err != nil {
			return err
		}
		if lent == nil {
			return fmt.Errorf("%s is not in the pod", nic)
		}
		use(pod, lent.Index)

		if err := pod.MoveAs(lent, host, nic, snapshot.Alias); err != nil {
			return err
		}
		returned, err := host.ByName(nic)
		if err != nil {
			return err
		}
		lost, err := host.Restore(returned, snapshot)
		for _, reason := range lost {
			fmt.Println("not restored:", reason)
		}
		return err
	}
	if err := lend("ens12np0", "/run/netns/pod", func(*link.Netns, int) {}); err != nil {
		fmt.Println(err)
	}
}

// The kernel reuses inode numbers of namespaces, but never a cookie.
func ExampleNetnsID_Equal() {
	recorded := link.NetnsID{Inode: 4026532281, Cookie: 17}
	found := link.NetnsID{Inode: 4026532281, Cookie: 23}
	fmt.Println(recorded.Equal(found))
	// Output: false
}
