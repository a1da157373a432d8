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

// Post makes the file name with data and returns the lock on it. The file
// appears complete and locked already, so that others can determine by
// [Dir.Held] whether the process that posted it still lives. It is not synced:
// it is worthless without that process. An existing name is an error that wraps
// [fs.ErrExist].
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

// Held reports whether some process holds the lock on the file name. A missing
// file is not locked.
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

// Withdraw removes the file. The lock must still be released.
func (l *Lock) Withdraw() error { return l.dir.Remove(l.name) }
