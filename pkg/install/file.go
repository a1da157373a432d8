package install

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// temporary is the prefix of the names of unfinished files. It begins with a dot, so that no
// program takes such a file for a plugin or a configuration.
const temporary = ".rail-cni-"

// abandoned is the age after which a temporary file certainly has no writer any more.
const abandoned = 10 * time.Minute

// Sum returns the SHA-256 of a file, in hexadecimal.
func Sum(path string) (string, error) {
	h := sha256.New()
	if err := copyInto(h, path); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Copy atomically replaces the file to by a copy of the file from.
func Copy(from, to string, mode fs.FileMode) error {
	return Write(to, mode, func(f *os.File) error { return copyInto(f, from) })
}

func copyInto(to io.Writer, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	_, err = io.Copy(to, source)
	return err
}

// Write makes a new file, calls write to fill it, syncs it, and atomically renames it to path. If
// path is a symbolic link, the link is replaced and not followed. A running program whose file is
// replaced is not disturbed.
func Write(path string, mode fs.FileMode, write func(*os.File) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, temporary+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	// The mode must be set after the owner, because a change of the owner clears the set-uid bit.
	err = errors.Join(write(f), f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// relink atomically makes a symbolic link at path.
func relink(path, target string) error {
	dir := filepath.Dir(path)
	tmp := filepath.Join(dir, fmt.Sprintf("%s%x", temporary, rand.Uint64()))
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(dir)
}

// removed removes a file. It is not an error if the file does not exist.
func removed(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// sweep removes temporary files in a directory that are older than age. Killed processes have left
// them behind.
func sweep(dir string, age time.Duration) {
	left, _ := filepath.Glob(filepath.Join(dir, temporary+"*")) // the pattern is valid
	for _, path := range left {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) >= age {
			_ = os.Remove(path) // an error does not matter: another process may have removed the file
		}
	}
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems do not support a sync of a directory (EINVAL), and do not need it.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

func owner(info fs.FileInfo) (uid, gid int) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), int(st.Gid)
	}
	return 0, 0
}

// device returns the number of the file system that contains a file.
func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}
