package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// peakRSS runs c and returns the largest resident set that its process ever
// had, in bytes, as the kernel counts it in VmHWM.
//
// ru_maxrss of wait4(2) is wrong here: os/exec starts a process with CLONE_VM,
// and at exec the kernel copies the peak of the shared memory, ours, into the
// child's ru_maxrss. So the process is traced, and inspected when it is about
// to exit.
func (s *scratch) peakRSS(c command) (int64, error) {
	if err := s.load(c.stdin); err != nil {
		return 0, err
	}
	cmd := exec.Command(c.path, c.args...)
	cmd.Env = c.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.stdin, s.out, s.errOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}

	// Only the thread that started a traced process may command it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	peak, err := traceToExit(cmd.Process.Pid)
	if err != nil {
		err = errors.Join(err, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed, or reaped by the tracer
		return 0, fmt.Errorf("%s: %w", c, err)
	}
	return peak, cmd.Process.Release()
}

// traceToExit lets the traced process pid run, and reads its peak when it ends.
// It returns when the process has been reaped.
func traceToExit(pid int) (int64, error) {
	var status unix.WaitStatus
	if err := wait(pid, &status); err != nil {
		return 0, err
	}
	if !status.Stopped() {
		return 0, errors.New("did not stop at its start")
	}
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT|unix.PTRACE_O_EXITKILL); err != nil {
		return 0, fmt.Errorf("tracing: %w", err)
	}
	var peak int64
	signal := 0
	for {
		if err := unix.PtraceCont(pid, signal); err != nil {
			return 0, fmt.Errorf("tracing: %w", err)
		}
		if err := wait(pid, &status); err != nil {
			return 0, err
		}
		signal = 0
		switch {
		case status.Exited():
			if status.ExitStatus() != 0 {
				return 0, fmt.Errorf("exit status %d", status.ExitStatus())
			}
			return peak, nil
		case status.Signaled():
			return 0, fmt.Errorf("ended by %v", status.Signal())
		case status.Stopped() && status.StopSignal() == unix.SIGTRAP && status.TrapCause() == unix.PTRACE_EVENT_EXIT:
			var err error
			if peak, err = readPeak(pid); err != nil {
				return 0, err
			}
		case status.Stopped():
			signal = int(status.StopSignal()) // not the tracer's: hand it on
		}
	}
}

func wait(pid int, status *unix.WaitStatus) error {
	for {
		_, err := unix.Wait4(pid, status, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func readPeak(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parsePeak(data)
}

// parsePeak finds VmHWM, which is in kB, in a /proc/PID/status.
func parsePeak(status []byte) (int64, error) {
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == "VmHWM:" {
			kB, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return kB << 10, err
		}
	}
	return 0, errors.New("no VmHWM in /proc/PID/status: its memory is gone already")
}
