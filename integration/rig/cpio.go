package rig

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// archive writes a cpio archive in the form that the kernel unpacks at boot
// ("newc": Documentation/driver-api/early-userspace/buffer-format.rst).
// Archives may be joined end to end; the kernel unpacks each in turn.
//
// The first error is kept and returned by close; the other methods do nothing
// after it.
type archive struct {
	w    *bufio.Writer
	seen map[string]bool
	err  error
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), seen: map[string]bool{".": true, "/": true}}
}

// File types of cpio, as in st_mode.
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
	typeChar = 0o020000
)

func (a *archive) entry(name string, mode, size int, major, minor int) {
	name = strings.TrimPrefix(name, "/")
	a.printf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		len(a.seen), mode, 0, 0, 1, 0, size, 0, 0, major, minor, len(name)+1, 0, name)
	a.pad(110 + len(name) + 1)
}

func (a *archive) printf(format string, args ...any) {
	if a.err == nil {
		_, a.err = fmt.Fprintf(a.w, format, args...)
	}
}

// pad pads to a multiple of four after n bytes.
func (a *archive) pad(n int) { a.printf("%s", strings.Repeat("\x00", (4-n%4)%4)) }

// dir adds a directory and those above it.
func (a *archive) dir(name string) {
	name = filepath.Clean(name)
	if a.seen[name] {
		return
	}
	a.dir(filepath.Dir(name))
	a.seen[name] = true
	a.entry(name, typeDir|0o755, 0, 0, 0)
}

// bytes adds a file.
func (a *archive) bytes(name string, content []byte, mode fs.FileMode) {
	if a.seen[name] {
		return
	}
	a.dir(filepath.Dir(name))
	a.seen[name] = true
	a.entry(name, typeFile|int(mode.Perm()), len(content), 0, 0)
	if a.err == nil {
		_, a.err = a.w.Write(content)
	}
	a.pad(len(content))
}

// file adds a copy of a file of this machine.
func (a *archive) file(name, source string) {
	if a.err != nil || a.seen[name] {
		return
	}
	info, err := os.Stat(source)
	if err != nil {
		a.err = err
		return
	}
	content, err := os.ReadFile(source)
	if err != nil {
		a.err = err
		return
	}
	a.bytes(name, content, info.Mode())
}

// symlink adds a symbolic link.
func (a *archive) symlink(name, target string) {
	if a.seen[name] {
		return
	}
	a.dir(filepath.Dir(name))
	a.seen[name] = true
	a.entry(name, typeLink|0o777, len(target), 0, 0)
	a.printf("%s", target)
	a.pad(len(target))
}

// device adds a character device.
func (a *archive) device(name string, major, minor int) {
	a.dir(filepath.Dir(name))
	a.entry(name, typeChar|0o600, 0, major, minor)
}

// close ends the archive.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, 0, 0, 0)
	if a.err == nil {
		a.err = a.w.Flush()
	}
	return a.err
}
