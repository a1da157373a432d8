package netns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Find opens the namespace id, whose last known path was path. It tries path first, and then
// searches for other references to the namespace. It returns nil without an error if the namespace
// is gone. It returns an error if it cannot find out whether the namespace is gone.
func Find(id ID, path string) (*Netns, error) {
	n, err := locate(id, path)
	if n == nil {
		return nil, err
	}
	if err := n.connect(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Exists reports whether the namespace exists. It also returns true if that cannot be determined.
// If the kernel has file handles of namespaces, Exists opens no socket in the namespace: a closed
// socket keeps its namespace for some more milliseconds (RCU), so frequent checks could keep the
// namespace alive forever.
func Exists(id ID, path string) bool {
	if leadsTo(path, id) {
		return true // nearly always
	}
	n, err := locate(id, path)
	n.Close()
	return n != nil || err != nil
}

// locate returns the namespace, or nil if it is gone. It opens no sockets in the namespace. It
// returns an error if it cannot find out whether the namespace is gone.
func locate(id ID, path string) (*Netns, error) {
	if n, err := openIf(path, id); n != nil || err != nil {
		return n, err
	}
	if n, sure := openByHandle(id); sure {
		return n, nil
	}
	if dead.has(id) {
		return nil, nil
	}
	n, err := scan(id)
	if n == nil && err == nil {
		dead.add(id)
	}
	return n, err
}

// Starved reports whether err means that the process or the machine has run out of a resource. Such
// an error proves nothing about a namespace.
func Starved(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN)
}

// graves remembers the namespaces that a scan of every open file of the machine did not find, so
// that a pod with eight NICs needs one scan and not eight. A cookie is never reused.
type graves struct {
	mu      sync.Mutex
	cookies map[uint64]bool
}

var dead graves

func (g *graves) has(id ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cookies[id.Cookie]
}

func (g *graves) add(id ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cookies == nil || len(g.cookies) > 1000 {
		g.cookies = map[uint64]bool{}
	}
	if id.Cookie != 0 {
		g.cookies[id.Cookie] = true
	}
}

// Alive is the quick form of [Find] for the usual case: it reports whether path still leads to the
// namespace id. If it returns false, the namespace may still exist elsewhere, and the caller must
// search with [Find].
func Alive(id ID, path string) bool {
	fd, err := candidate(path, id)
	if fd < 0 || err != nil {
		return false
	}
	n := &Netns{Path: path, fd: fd}
	defer n.Close()
	return n.identify() == nil && n.ID.Equal(id)
}

// candidate opens path if path is the namespace file with the inode number of id. Otherwise fd is
// -1. err is set only if candidate cannot find out what path is.
//
// The file may belong to a pod, and be on a FUSE or NFS server that does not answer: a process that
// sends such a server a request sleeps, and not even SIGKILL ends it. So candidate opens the file
// with O_PATH and reads its device. Neither step sends the file system a request. Only a file of
// nsfs is then opened for reading.
func candidate(path string, id ID) (fd int, err error) {
	if path == "" {
		return -1, nil
	}
	fd, err = openNamespaceFile(path, id)
	if Starved(err) {
		return -1, fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return -1, nil
	}
	return fd, nil
}

func openNamespaceFile(path string, id ID) (int, error) {
	handle, err := namespaceFile(path, id)
	if err != nil {
		return -1, err
	}
	defer unix.Close(handle)
	return unix.Open(fmt.Sprintf("/proc/thread-self/fd/%d", handle), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// namespaceFile opens path with O_PATH if it is the namespace file with the inode
// number of id.
func namespaceFile(path string, id ID) (int, error) {
	nsfs, err := nsfsDevice()
	if err != nil {
		return -1, err
	}
	handle, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	dev, inode, err := identityOf(handle, "", unix.AT_EMPTY_PATH)
	if err == nil && (dev != nsfs || inode != id.Inode) {
		err = ErrNoNetns
	}
	if err != nil {
		_ = unix.Close(handle)
		return -1, err
	}
	return handle, nil
}

// nsfs is the device number of all namespace files, 0 while it is unknown.
var nsfs atomic.Uint64

func nsfsDevice() (uint64, error) {
	if dev := nsfs.Load(); dev != 0 {
		return dev, nil
	}
	dev, _, err := identityOf(unix.AT_FDCWD, self, 0)
	if err == nil {
		nsfs.Store(dev)
	}
	return dev, err
}

// identityOf returns the device and the inode number of a file that the kernel has cached. It sends
// no request to the file system.
func identityOf(dir int, path string, flags int) (dev, inode uint64, err error) {
	var st unix.Statx_t
	err = unix.Statx(dir, path, flags|unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &st)
	return unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, err
}

// openIf opens path if path is the namespace id. Otherwise it returns nil.
func openIf(path string, id ID) (*Netns, error) {
	fd, err := candidate(path, id)
	if fd < 0 || err != nil {
		return nil, err
	}
	n := &Netns{Path: path, fd: fd}
	err = n.identify()
	if err == nil && n.ID.Equal(id) {
		return n, nil
	}
	n.Close()
	if err != nil && !errors.Is(err, ErrNoNetns) {
		return nil, err
	}
	return nil, nil
}

// nsHandleType is FILEID_NSFS of linux/exportfs.h. It is the type of a namespace's file handle,
// which contains a struct nsfs_file_handle (linux/nsfs.h).
const nsHandleType = 0xf1

func nsHandle(id ID) []byte {
	h := binary.NativeEndian.AppendUint64(nil, id.Cookie)
	h = binary.NativeEndian.AppendUint32(h, unix.CLONE_NEWNET)
	return binary.NativeEndian.AppendUint32(h, uint32(id.Inode))
}

// noHandles is set if the kernel has no file handles of namespaces.
var noHandles atomic.Bool

// leadsTo reports whether path is the namespace id, as far as the kernel can tell without entering
// the namespace (Linux 6.18). False means that leadsTo does not know. Each ADD makes this check for
// the netns of each attachment on the node. To enter the netns and read its cookie would take
// twenty times as long.
//
// Like an open with O_PATH, name_to_handle_at(2) sends no request for the file to the server of its
// file system. No other file system has handles of this type.
func leadsTo(path string, id ID) bool {
	if path == "" || id.Cookie == 0 || noHandles.Load() {
		return false
	}
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EOPNOTSUPP) {
		// path may be on another file system, which has no handles.
		if file, err := namespaceFile(path, id); err == nil {
			_ = unix.Close(file)
			noHandles.Store(true)
		}
	}
	if err != nil {
		return false
	}
	return handle.Type() == nsHandleType && bytes.Equal(handle.Bytes(), nsHandle(id))
}

// openByHandle opens the namespace by a file handle (Linux 6.18). It also finds a namespace that
// only a socket keeps alive, which is not visible in /proc. sure is false if the kernel cannot
// answer.
func openByHandle(id ID) (n *Netns, sure bool) {
	if id.Cookie == 0 {
		return nil, false
	}
	current, err := Current()
	if err != nil {
		return nil, false
	}
	defer current.Close()
	// "Stale" means "gone" only if the kernel supports handles of this form.
	known, _, err := unix.NameToHandleAt(current.fd, "", unix.AT_EMPTY_PATH)
	if err != nil || known.Type() != nsHandleType || !bytes.Equal(known.Bytes(), nsHandle(current.ID)) {
		return nil, false
	}
	fd, err := unix.OpenByHandleAt(current.fd, unix.NewFileHandle(nsHandleType, nsHandle(id)), unix.O_RDONLY|unix.O_CLOEXEC)
	if errors.Is(err, unix.ESTALE) {
		return nil, true
	}
	if err != nil {
		return nil, false
	}
	// The kernel finds the namespace by its cookie, so there is no need to read the ID in the
	// namespace.
	return &Netns{Path: id.String(), ID: id, fd: fd}, true
}

// scanTime bounds a scan. A scan usually takes milliseconds, but it reads the open files of every
// process.
const scanTime = 10 * time.Second

// scan searches all paths that can lead to the namespace. It fails after
// scanTime.
func scan(id ID) (*Netns, error) {
	type answer struct {
		n   *Netns
		err error
	}
	found := make(chan answer)
	ctx, cancel := context.WithTimeout(context.Background(), scanTime)
	defer cancel()
	end := make(chan struct{})
	defer close(end)
	go func() {
		n, err := scanUntil(ctx, "/proc", id)
		select {
		case found <- answer{n, err}:
		case <-end:
			n.Close()
		}
	}()
	select {
	case a := <-found:
		return a.n, a.err
	case <-time.After(scanTime + time.Second): // the scan hangs
		return nil, fmt.Errorf("look for netns %s among the open files of all processes: %w", id, context.DeadlineExceeded)
	}
}

// scanUntil searches the bind mounts, the processes and their threads, and the files that processes
// hold open. Processes start and end during the search: scanUntil ignores those that have vanished.
func scanUntil(ctx context.Context, proc string, id ID) (*Netns, error) {
	want := id.String()
	points, err := mountsOf(want)
	if err != nil {
		return nil, err
	}
	for _, p := range points {
		if n, err := openIf(p, id); n != nil || err != nil {
			return n, err
		}
	}
	for _, pattern := range []string{"[0-9]*/ns/net", "[0-9]*/task/[0-9]*/ns/net"} {
		// Glob fails only for a malformed pattern, and these patterns are constants.
		paths, _ := filepath.Glob(filepath.Join(proc, pattern))
		for _, p := range paths {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if target, err := os.Readlink(p); err != nil || target != want {
				continue
			}
			if n, err := openIf(p, id); n != nil || err != nil {
				return n, err
			}
		}
	}
	n, err := scanFiles(ctx, proc, id)
	if n == nil && err == nil {
		// Glob skips unreadable files. If this process has run out of file descriptors meanwhile,
		// Glob read nothing, so its answer proves nothing.
		_, err = mountsOf(want)
	}
	return n, err
}

// firstFiles is the number of open files that the first round reads of each process. Later rounds
// read more.
const firstFiles = 1024

// scanFiles searches the open files of all processes for the netns. A process can have a million
// open files. Processes with many open files come last, so that they do not delay the search in the
// others.
func scanFiles(ctx context.Context, proc string, id ID) (*Netns, error) {
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd"))
	for limit := firstFiles; len(dirs) > 0; limit *= 8 {
		var larger []string
		for _, dir := range dirs {
			n, all, err := scanFilesOf(ctx, dir, limit, id)
			if n != nil || err != nil {
				return n, err
			}
			if !all {
				larger = append(larger, dir)
			}
		}
		dirs = larger
	}
	return nil, nil
}

// scanFilesOf reads at most about limit open files of a process. It reports whether these were all
// of them. It reads the names in blocks, because all names together could take a hundred megabytes.
func scanFilesOf(ctx context.Context, dir string, limit int, id ID) (n *Netns, all bool, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, true, onlyStarved(err)
	}
	defer d.Close()
	want, target := id.String(), make([]byte, unix.PathMax)
	for seen := 0; seen < limit; {
		names, err := d.Readdirnames(256)
		if len(names) == 0 {
			return nil, true, onlyStarved(err)
		}
		seen += len(names)
		for _, name := range names {
			if ctx.Err() != nil {
				return nil, false, fmt.Errorf("look for netns %s among the open files of all processes: %s lists too many files, so end that process: %w", id, dir, ctx.Err())
			}
			size, err := unix.Readlinkat(int(d.Fd()), name, target)
			if err != nil || !mayBe(string(target[:size]), want) {
				continue
			}
			p := filepath.Join(dir, name)
			if !hasInode(p, id.Inode) {
				continue
			}
			if n, err := openIf(p, id); n != nil || err != nil {
				return n, false, err
			}
		}
	}
	return nil, false, nil
}

// onlyStarved returns err if err means that this process ran out of files or memory. For any other
// error it returns nil: a file that cannot be read has vanished.
func onlyStarved(err error) error {
	if Starved(err) {
		return err
	}
	return nil
}

// mayBe reports whether an open file may be the namespace want. target is what the file's link in
// /proc/PID/fd leads to. If the file was opened through a bind mount, target is the path of the
// mount, or "/" after the unmount.
func mayBe(target, want string) bool {
	return target == want || target == "/" || strings.Contains(target, "netns")
}

// hasInode reports whether a file that a process has open may have this inode number. It reads the
// number from the file's fdinfo (Linux 5.14; proc_pid_fdinfo(5)), which involves no file system. It
// returns true if there is no such fdinfo.
func hasInode(path string, inode uint64) bool {
	process, number, ok := strings.Cut(path, "/fd/")
	if !ok {
		return true // /proc/PID/ns/net
	}
	info, err := os.ReadFile(process + "/fdinfo/" + number)
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(info)) {
		if text, ok := strings.CutPrefix(line, "ino:"); ok {
			return strings.TrimSpace(text) == strconv.FormatUint(inode, 10)
		}
	}
	return true
}

// mountsOf returns the paths of the bind mounts of the namespace file "net:[…]". It reads them from
// proc_pid_mountinfo(5). Examples are /run/netns/… and /run/docker/netns/….
func mountsOf(nsfile string) ([]string, error) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("look for netns %s: %w", nsfile, err)
	}
	var points []string
	for line := range strings.Lines(string(table)) {
		// id, parent, major:minor, root, mount point, …
		fields := strings.Fields(line)
		if len(fields) > 4 && fields[3] == nsfile {
			points = append(points, unescapeMount(fields[4]))
		}
	}
	return points, nil
}

// unescapeMount reverses the kernel's escapes of blanks and backslashes.
func unescapeMount(s string) string {
	for _, c := range " \t\n#\\" {
		s = strings.ReplaceAll(s, fmt.Sprintf(`\%03o`, c), string(c))
	}
	return s
}
