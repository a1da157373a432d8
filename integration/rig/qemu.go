package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// emulator is a QEMU.
type emulator struct {
	program string
	data    string // directory with firmware, "" for the program's own
}

// functionsNIC is QEMU's name of the NIC with virtual functions whose driver is the
// kernel's: igb. QEMU has it from version 8.0 on.
const functionsNIC = "igb"

// backports has a QEMU with that NIC for Debian 12, whose own is of version 7.2.
var backports = series{linux: "qemu", arch: amd64, sources: debian("debian bookworm-backports")}

// emulator returns the QEMU for the machines of the series: this machine's or, if that lacks
// their NIC with virtual functions, one of Debian's backports, which is unpacked in the cache.
// The libraries that it needs are those of this machine's QEMU.
func (b *builder) emulator(ctx context.Context) (emulator, error) {
	installed := emulator{program: b.arch.qemu}
	if !b.functions() || installed.has(ctx, functionsNIC) == nil {
		return installed, nil
	}
	dir := filepath.Join(b.shared, "qemu")
	unpacked := emulator{filepath.Join(dir, "usr", "bin", b.arch.qemu), filepath.Join(dir, "usr", "share", "qemu")}
	if unpacked.has(ctx, functionsNIC) == nil {
		return unpacked, nil
	}
	fmt.Fprintf(b.log, "rig: unpacking a QEMU of Debian's backports, which has %s (13 MB, once) …\n", functionsNIC)
	if err := os.RemoveAll(dir); err != nil { // of an attempt that was killed
		return emulator{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return emulator{}, err
	}
	archive := *b
	archive.series = backports
	if err := archive.unpack(ctx, dir, "qemu-system-x86", "qemu-system-data"); err != nil {
		return emulator{}, err
	}
	return unpacked, unpacked.has(ctx, functionsNIC)
}

// has returns an error if the emulator does not run, or lacks the device.
func (e emulator) has(ctx context.Context, device string) error {
	out, err := run(ctx, "", e.program, append(e.args(), "-device", device+",help")...)
	if err == nil && len(out) == 0 { // its exit code is 0 in any case
		err = fmt.Errorf("%s has no device %s", e.program, device)
	}
	return err
}

// path returns the program's file.
func (e emulator) path() string {
	if path, err := exec.LookPath(e.program); err == nil {
		return path
	}
	return e.program
}

// args returns the first arguments of each call.
func (e emulator) args() []string {
	if e.data == "" {
		return nil
	}
	return []string{"-L", e.data}
}

// functions reports whether the machines have a NIC with virtual functions of the kernel's
// own driver.
func (b *builder) functions() bool { return (b.nics == realNICs || b.igb) && !b.arch.foreign() }
