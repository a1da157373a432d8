package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ReadEach calls f for each file that [Dir.List] would list, in lexical order. It passes the
// content of the file, or the error that [Dir.Read] would return. It skips a file that is removed
// meanwhile. The content is valid until f returns.
//
// ReadEach needs only four system calls for each file, whereas List and Read need ten. This matters
// because an ADD reads all records of its node, which may be hundreds.
func (d *Dir) ReadEach(suffix string, f func(name string, data []byte, err error)) error {
	return d.ReadEachOf("", suffix, f)
}

// ReadEachOf does what [Dir.ReadEach] does, but only for the files whose names begin with prefix.
// It makes no system call for any other file.
func (d *Dir) ReadEachOf(prefix, suffix string, f func(name string, data []byte, err error)) error {
	return d.ReadChangedOf(prefix, suffix, nil, func(name string, _ Stamp, data []byte, err error) { f(name, data, err) })
}

// Stamp identifies a version of a file. Each write makes a new inode, so it makes a new stamp. Two
// versions of a file can have the same stamp only if the file was replaced twice within one tick of
// the kernel's clock and its first inode was used again.
type Stamp struct {
	inode, size int64
	modified    int64 // time in ns
	changed     int64 // time in ns of the last change of the inode
}

// stampOf returns the stamp of a file. The stamp is zero only if the file is not a regular file.
func stampOf(st *unix.Stat_t) Stamp {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Stamp{}
	}
	return Stamp{int64(st.Ino), st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

// ReadChangedOf does what [Dir.ReadEachOf] does, but only for the files for which known returns
// false. It calls known with the name and the stamp of each file before it reads the file. If known
// is nil, it reads all files. If f gets an error, the stamp that it gets is zero.
func (d *Dir) ReadChangedOf(prefix, suffix string, known func(name string, s Stamp) bool, f func(name string, s Stamp, data []byte, err error)) error {
	dir, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) || !listed(name, suffix) })
	slices.Sort(names)
	var buffer []byte
	for _, name := range names {
		if known != nil {
			var st unix.Stat_t
			if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && known(name, stampOf(&st)) {
				continue
			}
		}
		if buffer == nil {
			buffer = make([]byte, 8<<10)
		}
		stamp, data, err := readInto(&buffer, int(dir.Fd()), name)
		if errors.Is(err, errDirectory) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", filepath.Join(d.path, name), err)
		}
		f(name, stamp, data, err)
	}
	return nil
}

var (
	errDirectory = fmt.Errorf("it is a directory: %w", ErrForeign)
	errNoFile    = fmt.Errorf("it is not a regular file: %w", ErrForeign)
)

// readInto reads the file name of the directory dir into buffer. If buffer is too small, readInto
// replaces it by a larger one. name is the name of a directory entry, so it cannot lead to another
// directory.
func readInto(buffer *[]byte, dir int, name string) (Stamp, []byte, error) {
	fd, err := again(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if errors.Is(err, unix.ELOOP) {
		return Stamp{}, nil, errSymlink
	}
	if err != nil {
		return Stamp{}, nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Stamp{}, nil, err
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR:
		return Stamp{}, nil, errDirectory
	case kind != unix.S_IFREG:
		return Stamp{}, nil, errNoFile
	case st.Size > maxFile:
		return Stamp{}, nil, errTooLarge
	case st.Size > int64(len(*buffer)):
		*buffer = make([]byte, st.Size)
	}
	data := (*buffer)[:st.Size]
	for filled := 0; filled < len(data); {
		n, err := again(func() (int, error) { return unix.Read(fd, data[filled:]) })
		if err != nil {
			return Stamp{}, nil, err
		}
		if n == 0 { // the file has become shorter
			return stampOf(&st), data[:filled], nil
		}
		filled += n
	}
	return stampOf(&st), data, nil
}

// again calls f again as long as a signal interrupts it.
func again(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
