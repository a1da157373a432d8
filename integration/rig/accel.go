package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Values of RIG_ACCEL.
const (
	accelAuto = "auto" // KVM where it boots the machine, else software emulation; the default
	accelTCG  = "tcg"  // QEMU's software emulation
	accelKVM  = "kvm"  // KVM, or an error
)

// kvmTrial is how long a machine on KVM may take to its first process the first time. It takes
// about a second.
const kvmTrial = 3 * time.Second

// accelerator is what runs a machine's CPUs. The zero value is software emulation.
type accelerator struct {
	kvm bool
	// verdict is the file with a reason against KVM, empty if it boots the machine; for "auto".
	verdict string
}

// args returns QEMU's arguments.
func (a accelerator) args() []string {
	if a.kvm {
		return []string{"-accel", "kvm"}
	}
	// Both CPUs in one thread: with a thread each, one may run code that the other is
	// patching, and about one boot in sixty ends with "Oops: int3" (the kernel patches its
	// code while it boots). It costs no time.
	return []string{"-accel", "tcg,thread=single"}
}

// kvmHost is what the choice depends on, of the machine that QEMU runs on.
type kvmHost struct {
	device  string // /dev/kvm
	modules string // directory: /sys/module
	bootID  string // file with an identity of the host's boot
	ci      bool   // a machine of a CI service
	trial   time.Duration
}

func thisHost() kvmHost {
	return kvmHost{
		device: "/dev/kvm", modules: "/sys/module", bootID: "/proc/sys/kernel/random/boot_id",
		ci: os.Getenv("CI") == "true", trial: kvmTrial,
	}
}

// lacks returns why KVM cannot run a machine of this architecture here, or nil.
func (h kvmHost) lacks(a *arch) error {
	if a.foreign() {
		return fmt.Errorf("a machine of %s has other CPUs than this one", a.name)
	}
	if _, err := os.Stat(h.device); err != nil {
		return fmt.Errorf("this machine has no KVM: %w", err)
	}
	// Others of the kernel's KVM drivers run only guests with a kernel that is made for
	// them.
	for _, driver := range []string{"kvm_intel", "kvm_amd"} {
		if _, err := os.Stat(filepath.Join(h.modules, driver)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the KVM of this machine does not use its CPU: neither kvm_intel nor kvm_amd is in %s", h.modules)
}

// Accelerate chooses what runs the CPUs of the image's machines, by a value of RIG_ACCEL ("" is
// auto). For auto it may boot a machine, once for each boot of this host: its callers hold the
// lock of [LockBuild].
func (i *Image) Accelerate(ctx context.Context, root, value string, log io.Writer) error {
	return i.accelerate(ctx, thisHost(), shared(root, "rig"), value, log)
}

func (i *Image) accelerate(ctx context.Context, h kvmHost, cache, value string, log io.Writer) error {
	i.accel = accelerator{}
	switch value {
	case accelTCG:
	case accelKVM:
		if err := h.lacks(i.arch); err != nil {
			return fmt.Errorf("RIG_ACCEL=kvm: %w: use RIG_ACCEL=tcg, or auto", err)
		}
		i.accel.kvm = true
	case accelAuto, "":
		// A trial may crash the host, and one of a CI service is not ours.
		if h.ci || h.lacks(i.arch) != nil {
			return nil
		}
		return i.tryKVM(ctx, h, cache, log)
	default:
		return fmt.Errorf("RIG_ACCEL=%q is no accelerator of the rig: use %s, %s or %s", value, accelAuto, accelTCG, accelKVM)
	}
	return nil
}

// tryKVM chooses KVM if the machine boots on it, by a verdict in the cache or by a trial, whose
// verdict it keeps: a reason against KVM, empty if there is none.
func (i *Image) tryKVM(ctx context.Context, h kvmHost, cache string, log io.Writer) error {
	onKVM := *i
	onKVM.accel.kvm = true
	key, err := onKVM.accelKey(h)
	if err != nil {
		return err
	}
	verdict := filepath.Join(cache, "accel-"+key)
	text, err := os.ReadFile(verdict)
	if errors.Is(err, os.ErrNotExist) {
		m := &Machine{Image: &onKVM, Initrd: i.Base, Out: io.Discard, ErrOut: io.Discard, Log: log}
		// Without a job the machine ends as soon as it lives.
		_, err := m.boot(ctx, h.trial)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, errNoBoot) || errors.Is(err, errComplaint) {
			text = []byte(err.Error())
			fmt.Fprintf(log, "rig: without KVM until this host boots again (RIG_ACCEL=kvm: with it all the same): %v\n", err)
		} else {
			fmt.Fprintln(log, "rig: machines run on KVM (RIG_ACCEL=tcg: without it)")
		}
		return i.judge(verdict, string(text))
	}
	if err != nil {
		return err
	}
	i.accel = accelerator{kvm: len(text) == 0, verdict: verdict}
	return nil
}

// judge chooses by a reason against KVM, empty if there is none, and keeps it as the verdict.
func (i *Image) judge(verdict, reason string) error {
	i.accel = accelerator{kvm: reason == "", verdict: verdict}
	return writeAtomically(verdict, []byte(reason))
}

// accelKey returns a name for what a verdict depends on: the emulator and its arguments, the
// kernel, and this boot of the host with its KVM.
func (i *Image) accelKey(h kvmHost) (string, error) {
	boot, err := os.ReadFile(h.bootID)
	if err != nil {
		return "", err
	}
	words := append((&Machine{Image: i}).args(), strings.TrimSpace(string(boot)))
	for _, path := range []string{i.qemu.path(), i.Kernel, h.device} {
		info, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		var device uint64 // the number of a device
		if s, isStat := info.Sys().(*syscall.Stat_t); isStat {
			device = s.Rdev
		}
		words = append(words, path, fmt.Sprint(device))
		if info.Mode().IsRegular() {
			words = append(words, fmt.Sprint(info.Size()), info.ModTime().UTC().String())
		}
	}
	return hashOf(nil, words...)
}
