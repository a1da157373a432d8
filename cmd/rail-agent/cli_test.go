package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/scratch"
)

func TestOrdinaryUserCannotUninstall(t *testing.T) {
	record := t.TempDir() // as the user of the test: the other one may not be allowed to
	said := make(chan string)
	go func() {
		runtime.LockOSThread() // another user for this thread alone; it ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); errno != 0 && os.Geteuid() == 0 {
			said <- errno.Error()
			return
		}
		var stderr bytes.Buffer
		if code := run(t.Context(), []string{"uninstall", "--record", record}, &stderr); code != 1 {
			t.Errorf("exit code %d", code)
		}
		said <- stderr.String()
	}()
	if got := <-said; !strings.Contains(got, "run rail-agent uninstall as root") {
		t.Errorf("it said %q", got)
	}
}

func TestVersionIsACommandAndAFlag(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		var out bytes.Buffer
		root := newRoot(io.Discard)
		root.SetOut(&out)
		root.SetArgs([]string{arg})
		if err := root.Execute(); err != nil || !strings.Contains(out.String(), version) {
			t.Errorf("%s: %q, %v", arg, out.String(), err)
		}
	}
}

func TestProbeWithoutAnAgentNamesTheCure(t *testing.T) {
	var stderr bytes.Buffer
	socket := filepath.Join(scratch.Dir(t), "agent.sock")
	code := run(t.Context(), []string{"probe", "--socket", socket}, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "no rail-agent answers at "+socket) || !strings.Contains(stderr.String(), "--state-dir") {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}
