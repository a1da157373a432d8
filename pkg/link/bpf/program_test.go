package bpf_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/bpf"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

const inUserNetns = "RAIL_CNI_TEST_IN_USER_NETNS"

// Root of a user namespace (a nested runtime) may not query tcx programs (bpf_prog_query). No
// programs can be attached there, so its NICs are lent like any others.
func TestProgramsInAUserNamespace(t *testing.T) {
	if os.Getenv(inUserNetns) == "" {
		need.Root(t) // some machines allow only root to make a user namespace
		again := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "--net", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
		again.Env = append(os.Environ(), inUserNetns+"=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	n, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	lo, err := link.ByName(n, "lo")
	if err != nil {
		t.Fatal(err)
	}
	if programs, err := bpf.Programs(n, lo); err != nil || len(programs) != 0 {
		t.Errorf("%v, %v", programs, err)
	}
}
