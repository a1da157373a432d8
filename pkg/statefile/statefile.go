package statefile

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
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/safepath"
)

const (
	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600

	tmpPrefix = ".tmp-"
	// maxFile bounds the size of the files that Read reads and Write writes. A record has a
	// few kB.
	maxFile = 8 << 20
)

// Dir is an open directory of state files. It is safe for concurrent use by
// several goroutines and several processes. Close it when done.
type Dir struct {
	root    *os.Root
	path    string
	durable bool // fsync is needed, because the files outlive a reboot
}

// Open opens the directory path, and makes it with mode 0700 if it does not exist. path must be
// absolute. Open refuses a path whose last element is not a directory. It also refuses a directory
// that another user owns or may write to, and a directory below such a directory
// ([safepath.Check]): another user could forge a record there, and a record names programs that
// are run.
func Open(path string) (*Dir, error) {
	if !filepath.IsAbs(path) {
		return nil, failure.New(failure.InvalidConfig, "state directory %q is not an absolute path", path).
			Cure("configure an absolute path")
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := safepath.Check(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, unsafeError(path, err)
		}
		if err := os.MkdirAll(path, dirMode); err != nil {
			return nil, openError(path, err)
		}
	}
	return OpenExisting(path)
}

// OpenExisting opens the directory path as [Open] does, but does not create it. If the directory is
// missing, the error wraps [fs.ErrNotExist].
func OpenExisting(path string) (*Dir, error) {
	root, err := openRoot(os.Lstat, os.OpenRoot, path, path)
	if err != nil {
		return nil, err
	}
	// This check comes last, because the errors of opening are more useful.
	if err := safepath.Check(path); err != nil {
		return nil, errors.Join(unsafeError(path, err), root.Close())
	}
	return &Dir{root: root, path: path, durable: !onTmpfs(path)}, nil
}

func unsafeError(path string, err error) error {
	return failure.From(err, failure.IO, "state directory %s: other users could replace its files", path).
		Cure("put the state directory below directories that only root can write to, such as /run")
}

// openRoot opens the directory name with the functions lstat and open. It returns an error if other
// users could forge the content of the directory. path is the directory's path, for messages. If
// name is not a directory, openRoot neither follows nor waits for it, even if it replaces the
// directory while openRoot runs. The error wraps [fs.ErrNotExist] only if nothing has that name.
func openRoot(lstat func(string) (fs.FileInfo, error), open func(string) (*os.Root, error), name, path string) (*os.Root, error) {
	// If a directory is mounted on demand, its first open replaces it by another directory.
	for last := false; ; last = true {
		named, err := lstat(name)
		if err != nil {
			return nil, openError(path, err)
		}
		if !named.IsDir() {
			return nil, replacedError(path, "it is not a directory but "+named.Mode().Type().String())
		}
		// With the dot, the kernel returns an error for a FIFO instead of waiting for its writer.
		root, err := open(name + "/.")
		if err == nil {
			var info fs.FileInfo
			if info, err = root.Stat("."); err == nil && os.SameFile(named, info) {
				return trusted(root, info, path)
			}
			_ = root.Close()
		}
		switch {
		case !last: // try once more
		case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			return nil, replacedError(path, "it was replaced by something else while it was being opened")
		default:
			return nil, openError(path, err)
		}
	}
}

// trusted returns root, or an error if other users could forge the content of the directory.
func trusted(root *os.Root, info fs.FileInfo, path string) (*os.Root, error) {
	var err error
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		err = failure.New(failure.IO, "state directory %s belongs to user %d, who could replace its files", path, st.Uid).
			Cure("remove that directory, or configure another state directory")
	} else if info.Mode().Perm()&0o022 != 0 {
		err = failure.New(failure.IO, "other users can write to the state directory %s (mode %04o)", path, info.Mode().Perm()).
			Cure("check the files in it, then run: chmod 0700 %s", path)
	}
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

func replacedError(path, why string) error {
	return failure.From(fmt.Errorf("%s: %w", why, ErrForeign), failure.IO, "state directory %s", path).
		Cure("remove what is at that path, or configure another state directory")
}

