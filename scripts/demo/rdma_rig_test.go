//go:build rig

package main

import (
	"errors"
	"os"
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
		err := demoHost(bin, names)
		if err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "not as it was") {
			t.Errorf("%v: the error is %v, and should say %q", names, err, why)
		}
	}
}
