package rig

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

// standIn is an environment variable that makes this test binary a QEMU. Its value is what the
// machine does on KVM: answers, silent, ends or complains; on software emulation it answers.
const standIn = "RIG_TEST_QEMU"

// standInCalls is the file to which the stand-in adds the accelerator of each call.
const standInCalls = "RIG_TEST_QEMU_CALLS"

func TestMain(m *testing.M) {
	if does := os.Getenv(standIn); does != "" {
		os.Exit(qemu(does, os.Args))
	}
	os.Exit(m.Run())
}

// qemu is the stand-in. KVM itself is not for a test: a broken one may crash the host.
func qemu(onKVM string, args []string) int {
	accel := args[slices.Index(args, "-accel")+1]
	calls, err := os.OpenFile(os.Getenv(standInCalls), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 3
	}
	_, _ = io.WriteString(calls, accel+"\n")
	_ = calls.Close()
	does := "answers"
	if accel == "kvm" {
		does = onKVM
	}
	switch does {
	case "silent":
		time.Sleep(time.Hour) // select {} would end it: a deadlock
	case "ends":
		_, _ = io.WriteString(os.Stderr, "Could not access KVM kernel module")
		return 1
	case "complains":
		_, _ = io.WriteString(os.NewFile(console, "console"), "WARNING: CPU: 0 PID: 1\n")
	}
	w := wire.NewWriter(os.Stdout)
	_ = w.Send(wire.Event{Name: wire.Booted})
	_ = w.Send(wire.Event{Name: wire.Ended})
	return 0
}

// accelBench is a host and an image whose QEMU is the stand-in.
type accelBench struct {
	t     *testing.T
	host  kvmHost
	cache string
	calls string
	log   bytes.Buffer
	image Image
}

func newAccelBench(t *testing.T, onKVM string) *accelBench {
	t.Helper()
	dir := t.TempDir()
	b := &accelBench{t: t, cache: filepath.Join(dir, "cache"), calls: filepath.Join(dir, "calls")}
	b.host = kvmHost{
		device: filepath.Join(dir, "kvm"), modules: filepath.Join(dir, "module"), bootID: filepath.Join(dir, "boot_id"), trial: 10 * time.Second,
	}
	for _, d := range []string{b.cache, filepath.Join(b.host.modules, "kvm_amd")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"kvm", "boot_id", "vmlinux", "base"} {
		b.write(filepath.Join(dir, f), "1")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b.image = Image{Kernel: filepath.Join(dir, "vmlinux"), Base: filepath.Join(dir, "base"), nics: fakeNICs, arch: &amd64, qemu: emulator{program: self}}
	b.does(onKVM)
	return b
}

func (b *accelBench) does(onKVM string) {
	b.t.Setenv(standIn, onKVM)
	b.t.Setenv(standInCalls, b.calls)
}

func (b *accelBench) write(path, text string) {
	b.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// choose returns whether the rig chooses KVM.
func (b *accelBench) choose(value string) bool {
	b.t.Helper()
	if err := b.image.accelerate(b.t.Context(), b.host, b.cache, value, &b.log); err != nil {
		b.t.Fatal(err)
	}
	return b.image.accel.kvm
}

// called fails unless QEMU was called with these accelerators, and forgets the calls.
func (b *accelBench) called(want ...string) {
	b.t.Helper()
	text, err := os.ReadFile(b.calls)
	if err != nil && !os.IsNotExist(err) {
		b.t.Fatal(err)
	}
	if got := strings.Fields(string(text)); !slices.Equal(got, want) {
		b.t.Errorf("QEMU was called with %q, want %q", got, want)
	}
	_ = os.Remove(b.calls)
}

func TestKVMIsTriedOnceAndTheVerdictKept(t *testing.T) {
	for does, want := range map[string]bool{"answers": true, "silent": false, "ends": false, "complains": false} {
		t.Run(does, func(t *testing.T) {
			b := newAccelBench(t, does)
			if does == "silent" {
				b.host.trial = 2 * time.Second // a busy machine starts the stand-in late
			}
			if got := b.choose("auto"); got != want {
				t.Errorf("it chose KVM: %v; it said %q", got, &b.log)
			}
			b.called("kvm")
			said := b.log.String()
			if !strings.Contains(said, "RIG_ACCEL=") {
				t.Errorf("it does not say how to choose otherwise: %q", said)
			}
			if got := b.choose(""); got != want || b.log.String() != said {
				t.Errorf("the second time it chose KVM: %v, and said %q", got, b.log.String()[len(said):])
			}
			b.called()
			// After the next boot of the host KVM may be another.
			b.write(b.host.bootID, "2")
			b.choose("auto")
			b.called("kvm")
		})
	}
}

func TestKVMIsNotTriedWhereItIsNotOursOrCannotWork(t *testing.T) {
	for name, change := range map[string]func(*accelBench){
		"machine of a CI service": func(b *accelBench) { b.host.ci = true },
		"no KVM":                  func(b *accelBench) { b.host.device += "-missing" },
		"KVM of another kind":     func(b *accelBench) { b.host.modules += "-missing" },
		"foreign architecture":    func(b *accelBench) { b.image.arch = &arm64 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newAccelBench(t, "answers")
			change(b)
			if b.choose("auto") {
				t.Error("it chose KVM")
			}
			b.called()
			err := b.image.accelerate(t.Context(), b.host, b.cache, "kvm", &b.log)
			if b.host.ci != (err == nil) { // in CI it is a person's choice
				t.Errorf("RIG_ACCEL=kvm: %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "use RIG_ACCEL=tcg") {
				t.Errorf("an error without the cure: %v", err)
			}
		})
	}
}

func TestAcceleratorIsTheOneThatIsAskedFor(t *testing.T) {
	b := newAccelBench(t, "answers")
	if b.choose("tcg") || !b.choose("kvm") {
		t.Error("it chose otherwise")
	}
	b.called()
	err := b.image.accelerate(t.Context(), b.host, b.cache, "xen", &b.log)
	if err == nil || !strings.Contains(err.Error(), `"xen"`) || !strings.Contains(err.Error(), "auto, tcg or kvm") {
		t.Errorf("an unknown value: %v", err)
	}
}

func TestMachineThatDoesNotBootOnKVMRunsWithoutIt(t *testing.T) {
	b := newAccelBench(t, "answers")
	if !b.choose("auto") {
		t.Fatal("it did not choose KVM")
	}
	b.called("kvm")
	b.does("ends")
	m := &Machine{Image: &b.image, Initrd: b.image.Base, Out: io.Discard, ErrOut: io.Discard, Log: &b.log}
	if code, err := m.Run(t.Context()); err != nil || code != 0 {
		t.Fatalf("code %d, %v", code, err)
	}
	b.called("kvm", "tcg,thread=single")
	if !strings.Contains(b.log.String(), "Could not access KVM") {
		t.Errorf("it does not say why: %q", &b.log)
	}
	// The verdict is corrected.
	if b.choose("auto") {
		t.Error("the next machine is to run on KVM again")
	}
	b.called()

	// Who asked for KVM gets an error, and the cure.
	b.choose("kvm")
	if _, err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "RIG_ACCEL=tcg") {
		t.Errorf("RIG_ACCEL=kvm: %v", err)
	}
	b.called("kvm", "kvm")
}