func openError(path string, err error) error {
	return failure.From(err, failure.IO, "state directory %s", path).Cure("make the directory writable for root, or configure another state directory")
}

// onTmpfs reports whether path is on a file system that does not survive a
// reboot.
func onTmpfs(path string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
}

// Close closes the directory. It does not release locks of the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Path returns the directory's path, for messages.
func (d *Dir) Path() string { return d.path }

// Durable reports whether files in the directory survive a reboot. In that case the directory is
// not on tmpfs, and writes are synced.
func (d *Dir) Durable() bool { return d.durable }

// Sub opens the directory name below d, and makes it if it does not exist. It refuses the same
// directories as [Open].
func (d *Dir) Sub(name string) (*Dir, error) {
	if err := d.root.Mkdir(name, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, openError(filepath.Join(d.path, name), err)
	} else if err == nil {
		if err := d.syncDir(); err != nil {
			return nil, err
		}
	}
	return d.SubExisting(name)
}

// SubExisting opens the directory name below d as [Dir.Sub] does, but does not create it. If the
// directory is missing, the error wraps [fs.ErrNotExist].
func (d *Dir) SubExisting(name string) (*Dir, error) {
	path := filepath.Join(d.path, name)
	root, err := openRoot(d.root.Lstat, d.root.OpenRoot, name, path)
	if err != nil {
		return nil, err
	}
	return &Dir{root: root, path: path, durable: d.durable}, nil
}

// ErrForeign is wrapped by the error about a file that [Dir.Write] cannot have made.
var ErrForeign = errors.New("not a file that this program writes")

var (
	errSymlink  = fmt.Errorf("it is a symbolic link: %w", ErrForeign)
	errTooLarge = fmt.Errorf("it is larger than %d bytes: %w", maxFile, ErrForeign)
)

// Read returns the content of the file name. The error wraps [fs.ErrNotExist] if the file is
// missing. It wraps [ErrForeign] if the file is too large, or if it is a symbolic link or another
// file that is not regular. Read does not follow a symbolic link.
func (d *Dir) Read(name string) ([]byte, error) {
	if d.isSymlink(name) {
		return nil, fmt.Errorf("%s: %w", filepath.Join(d.path, name), errSymlink)
	}
	f, err := d.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: %w", filepath.Join(d.path, name), errTooLarge)
	}
	return data, nil
}

