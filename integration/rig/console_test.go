package rig

import (
	"errors"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

// The first report is QEMU's, the second has flags that a CPU has.
func TestImpossibleFlagsAreTheEmulators(t *testing.T) {
	const report = "[  114.18] WARNING: CPU: 1 PID: 1395 at arch/x86/kernel/traps.c:1120 exc_debug_kernel+0xca/0x160\r\n" +
		"[  114.21] RSP: 0000:fffffe000004bf28 EFLAGS: "
	for flags, want := range map[string]bool{"3db03022": true, "00250246": false, "00000082": false, "00400002": true} {
		log := watchConsole(strings.NewReader("[    1.0] booted\n" + report + flags + "\n")).wait()
		err := (&session{}).verdict(nil, log)
		known := strings.HasPrefix("rig: "+err.Error(), "rig: the emulator corrupted the flags of a CPU") // to test-rig.sh
		if !errors.Is(err, errComplaint) || errors.Is(err, errEmulator) != want || known != want {
			t.Errorf("%s: %v", flags, err)
		}
	}
	log := watchConsole(strings.NewReader("[    1.0] EFLAGS: 3db03022\n")).wait()
	if err := (&session{ended: wire.Event{}}).verdict(nil, log); err != nil {
		t.Errorf("without a report of trouble: %v", err)
	}
}
