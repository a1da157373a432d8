package rdma_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/bootmode"
)

// List the RDMA devices of the network namespace of a process. It needs root.
func ExampleCore_Devices() {
	ns, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ns.Close()
	core, err := rdma.Open(ns)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return // the kernel has no RDMA core
	} else if err != nil {
		fmt.Println(err)
		return
	}
	defer core.Close()

	devices, err := core.Devices()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range devices {
		fmt.Println(d.Name, d.ParentDev, d.NodeGUID)
	}
}

// The RDMA mode in which a node boots, from its files of modprobe(8).
func ExampleBoot_Read() {
	root, err := os.MkdirTemp("", "node")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(root) }()
	dir := filepath.Join(root, "etc/modprobe.d")
	if err := errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "rdma.conf"), []byte("options ib_core netns_mode=0\n"), 0o644)); err != nil {
		fmt.Println(err)
		return
	}

	boot, err := bootmode.Boot{Root: root}.Read()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(boot.Mode)
	for _, s := range boot.Settings {
		fmt.Println(s.Where(), s.Value)
	}
	// Output:
	// exclusive
	// /etc/modprobe.d/rdma.conf:1 0
}
