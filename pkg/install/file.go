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

// temporary begins the names of unfinished files: with a dot, so that no one
// takes them for a plugin or a configuration.
const temporary = ".rail-cni-"

// abandoned is the age after which a temporary file has no writer.
const abandoned = 10 * time.Minute

// Sum returns the SHA-256 of a file, in hexadecimal.
func Sum(path string) (string, error) {
	h := sha256.New()
	if err := copyInto(h, path); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Copy atomically replaces one file by a copy of another.
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

// Write fills a new file by write, syncs it, and atomically renames it to path.
// A symbolic link at path is replaced, not followed. A program that runs from the
// old file is not disturbed.
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
	// The mode comes after the owner, whose change clears the set-uid bit.
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

// removed removes a file, and accepts that it is missing.
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

// sweep removes the leftovers of killed processes in a directory, which are older than this.
func sweep(dir string, age time.Duration) {
	left, _ := filepath.Glob(filepath.Join(dir, temporary+"*")) // the pattern is valid
	for _, path := range left {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) >= age {
			_ = os.Remove(path) // another process may have removed it
		}
	}
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems do not support it (EINVAL), and do not need it.
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

// device returns the number of the file system that has a file.
func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}
