//go:build kernels

package kernels

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// The programs of the image, by what starts each without changing anything.
var programs = map[string][]string{
	"host-device": nil, "macvlan": nil, "rdma": nil, "whereabouts": nil,
	"railctl": {"--help"}, "rail-agent": {"--help"},
}

func TestProgramsStart(t *testing.T) {
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		t.Fatal(err)
	}
	t.Logf("Linux %s, programs for %s", unix.ByteSliceToString(system.Release[:]), runtime.GOARCH)
	for program, args := range programs {
		t.Run(program, func(t *testing.T) {
			cmd, want := exec.Command(filepath.Join(testnet.Bin(t), program), args...), "Usage"
			if args == nil { // a plugin
				cmd.Env = append(os.Environ(), "CNI_COMMAND=VERSION")
				cmd.Stdin, want = strings.NewReader(`{"cniVersion":"1.1.0"}`), `"supportedVersions"`
			}
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(bytes.ToLower(out), bytes.ToLower([]byte(want))) {
				t.Errorf("%v: %v\n%s", slices.Concat([]string{program}, args), err, out)
			}
		})
	}
}
