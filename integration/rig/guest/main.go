package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is the first process of the rig's virtual machine, and nothing else")
		os.Exit(2)
	}
	port, err := live()
	if err != nil {
		// The port is not open yet; the host sees it on the console.
		fmt.Println("guest:", err)
		powerOff()
	}
	// Everything written must leave the machine before it is off.
	_ = unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1)
	powerOff()
}

func powerOff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// live runs the guest. It returns an error only if it could not be sent to the
// host.
func live() (*os.File, error) {
	if err := mountAll(); err != nil {
		return nil, err
	}
	port, err := openPort(os.Getenv(wire.Port))
	if err != nil {
		return nil, err
	}
	w := wire.NewWriter(port)
	if err := w.Send(event(wire.Booted)); err != nil {
		return nil, err
	}
	code, err := run(w)
	e := event(wire.Ended)
	e.Code, e.Taint = code, taint()
	if err != nil {
		e.Name, e.Text = wire.Failed, err.Error()
	}
	return port, w.Send(e)
}

func event(name string) wire.Event {
	e := wire.Event{Name: name}
	if text, err := os.ReadFile("/proc/uptime"); err == nil {
		first, _, _ := strings.Cut(string(text), " ")
		e.Uptime, _ = strconv.ParseFloat(first, 64)
	}
	return e
}

// taint returns the kernel's taint: a warning or an oops sets a bit that is
// never cleared. The bit of warnings is left out if a test expected one.
func taint() uint64 {
	text, err := os.ReadFile("/proc/sys/kernel/tainted")
	if err != nil {
		return ^uint64(0)
	}
	bits, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return ^uint64(0)
	}
	if _, err := os.Stat(wire.Warned); err == nil {
		const warn = 1 << 9 // TAINT_WARN
		bits &^= warn
	}
	return bits
}

func mountAll() error {
	for _, m := range []struct{ fs, dir string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"tmpfs", "/run"},
		{"tmpfs", "/tmp"},
		{"tmpfs", "/dev/shm"},
		{"devpts", "/dev/pts"},
		{"cgroup2", "/sys/fs/cgroup"},
		{"tmpfs", "/var/lib/cni"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.dir, m.fs, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	return nil
}

// openPort opens a serial port in raw mode.
func openPort(path string) (*os.File, error) {
	port, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	mode := unix.Termios{Cflag: unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200}
	mode.Cc[unix.VMIN] = 1
	if err := unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, &mode); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return port, nil
}

// run prepares the machine and runs the job. It returns the test's exit code.
func run(w *wire.Writer) (int, error) {
	text, err := os.ReadFile(wire.JobFile)
	if err != nil {
		return 0, err
	}
	var job wire.Job
	if err := json.Unmarshal(text, &job); err != nil {
		return 0, fmt.Errorf("%s: %w", wire.JobFile, err)
	}
	if err := errors.Join(kmod.LoadAll(wire.LoadOrder), loadNICs(job.Module), loopbackUp(), unix.Sethostname([]byte("rig"))); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(job.Dir, 0o755); err != nil {
		return 0, err
	}
	if err := w.Send(event(wire.Started)); err != nil {
		return 0, err
	}
	return runTest(w, &job)
}

// loadNICs loads the driver of the fake NICs, if the machine has these.
func loadNICs(parameters string) error {
	err := kmod.Load(wire.NICModule, parameters)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request)
}

// outputGrace bounds the wait for output after the test has ended: a process
// that it left behind may hold the pipe open.
const outputGrace = 500 * time.Millisecond

// runTest runs the test binary, and waits for all other children too, as the
// first process must.
func runTest(w *wire.Writer, job *wire.Job) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	out, outDone, err := pump(w.Stream(wire.Stdout))
	if err != nil {
		return 0, err
	}
	errOut, errDone, err := pump(w.Stream(wire.Stderr))
	if err != nil {
		return 0, err
	}
	test, err := os.StartProcess(wire.TestBinary, append([]string{wire.TestBinary}, job.Args...), &os.ProcAttr{
		Dir: job.Dir, Env: job.Env, Files: []*os.File{null, out, errOut},
	})
	if err != nil {
		return 0, err
	}
	_ = errors.Join(out.Close(), errOut.Close())
	status, err := await(test.Pid)
	if err != nil {
		return 0, err
	}
	deadline := time.After(outputGrace)
	for _, done := range []<-chan struct{}{outDone, errDone} {
		select {
		case <-done:
		case <-deadline:
		}
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// pump returns a file whose bytes go to w, and a channel that closes when all
// holders of the file have closed it.
func pump(w io.Writer) (*os.File, <-chan struct{}, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(w, from)
	}()
	return to, done, nil
}

func await(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the test: %w", err)
		case ended == pid && (status.Exited() || status.Signaled()):
			return status, nil
		}
	}
}
