package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Post makes the file name with the content data, and returns the lock on the file. When the file
// appears it is already complete and locked. So other processes can find out with [Dir.Held]
// whether the process that posted the file is still alive. The file is not synced, because it is
// worthless without that process. If name exists, the error wraps [fs.ErrExist].
func (d *Dir) Post(name string, data []byte) (*Lock, error) {
	tmp := fmt.Sprintf("%s%016x", tmpPrefix, rand.Uint64())
	f, err := d.root.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return nil, writeError(d.path, name, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = d.root.Link(tmp, name)
	}
	if removeErr := d.root.Remove(tmp); err == nil {
		err = removeErr
	}
	if err != nil {
		f.Close()
		return nil, writeError(d.path, name, err)
	}
	return &Lock{file: f, dir: d, name: name}, nil
}

// Held reports whether a process holds the lock on the file name. A missing file is not locked.
func (d *Dir) Held(name string) (bool, error) {
	f, err := d.OpenFile(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = flock(f, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", filepath.Join(d.path, name), err)
	}
	return false, nil
}

// Withdraw removes the lock's file. It does not release the lock.
func (l *Lock) Withdraw() error { return l.dir.Remove(l.name) }
