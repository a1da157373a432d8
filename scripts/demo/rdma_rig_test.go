//go:build rig

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
)

// TestRDMADemo is the second part as "make demo" shows it.
func TestRDMADemo(t *testing.T) {
	if err := demoRDMA(os.Getenv("RAIL_CNI_BIN")); err != nil {
		t.Fatal(err)
	}
}

// TestDemoOnNamedNICs is the second part as "make demo NICS=…" shows it on a
// host, which the machine is.
func TestDemoOnNamedNICs(t *testing.T) {
	if err := softNICs("ens11np0", "ens21np0", "ens12np0"); errors.Is(err, kmod.ErrNoSoftRoCE) {
		need.Skip(t, err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := runAll("ip addr add 192.0.2.7/24 dev ens12np0", "ip route add default via 192.0.2.1 dev ens12np0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runAll("ip link set ens12np0 down") })
	bin := os.Getenv("RAIL_CNI_BIN")
	if err := demoHost(bin, []string{"ens11np0", "mlx5_1"}); err != nil {
		t.Errorf("two NICs, one by its RDMA device: %v", err)
	}
	for why, names := range map[string][]string{
		"must stay on the host": {"ens11np0", "ens12np0"},
		"has no NIC nonesuch":   {"nonesuch"},
		"is named twice":        {"ens11np0", "ens11np0"},
		"has 0 RDMA devices":    {"lo"},
	} {
		demoIsRefused(t, names, why)
	}
}

// demoIsRefused runs the demo on named NICs. It fails unless the demo ends with an error
// that has these texts, and leaves the host as it was.
func demoIsRefused(t *testing.T, names []string, texts ...string) {
	t.Helper()
	err := demoHost(os.Getenv("RAIL_CNI_BIN"), names)
	if err == nil || strings.Contains(err.Error(), "not as it was") {
		t.Errorf("%v: the error is %v", names, err)
		return
	}
	t.Logf("%v: %v", names, err)
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v: the error is %v, and should say %q", names, err, text)
		}
	}
}

// demoNode sets the machine's RDMA mode, and loads the NICs' driver anew with these
// parameters. At the end of the test it is loaded anew without them.
func demoNode(t *testing.T, mode, parameters string) {
	t.Helper()
	if err := errors.Join(setMode(cni{bin: os.Getenv("RAIL_CNI_BIN")}, mode), kmod.ReloadNICs(parameters)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kmod.ReloadNICs(""); err != nil {
			t.Error(err)
		}
	})
}

// TestDemoOnASRIOVNode checks what docs/guide/hardware.md says of a node with virtual
// functions, in both RDMA modes.
func TestDemoOnASRIOVNode(t *testing.T) {
	const physical = "/sys/bus/pci/devices/0000:01:00.0/"
	for _, mode := range []string{exclusive, together} {
		t.Run(mode, func(t *testing.T) {
			demoNode(t, mode, "")
			if err := os.WriteFile(physical+"sriov_numvfs", []byte("2"), 0); err != nil {
				t.Fatal(err)
			}
			var functions []string
			for _, number := range []string{"0", "1"} {
				names, err := filepath.Glob(physical + "virtfn" + number + "/net/*")
				if err != nil || len(names) != 1 {
					t.Fatalf("virtual function %s has the interfaces %v, %v", number, names, err)
				}
				functions = append(functions, filepath.Base(names[0]))
			}
			if err := runAll("ip link set "+oneMore+" up", "ip link set "+oneMore+" vf 1 vlan 0 trust on",
				"ip link set "+functions[0]+" up", "ip link set "+functions[1]+" up"); err != nil {
				t.Fatal(err)
			}
			demoIsRefused(t, []string{oneMore, "ens11np0"}, "must stay on the host", `"allow": ["vfs"]`)
			settings, err := run("ip", "link", "show", oneMore)
			if err != nil {
				t.Fatal(err)
			}
			// The NICs of a pair are not connected, because emulated NICs carry no RDMA traffic.
			if err := demoHost(os.Getenv("RAIL_CNI_BIN"), []string{functions[0], "ens11np0", functions[1], "ens12np0"}); err != nil {
				t.Errorf("two virtual functions, and two NICs: %v", err)
			}
			if now, err := run("ip", "link", "show", oneMore); err != nil || now != settings {
				t.Errorf("the functions' settings were:\n%s\nand are: %v\n%s", settings, err, now)
			}
		})
	}
}

// TestDemoOnAnInfiniBandNode checks what docs/guide/hardware.md says of a node with InfiniBand ports,
// without a subnet manager and with one.
func TestDemoOnAnInfiniBandNode(t *testing.T) {
	for _, mode := range []string{exclusive, together} {
		t.Run(mode, func(t *testing.T) {
			demoNode(t, mode, "link_layer=ib slots=11,12")
			demoIsRefused(t, []string{"ib0", "ib1"}, "has no carrier")
			ports, end, err := makeFabric()
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			if err := demoHost(os.Getenv("RAIL_CNI_BIN"), ports); err != nil {
				t.Error(err)
			}
		})
	}
}
