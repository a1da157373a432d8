package netns_test

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// A kernel without cookies must be distinguished from a failed read of the cookie: by its inode
// number alone a namespace could be mistaken for a dead one.
func TestCookieIsOnlyMissingWhereTheKernelHasNone(t *testing.T) {
	n := testnet.NewNetns(t, "pod")
	for answer, fails := range map[unix.Errno]bool{unix.ENOPROTOOPT: false, unix.ENOMEM: true, unix.EPERM: true} {
		var id netns.ID
		var err error
		answeringCookies(t, answer, func() {
			var opened *netns.Netns
			if opened, err = netns.Open("/run/netns/" + n.Name); err == nil {
				id = opened.ID
				opened.Close()
			}
		})
		switch {
		case fails && !errors.Is(err, answer):
			t.Errorf("%s: %+v, %v", answer, id, err)
		case !fails && (err != nil || id.Cookie != 0 || !id.Equal(n.ID)):
			t.Errorf("%s: %+v, %v", answer, id, err)
		}
	}
}

// answeringCookies runs f on a separate thread, for which the kernel answers SO_NETNS_COOKIE with
// an error (seccomp(2), a filter of struct seccomp_data).
func answeringCookies(t *testing.T, answer unix.Errno, f func()) {
	t.Helper()
	const load, equal, give = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // nr
		{Code: equal, K: unix.SYS_GETSOCKOPT, Jf: 3},
		{Code: load, K: 16 + 2*8}, // the low half of args[2], little-endian
		{Code: equal, K: unix.SO_NETNS_COOKIE, Jf: 1},
		{Code: give, K: unix.SECCOMP_RET_ERRNO | uint32(answer)},
		{Code: give, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends together with its filter
		err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
