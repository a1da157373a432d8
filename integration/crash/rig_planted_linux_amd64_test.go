//go:build machines

package crash

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/rig"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestPlantedBugOfRDMAIsFound tests the harness in the rig: a record without
// the RDMA device that moves with the NIC must lose it. It builds the plugin,
// and runs itself in the rig. (A chained plugin that records too late loses
// nothing: its DEL goes by the interface then.)
func TestPlantedBugOfRDMAIsFound(t *testing.T) {
	if os.Getenv(rig.Mark) != "" {
		findPlanted(t)
		return
	}
	bin := plant(t, "pkg/attachment/tx.go", `return true, errors.Join(tx.Node.step("record"), tx.Node.Ledger.Put(tx.Record))`,
		"without := *tx.Record\nwithout.RDMA = nil\nreturn true, errors.Join(tx.Node.step(\"record\"), tx.Node.Ledger.Put(&without))")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join("..", "..", "bin", "tools", "rig")
	cmd := exec.CommandContext(t.Context(), tool, program, "-test.v", "-test.run=^"+t.Name()+"$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), "RAIL_CNI_BIN="+bin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// findPlanted sweeps an ADD, some points of it, until something is lost.
func findPlanted(t *testing.T) {
	r := newRail(t, "host-device", rdma.Exclusive, false)
	r.verb = "ADD"
	found := sweep(t, r.host, "host-device, planted", "ADD", mode{whole: true, recovery: byDEL, nth: 10}, everyPoint, 1)
	if len(found.losses) == 0 {
		t.Fatalf("%d of %d points were tried, and nothing was found", found.tried, found.points)
	}
	first, _, _ := strings.Cut(found.losses[0], "\n")
	t.Logf("the %dth of %d points loses something: %s", found.tried, found.points, first)
}
