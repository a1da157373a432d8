package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// LockBuild waits until no other process of any checkout builds an image, or copies from
// one.
func LockBuild(ctx context.Context, root string, log io.Writer) (unlock func(), err error) {
	return lock(ctx, shared(root, "rig"), []string{"build.lock"}, log)
}

// LockMachine waits until fewer than limit machines of this checkout run: a
// machine takes a CPU and more than a gigabyte of memory, and "go test" runs
// packages side by side.
func LockMachine(ctx context.Context, root string, limit int, log io.Writer) (unlock func(), err error) {
	var slots []string
	for i := range max(limit, 1) {
		slots = append(slots, fmt.Sprintf("machine%d.lock", i))
	}
	return lock(ctx, cacheDir(root), slots, log)
}

// lock takes any one of the files in dir. It reports on log that it waits.
func lock(ctx context.Context, dir string, names []string, log io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for logged := false; ; logged = true {
		for _, name := range names {
			f, err := tryLock(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			if f != nil {
				return func() { _ = f.Close() }, nil
			}
		}
		if !logged {
			fmt.Fprintln(log, "rig: waiting for another process that uses the rig …")
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tryLock returns the locked file, or nil if another process has it.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
