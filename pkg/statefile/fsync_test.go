package statefile

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// After a power cut only synced data is left. In this test fsync fails, so every durable
// change must fail too. A file must not get its name before its content is on disk.
func TestDurableChangesAreSynced(t *testing.T) {
	d := openAt(t, testnet.OnDisk(t))
	for _, name := range []string{"old", "aside", "gone", "from"} {
		if err := d.Write(name, []byte("old")); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range changes() {
		if err := withoutFsync(t, func() error { return change(d) }); !errors.Is(err, unix.EIO) {
			t.Errorf("%s without fsync: %v", name, err)
		}
	}
	if data, err := d.Read("old"); err != nil || string(data) != "old" {
		t.Errorf("a content that is not synced has its name: %q, %v", data, err)
	}
	if names, err := d.List(""); err != nil || strings.Contains(fmt.Sprint(names), "new") {
		t.Errorf("files are %q, %v", names, err)
	}
}

func TestVolatileChangesAreNotSynced(t *testing.T) {
	volatile := openAt(t, testnet.OnDisk(t))
	volatile.Volatile()
	for name, d := range map[string]*Dir{"tmpfs": openAt(t, tmpfs(t, "1m")), "volatile": volatile} {
		for _, file := range []string{"aside", "gone", "from"} {
			if err := d.Write(file, []byte("old")); err != nil {
				t.Fatal(err)
			}
		}
		for what, change := range changes() {
			if err := withoutFsync(t, func() error { return change(d) }); err != nil {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
}

// changes are all operations that change a directory.
func changes() map[string]func(*Dir) error {
	return map[string]func(*Dir) error{
		"Write, over another": func(d *Dir) error { return d.Write("old", []byte("not synced")) },
		"Write":               func(d *Dir) error { return d.Write("new", []byte("not synced")) },
		"Symlink":             func(d *Dir) error { return d.Symlink("target", "symlink") },
		"Link":                func(d *Dir) error { return d.Link("from", "link") },
		"Remove":              func(d *Dir) error { return d.Remove("gone") },
		"SetAside":            func(d *Dir) error { _, err := d.SetAside("aside"); return err },
		"Sub":                 func(d *Dir) error { sub, err := d.Sub("sub"); return errors.Join(err, closeIf(sub)) },
	}
}

func closeIf(d *Dir) error {
	if d == nil {
		return nil
	}
	return d.Close()
}

// withoutFsync runs f in a thread of its own in which fsync and fdatasync fail with
// EIO.
func withoutFsync(t *testing.T, f func() error) error {
	t.Helper()
	refuse := unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: refuse},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		// Without no_new_privs only root may install a filter.
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
		}
		if err != nil {
			done <- fmt.Errorf("seccomp: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}
