package install

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// DefaultDir is the directory of the record and the backups.
const DefaultDir = "/var/lib/rail-cni/install"

const (
	recordName = "record.json"
	lockName   = "lock"
	version    = 1

	// lockTime is how long to wait until another process unlocks the record.
	lockTime = 30 * time.Second

	// quiet is the minimum age of a file before it is backed up, because a younger file may still
	// be written.
	quiet = 2 * time.Second

	// maxSums is the maximum number of checksums of one path in the record. Without it the number
	// would grow with each renewed token.
	maxSums = 20
)

// File describes a file to install.
type File struct {
	Path    string // absolute, with its directory
	Source  string // the file to copy, if Content is not used
	Content []byte
	Mode    fs.FileMode
	// Yield is true if a file at the path that is not rail-cni's must not be replaced.
	Yield bool
	// Shared is true if packages and people may also put the same program at the path. Then a file
	// at the path counts as rail-cni's only if the record has it.
	Shared bool
}

// Outcome is the outcome for a path.
type Outcome string

// These are the outcomes.
const (
	Same      Outcome = "is there"                          // already as wanted
	Installed Outcome = "installed"                         // there was no file that is not rail-cni's
	Replaced  Outcome = "installed, another's is backed up" // now or earlier
	Yielded   Outcome = "existing file kept"
	Restored  Outcome = "earlier file restored"
	Removed   Outcome = "removed"
)

// Node is the record of a node. It may be used concurrently, even by several processes.
type Node struct{ dir string }

// Open returns the record in dir, which must be an absolute path. It does not read or write
// anything.
func Open(dir string) *Node { return &Node{dir: dir} }

// Entry is a path of the record.
type Entry struct {
	Path string `json:"path"`
	// Installed are the SHA-256 sums of all contents that rail-cni has installed at the path. The
	// newest is the last.
	Installed []string `json:"sha256"`
	MadeDir   bool     `json:"madeDirectory,omitempty"`
	Shared    bool     `json:"shared,omitempty"` // as in [File]
	Before    *Before  `json:"before,omitempty"` // nil if nothing was there
}

// Before describes the file that was at the path before.
type Before struct {
	SHA256  string      `json:"sha256,omitempty"`
	Backup  string      `json:"backup,omitempty"` // name in the record's directory
	Link    string      `json:"link,omitempty"`   // set instead of Backup if the path was a symbolic link: its target
	Mode    fs.FileMode `json:"mode"`
	UID     int         `json:"uid"`
	GID     int         `json:"gid"`
	ModTime time.Time   `json:"modTime"`
}

type record struct {
	Version int      `json:"version"`
	Files   []*Entry `json:"files"`
}

func (r *record) find(path string) *Entry {
	for _, e := range r.Files {
		if e.Path == path {
			return e
		}
	}
	return nil
}

// session is the record while it is locked.
type session struct {
	dir *statefile.Dir
	record
}