func (d *Dir) isSymlink(name string) bool {
	info, err := d.root.Lstat(name)
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// Write atomically replaces the content of name. A reader, and a process after a crash, sees either
// the old content or the new content. If there is a directory with that name, Write sets the
// directory aside, because otherwise each later write would fail.
func (d *Dir) Write(name string, data []byte) error {
	if len(data) > maxFile {
		return failure.New(failure.IO, "state file %s would have %d bytes, but at most %d can be read", filepath.Join(d.path, name), len(data), maxFile).
			Cure("shorten the configuration that the file keeps")
	}
	// The name does not use the process ID, because processes in containers that share the
	// directory may have the same ID.
	tmp := fmt.Sprintf("%s%016x", tmpPrefix, rand.Uint64())
	if err := d.writeTemp(tmp, data); err != nil {
		_ = d.root.Remove(tmp)
		return writeError(d.path, name, err)
	}
	err := d.root.Rename(tmp, name)
	if err != nil {
		if info, statErr := d.root.Lstat(name); statErr == nil && info.IsDir() {
			if _, err = d.SetAside(name); err == nil {
				err = d.root.Rename(tmp, name)
			}
		}
	}
	if err != nil {
		_ = d.root.Remove(tmp)
		return writeError(d.path, name, err)
	}
	return d.syncDir()
}

func (d *Dir) writeTemp(tmp string, data []byte) error {
	f, err := d.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && d.durable {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func writeError(dir, name string, err error) error {
	cure := "make the directory writable for root, or configure another state directory"
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		cure = "free space on its file system, or configure another state directory"
	}
	return failure.From(err, failure.IO, "cannot write state file %s", filepath.Join(dir, name)).Cure("%s", cure)
}

// syncDir makes a change of the directory itself durable, if d is durable.
func (d *Dir) syncDir() error {
	if !d.durable {
		return nil
	}
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Symlink makes name a symbolic link with the text target. The error wraps [fs.ErrExist] if name
// exists. So if several callers make the same name at the same time, only one of them succeeds.
func (d *Dir) Symlink(target, name string) error {
	if err := d.root.Symlink(target, name); err != nil {
		return err
	}
	return d.syncDir()
}

// Readlink returns the target text of the symbolic link name.
func (d *Dir) Readlink(name string) (string, error) { return d.root.Readlink(name) }

// Link makes newName another name of the file oldName. The error wraps [fs.ErrExist] if newName
// exists.
func (d *Dir) Link(oldName, newName string) error {
	if err := d.root.Link(oldName, newName); err != nil {
		return err
	}
	return d.syncDir()
}

// Exists reports whether name exists. It does not follow a symbolic link.
func (d *Dir) Exists(name string) bool {
	_, err := d.root.Lstat(name)
	return err == nil
}

// OpenFile opens a file below d as [os.Root.OpenFile] does. A file that it creates has mode 0600.
// If the file is not regular, the error wraps [ErrForeign]; OpenFile does not block, as an open of
// a FIFO would. The only directory that may be opened is ".", to list it. OpenFile is for files
// that are changed in place (bitmaps). The caller closes the file.
func (d *Dir) OpenFile(name string, flag int) (*os.File, error) {
	f, err := d.root.OpenFile(name, flag|unix.O_NONBLOCK, fileMode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && name != "." {
		err = fmt.Errorf("%s is not a regular file but %s: %w", filepath.Join(d.path, name), info.Mode().Type(), ErrForeign)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Remove removes the file name. A missing file is not an error.
func (d *Dir) Remove(name string) error {
	if err := d.root.Remove(name); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return writeError(d.path, name, err)
	}
	return d.syncDir()
}

// RemoveAll removes name and everything below it. A missing name is not an error.
func (d *Dir) RemoveAll(name string) error {
	if err := d.root.RemoveAll(name); err != nil {
		return failure.From(err, failure.IO, "cannot remove %s", filepath.Join(d.path, name)).Cure("remove that path by hand")
	}
	return d.syncDir()
}

// SetAside renames an unreadable file, so that the file can be examined later, and returns its new
// name.
func (d *Dir) SetAside(name string) (string, error) {
	aside := fmt.Sprintf("%s.corrupt-%s", name, time.Now().UTC().Format("20060102T150405.000000000"))
	if err := d.root.Rename(name, aside); err != nil {
		return "", writeError(d.path, name, err)
	}
	return filepath.Join(d.path, aside), d.syncDir()
}

// rubbishAge is the age at which a temporary file is removed, because its writer was probably
// killed. If a living writer takes longer than that, its write returns an error, and it may write
// again.
const rubbishAge = time.Minute

// List returns the names of the files in the directory that end in suffix, in lexical order. The
// names include the suffix. List leaves out temporary files, and removes the temporary files of
// killed writers.
func (d *Dir) List(suffix string) ([]string, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tmpPrefix) {
			if info, err := d.root.Lstat(e.Name()); err == nil && time.Since(info.ModTime()) > rubbishAge {
				_ = d.root.Remove(e.Name()) // the next list tries again
			}
		}
		if !e.IsDir() && listed(e.Name(), suffix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// listed reports whether [Dir.List] lists a file with this name.
func listed(name, suffix string) bool {
	return strings.HasSuffix(name, suffix) && !strings.HasPrefix(name, tmpPrefix)
}

// Name joins parts, of which there must be at least one, into a file name. No other list of parts
// has the same name, and the name is never "", ".", ".." or the name of a temporary file. The parts
// are joined by '@'. Letters, digits, '_' and '-' stay as they are, and so does '.' except at the
// beginning. Every other byte is written as %XX. A name longer than 200 bytes is cut, and ends with
// the SHA-256 of the whole name.
func Name(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escape(p)
	}
	name := strings.Join(escaped, "@")
	if name == "" {
		return "%" // this is one empty part: in every other name two digits follow a "%"
	}
	const maxName = 200
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:maxName-2*sha256.Size-1] + "~" + hex.EncodeToString(sum[:])
}

func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
