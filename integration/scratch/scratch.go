package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// netnsDir has the names of network namespaces (ip-netns(8)).
const netnsDir = "/run/netns"

var serial atomic.Int64

// sweepOnce sweeps before this process makes its first own thing. What it cannot remove must
// not fail a test of something else: the next process tries again.
var sweepOnce = sync.OnceFunc(func() { _ = Sweep() })

// Name returns a name for something of this process that no other has. role says what it is,
// for a person.
func Name(role string) (string, error) {
	me, err := self()
	if err != nil {
		return "", err
	}
	sweepOnce()
	return fmt.Sprintf("%s-%s-%d", me.prefix(), role, serial.Add(1)), nil
}

// MkdirTemp makes a directory of this process, whose path is short enough for sockets in it.
// The caller removes it ([Remove]).
func MkdirTemp(role string) (string, error) {
	name, err := Name(role)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(place(), name)
	return dir, os.Mkdir(dir, 0o700)
}

// Dir returns a new directory that ends with the test. Its path is shorter than that of
// t.TempDir, and short enough for sockets.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := MkdirTemp("t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// MkdirFor makes a directory for the temporary files (TMPDIR) of the process pid and its
// children.
func MkdirFor(pid int) (string, error) {
	me, err := self()
	if err != nil {
		return "", err
	}
	o, running, err := process(pid)
	if err != nil {
		return "", err
	}
	if !running {
		return "", fmt.Errorf("no process has the PID %d", pid)
	}
	o.space = me.space
	dir := filepath.Join(place(), o.prefix())
	// As /tmp is: tests start programs of other users.
	return dir, errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777|fs.ModeSticky))
}

// place returns the directory for the temporary files of this machine: that of the process
// without those that this package made.
func place() string {
	dir := filepath.Clean(os.TempDir())
	for above := dir; above != filepath.Dir(above); above = filepath.Dir(above) {
		if _, ok := ownerOf(filepath.Base(above)); ok {
			dir = filepath.Dir(above)
		}
	}
	return dir
}

// Sweep removes what owners that have ended left. Several processes may do it concurrently.
func Sweep() error {
	if _, err := self(); err != nil {
		return err
	}
	var errs []error
	for _, name := range left(netnsDir) {
		errs = append(errs, RemoveNetns(name))
	}
	dir := place()
	for _, name := range left(dir) {
		errs = append(errs, Remove(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// left returns the names in a directory that ended owners left. It has none if the directory
// cannot be read: there may be no namespaces yet.
func left(dir string) (names []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		o, ok := ownerOf(e.Name())
		if !ok {
			continue
		}
		info, err := os.Lstat(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // another process sweeps
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() && o.gone() {
			names = append(names, e.Name())
		}
	}
	return names
}
