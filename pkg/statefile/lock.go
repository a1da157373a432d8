package statefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// ErrBusy is wrapped by the errors of [Dir.TryLock] and [Dir.Lock] if another process holds the
// lock, or if this process already holds it with another [Lock].
var ErrBusy = errors.New("locked by another process")

// Lock is a flock(2) on a file that this process holds. The kernel releases the lock when the
// process ends, even if the process is killed. So a lock never outlives its holder.
type Lock struct {
	file *os.File
	dir  *Dir
	name string
}

// TryLock takes the exclusive lock name. If the lock is held, it does not wait: it returns an error
// that wraps [ErrBusy].
func (d *Dir) TryLock(name string) (*Lock, error) {
	for {
		f, err := d.openLock(name)
		if err != nil {
			return nil, err
		}
		if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%s: %w", filepath.Join(d.path, name), ErrBusy)
			}
			return nil, writeError(d.path, name, err)
		}
		if l, err := d.lockOf(f, name); l != nil || err != nil {
			return l, err
		}
	}
}

// Lock takes the exclusive lock name. If the lock is held, Lock waits for it until ctx ends. Then
// the error wraps [ErrBusy] and the error of the context. Waiters get the lock in the order of
// their arrival. Lock does not poll, because hundreds of processes may wait for one lock, and they
// would use up the machine.
func (d *Dir) Lock(ctx context.Context, name string) (*Lock, error) {
	for {
		l, err := d.TryLock(name)
		if err == nil || !errors.Is(err, ErrBusy) {
			return l, err
		}
		f, err := d.openLock(name)
		if err != nil {
			return nil, err
		}
		if err := d.wait(ctx, f, name); err != nil {
			return nil, err
		}
		if l, err := d.lockOf(f, name); l != nil || err != nil {
			return l, err
		}
	}
}

// wait blocks until f is locked or ctx ends. flock(2) cannot be interrupted. So if ctx ends first,
// the thread that waits is left behind, and releases the lock when it gets the lock. Only if wait
// returns nil, f still belongs to the caller.
func (d *Dir) wait(ctx context.Context, f *os.File, name string) error {
	var err error
	done := make(chan struct{})
	go func() {
		err = flock(f, unix.LOCK_EX)
		close(done)
	}()
	select {
	case <-done:
		if err != nil {
			f.Close()
			return writeError(d.path, name, err)
		}
		return nil
	case <-ctx.Done():
		go func() {
			<-done
			f.Close()
		}()
		return failure.From(fmt.Errorf("%w: %w", ErrBusy, ctx.Err()), failure.TryAgain, "%s", filepath.Join(d.path, name)).
			Cure("try again when the other process is done")
	}
}

func (d *Dir) openLock(name string) (*os.File, error) {
	f, err := d.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, writeError(d.path, name, err)
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// lockOf returns the lock of the locked file f. If name is no longer the name of f, lockOf closes f
// and returns nil: the previous holder may have removed the name, and a lock on a file that nobody
// else can open protects nothing.
func (d *Dir) lockOf(f *os.File, name string) (*Lock, error) {
	opened, err := f.Stat()
	if err == nil {
		var named fs.FileInfo
		named, err = d.root.Lstat(name)
		switch {
		case err == nil && os.SameFile(opened, named):
			return &Lock{file: f, dir: d, name: name}, nil
		case err == nil && named.Mode().Type() == fs.ModeSymlink:
			err = errSymlink // trying again would open the same file forever
		case errors.Is(err, fs.ErrNotExist):
			err = nil
		}
	}
	f.Close()
	if err != nil {
		return nil, writeError(d.path, name, err)
	}
	return nil, nil
}

// Note replaces the content of the lock's file, for processes that find the file locked.
func (l *Lock) Note(text []byte) error {
	err := l.file.Truncate(0)
	if err == nil {
		_, err = l.file.WriteAt(text, 0)
	}
	if err != nil {
		return writeError(l.dir.path, l.name, err)
	}
	return nil
}

// Unlock releases the lock and leaves its file for the next holder.
func (l *Lock) Unlock() error { return l.release() }

// release unlocks the file and then closes it. Closing alone is not enough: a child process that is
// just being started still has the file open, and thereby would keep the lock.
func (l *Lock) release() error {
	return errors.Join(flock(l.file, unix.LOCK_UN), l.file.Close())
}

// UnlockAndRemove removes the lock's file and releases the lock. The file is removed because
// otherwise the files of removed objects would pile up. Processes that wait for the lock notice
// the removal, and lock a new file.
func (l *Lock) UnlockAndRemove() error {
	err := l.dir.root.Remove(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.release())
}
