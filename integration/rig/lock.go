package rig

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock waits until no other process builds or runs the rig of this checkout:
// one machine at a time is what a small computer can carry, and "go test" runs
// packages side by side. It says on log that it waits, if it does.
func Lock(root string, log io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(CacheDir(root), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(CacheDir(root), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX | unix.LOCK_NB
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err == unix.EWOULDBLOCK {
			fmt.Fprintln(log, "rig: waiting for the machine of another process that uses this checkout …")
			how = unix.LOCK_EX
			continue
		}
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if err != unix.EINTR {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