// locked locks the record against other processes and calls f with it. If there is no record,
// locked makes one if begin is true, and otherwise does nothing.
func (n *Node) locked(begin bool, f func(s *session) error) (err error) {
	open := statefile.OpenExisting
	if begin {
		open = statefile.Open
	}
	dir, err := open(n.dir)
	if errors.Is(err, fs.ErrNotExist) && !begin {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	ctx, cancel := context.WithTimeout(context.Background(), lockTime)
	defer cancel()
	lock, err := dir.Lock(ctx, lockName)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	s := &session{dir: dir}
	if s.record, err = read(dir); err != nil {
		return err
	}
	return f(s)
}

func read(dir *statefile.Dir) (record, error) {
	r := record{Version: version}
	data, err := dir.Read(recordName)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err == nil && r.Version != version {
		err = fmt.Errorf("it has version %d, but this program needs version %d", r.Version, version)
	}
	return r, failure.From(err, failure.BadRecord, "%s", filepath.Join(dir.Path(), recordName)).
		Cure("correct it, or move it away and restore the earlier files of the CNI directories by hand")
}

func (s *session) save() error {
	if len(s.Files) == 0 {
		return s.dir.Remove(recordName)
	}
	data, err := json.MarshalIndent(s.record, "", "  ")
	if err != nil {
		return err
	}
	return s.dir.Write(recordName, append(data, '\n'))
}

// Entries returns the entries of the record, in the order in which they were added.
func (n *Node) Entries() ([]*Entry, error) {
	dir, err := statefile.OpenExisting(n.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	r, err := read(dir)
	return r.Files, err
}

// Put installs a file. If a file that is not rail-cni's is at the path, Put backs it up. If that
// file was written a moment ago, Put waits before it copies the file. The end of ctx ends this
// wait.
func (n *Node) Put(ctx context.Context, f File) (Outcome, error) { return n.put(ctx, f, false) }

// PutBack does the same as Put if the record has the path. For any other path it does nothing, and
// the outcome is "".
func (n *Node) PutBack(ctx context.Context, f File) (Outcome, error) { return n.put(ctx, f, true) }

func (n *Node) put(ctx context.Context, f File, known bool) (outcome Outcome, err error) {
	err = n.locked(!known, func(s *session) error {
		e := s.find(f.Path)
		if known && e == nil {
			return nil
		}
		outcome, err = s.put(ctx, f, e)
		return err
	})
	code := failure.IO
	if failure.KindOf(err) == failure.TryAgain {
		code = failure.TryAgain
	}
	return outcome, failure.Wrap(err, code, "%s is not installed", f.Path)
}

func (s *session) put(ctx context.Context, f File, e *Entry) (Outcome, error) {
	if !filepath.IsAbs(f.Path) {
		return "", fmt.Errorf("%q is not absolute", f.Path)
	}
	want, err := f.sum()
	if err != nil {
		return "", err
	}
	have, err := inspect(f.Path)
	if err != nil {
		return "", err
	}
	owned := have.isOwn(f.Path, e, f.Shared)
	if have.exists && !owned && f.Yield {
		return Yielded, nil
	}
	if have.sum == want && have.mode == f.Mode && e != nil && slices.Contains(e.Installed, want) && e.Shared == f.Shared {
		return Same, nil
	}
	if e == nil {
		e = &Entry{Path: f.Path}
		s.Files = append(s.Files, e)
	}
	e.Shared = f.Shared
	if have.exists && !owned && e.Before == nil {
		if e.Before, err = s.backUp(ctx, f.Path, have); err != nil {
			return "", err
		}
	}
	parent := filepath.Dir(f.Path)
	if _, err := os.Lstat(parent); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return "", err
		}
		e.MadeDir = true
	}
	sweep(parent, abandoned)
	e.remember(want)
	if err := s.save(); err != nil {
		return "", err
	}
	if err := f.write(); err != nil {
		return "", err
	}
	if e.Before != nil {
		return Replaced, nil
	}
	return Installed, nil
}

func (e *Entry) remember(sum string) {
	e.Installed = append(slices.DeleteFunc(e.Installed, func(s string) bool { return s == sum }), sum)
	e.Installed = e.Installed[max(0, len(e.Installed)-maxSums):]
}

func (f *File) sum() (string, error) {
	if f.Source == "" {
		sum := sha256.Sum256(f.Content)
		return hex.EncodeToString(sum[:]), nil
	}
	return Sum(f.Source)
}

// write writes the file to its path.
func (f *File) write() error {
	return Write(f.Path, f.Mode, func(to *os.File) error {
		if f.Source == "" {
			_, err := to.Write(f.Content)
			return err
		}
		return copyInto(to, f.Source)
	})
}

// Remove removes rail-cni's file at path and restores the earlier file. If another file has
// replaced rail-cni's file, that file stays.
func (n *Node) Remove(path string) (outcome Outcome, err error) {
	err = n.locked(false, func(s *session) error {
		e := s.find(path)
		if e == nil {
			return nil
		}
		if err := e.visible(n.dir); err != nil {
			return err
		}
		have, err := inspect(path)
		if err != nil {
			return err
		}
		switch {
		case have.exists && !have.isOwn(path, e, e.Shared):
			outcome = Yielded
		case e.Before != nil:
			outcome, err = Restored, s.restore(path, e.Before)
		default:
			outcome, err = Removed, removed(path)
		}
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if !slices.ContainsFunc(s.Files, func(other *Entry) bool { return other != e && filepath.Dir(other.Path) == dir }) {
			// No later call would clean up this directory. All temporary files can be removed,
			// because every writer must hold the lock of the record.
			sweep(dir, 0)
		}
		if e.MadeDir {
			_ = os.Remove(filepath.Dir(path)) // this fails if the directory is not empty, which is intended
		}
		s.Files = slices.DeleteFunc(s.Files, func(other *Entry) bool { return other == e })
		if err := s.save(); err != nil {
			return err
		}
		if e.Before != nil && e.Before.Backup != "" {
			err = s.dir.Remove(e.Before.Backup)
		}
		if len(s.Files) == 0 {
			// This fails if another process waits for the lock, which is intended.
			_ = errors.Join(s.dir.Remove(lockName), os.Remove(n.dir))
		}
		return err
	})
	return outcome, failure.Wrap(err, failure.IO, "%s is not restored", path)
}

