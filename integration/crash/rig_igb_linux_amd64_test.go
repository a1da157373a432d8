//go:build machines

package crash

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestNoSettingOfAnIGBFunctionIsLostWherePluginsAreKilled is the sweep of sriov with drivers of the kernel, in a machine with igb.
// That has no RDMA device, so one of both modes is enough.
func TestNoSettingOfAnIGBFunctionIsLostWherePluginsAreKilled(t *testing.T) {
	if os.Getenv(rig.Mark) != "" {
		newRail(t, sriov, rdma.Exclusive, false).sweep(t, "sriov, igb", rdma.Exclusive, 2)
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join("..", "..", "bin", "tools", "rig")
	cmd := exec.CommandContext(t.Context(), tool, program, "-test.v", "-test.run=^"+t.Name()+"$", "-test.timeout=50m")
	cmd.Env = append(os.Environ(), "RIG_IGB=yes")
	out, err := cmd.CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
}
