package main

import (
	"bytes"
	"encoding/json"
	"errors"
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

// TestLogsAreTextOrJSON checks the format for log collectors: each line is one JSON object with the
// message and its attributes.
func TestLogsAreTextOrJSON(t *testing.T) {
	var stderr bytes.Buffer
	a := agentFlags{level: "warn", format: "json"}
	log, err := a.newLog(&stderr)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("not logged")
	log.Warn("NIC not returned", "nic", "ens1", "err", errors.New("busy"))
	var line struct{ Level, Msg, NIC, Err string }
	want := line
	want.Level, want.Msg, want.NIC, want.Err = "WARN", "NIC not returned", "ens1", "busy"
	if err := json.Unmarshal(stderr.Bytes(), &line); err != nil || line != want {
		t.Errorf("%s: %+v, %v", &stderr, line, err)
	}
	for args, want := range map[string]string{
		"--log-level=loud": `--log-level is "loud"; it must be debug, info, warn or error`, "--log-format=xml": `--log-format is "xml"; it must be text or json`,
	} {
		stderr.Reset()
		if code := run(t.Context(), []string{"probe", args}, &stderr); code != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d: %s", args, code, &stderr)
		}
	}
}