// visible returns an error if this process may not see the path on the node. record is the
// directory of the record.
func (e *Entry) visible(record string) error {
	dir := filepath.Dir(e.Path)
	info, err := os.Stat(dir)
	if e.MadeDir && errors.Is(err, fs.ErrNotExist) { // the directory may have been removed together with the file
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return failure.New(failure.IO, "the directory %s, for %s, does not exist", dir, e.Path).
			Cure("in a container, mount the directory at the path of the installation; if the directory was removed, create it again")
	}
	if err == nil && isOfImage(info, record) {
		return failure.New(failure.IO, "%s, the directory for %s, is part of the container's image, not of the node", dir, e.Path).
			Cure("mount the node's directory at the path of the installation")
	}
	return err
}

// isOfImage reports whether a directory belongs to the image of the container in which the process
// runs. This is so if the directory is on the container's root, which is an overlay, and the record
// is not. The root of a node may also be an overlay. It is recognized as the root of process 1,
// because the agent's pod sees the node's processes (hostPID).
func isOfImage(dir fs.FileInfo, record string) bool {
	var root unix.Statfs_t
	if unix.Statfs("/", &root) != nil || root.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return false
	}
	ofRoot, err := os.Stat("/")
	if ofInit, initErr := os.Stat("/proc/1/root"); err != nil || initErr == nil && os.SameFile(ofInit, ofRoot) {
		return false
	}
	ofRecord, err := os.Stat(record)
	return err == nil && device(dir) == device(ofRoot) && device(ofRecord) != device(ofRoot)
}

// Visible returns an error if this process may not see some paths of the record on the node. The
// error names each path whose directory does not exist or belongs to the container's image. Paths
// below the directories in except are not checked.
func (n *Node) Visible(except ...string) error {
	entries, err := n.Entries()
	errs := []error{err}
	for _, e := range entries {
		if !slices.Contains(except, filepath.Dir(e.Path)) {
			errs = append(errs, e.visible(n.dir))
		}
	}
	return errors.Join(errs...)
}

// found describes the file that was found at a path.
type found struct {
	exists bool
	link   string // the target of a symbolic link
	mode   fs.FileMode
	sum    string
	info   fs.FileInfo
}

func inspect(path string) (found, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found{}, nil
	}
	if err != nil {
		return found{}, err
	}
	have := found{exists: true, mode: info.Mode(), info: info}
	switch {
	case info.Mode().IsRegular():
		have.sum, err = Sum(path)
	case info.Mode().Type() == fs.ModeSymlink:
		have.link, err = os.Readlink(path)
	default:
		err = fmt.Errorf("it is neither a file nor a symbolic link (mode %s); move it to another place", info.Mode())
	}
	return have, err
}

// module is the name of the module in the build information of rail-cni's programs.
var module = func() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Path
	}
	return ""
}()

// isOwn reports whether the file at path is rail-cni's. The record shows that. If the path is not
// shared, the file's build information also shows it, even if somebody copied the file by hand.
func (h *found) isOwn(path string, e *Entry, shared bool) bool {
	if h.sum == "" {
		return false
	}
	if e != nil && slices.Contains(e.Installed, h.sum) {
		return true
	}
	if shared || module == "" || h.mode&0o111 == 0 {
		return false
	}
	info, err := buildinfo.ReadFile(path)
	return err == nil && info.Main.Path == module
}

// backUp backs up the file at path.
func (s *session) backUp(ctx context.Context, path string, have found) (*Before, error) {
	b := &Before{SHA256: have.sum, Link: have.link, Mode: have.mode &^ fs.ModeType, ModTime: have.info.ModTime()}
	b.UID, b.GID = owner(have.info)
	if have.link != "" {
		return b, nil
	}
	// Another installer may be writing the file at this moment and may not be finished.
	if err := wait.For(ctx, quiet-min(quiet, time.Since(have.info.ModTime()).Abs())); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(path)) // several directories may have a file with the same name and content
	b.Backup = filepath.Base(path) + "." + hex.EncodeToString(sum[:4]) + "." + have.sum[:16]
	kept := filepath.Join(s.dir.Path(), b.Backup)
	if err := Copy(path, kept, 0o600); err != nil {
		return nil, err
	}
	switch sum, err := Sum(kept); {
	case err != nil:
		return nil, err
	case sum != have.sum:
		return nil, failure.New(failure.TryAgain, "%s has changed while it was copied", path).Cure("try again when the file is completely written")
	}
	return b, nil
}

// restore restores the earlier file at path.
func (s *session) restore(path string, b *Before) error {
	if b.Link != "" {
		return relink(path, b.Link)
	}
	kept := filepath.Join(s.dir.Path(), b.Backup)
	switch sum, err := Sum(kept); {
	case err != nil:
		return err
	case sum != b.SHA256:
		return failure.New(failure.BadRecord, "the backup %s has changed", kept).Cure("remove it, and restore %s by hand", path)
	}
	return Write(path, b.Mode, func(to *os.File) error {
		return errors.Join(copyInto(to, kept), to.Chown(b.UID, b.GID), os.Chtimes(to.Name(), b.ModTime, b.ModTime))
	})
}
