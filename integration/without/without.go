// Package without runs tests as if the kernel lacked a feature.
package without

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// RDMA reports whether the calling test runs without an RDMA core. If the kernel has
// one, RDMA runs the test again in a process that cannot see it, and returns false:
// the calling test must then return.
func RDMA(t testing.TB) bool {
	t.Helper()
	return family(t, unix.NETLINK_RDMA)
}

// family is like [RDMA], for any netlink family.
func family(t testing.TB, number int) bool {
	t.Helper()
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, number)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(s); err != nil {
		t.Fatal(err)
	}
	again(t, refusing(number))
	return false
}

// refusing returns a seccomp filter that makes socket(AF_NETLINK, …, number)
// fail as on a kernel without that family. The offsets are those of
// little-endian machines.
func refusing(number int) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jf: 5},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16}, // first argument
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_NETLINK, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 32}, // third argument
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(number), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
}

// again runs the calling test in another process under a system call filter, which
// its children inherit.
func again(t testing.TB, filter []unix.SockFilter) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run=^"+t.Name()+"$", "-test.count=1")
	var out []byte
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the filter stays on the thread, which ends with the goroutine
		// Without it only root may install a filter.
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			done <- fmt.Errorf("no_new_privs: %w", err)
			return
		}
		err := install(filter)
		if err != nil {
			done <- fmt.Errorf("seccomp: %w", err)
			return
		}
		out, err = cmd.CombinedOutput()
		done <- err
	}()
	if err := <-done; err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
