package without

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Fsopen runs f on a thread for which the kernel has no fsopen(2), as before Linux
// 5.2. The processes that f starts inherit that. f must not end its goroutine.
func Fsopen(t testing.TB, f func()) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSOPEN, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the filter stays on the thread, which ends with the goroutine
		err := install(filter)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// install puts the filter on the calling thread.
func install(filter []unix.SockFilter) error {
	list := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&list)), 0, 0)
}
