package link

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// NetnsID tells one network namespace from all others of this boot.
//
// The inode number alone does not: the kernel gives the number of a dead
// namespace to the next one. The cookie (SO_NETNS_COOKIE, Linux 5.14) is never
// given twice; where the kernel has none it is 0.
type NetnsID struct {
	Inode  uint64 `json:"inode"`
	Cookie uint64 `json:"cookie,omitempty"`
}

// Equal says whether both mean the same namespace.
func (id NetnsID) Equal(other NetnsID) bool {
	if id.Cookie != 0 && other.Cookie != 0 {
		return id.Cookie == other.Cookie
	}
	return id.Inode == other.Inode
}

// IsZero says whether id names no namespace.
func (id NetnsID) IsZero() bool { return id == NetnsID{} }

func (id NetnsID) String() string { return fmt.Sprintf("net:[%d]", id.Inode) }

// Netns is an open network namespace with sockets in it. It keeps the
// namespace alive until Close. Its methods may be called from any goroutine,
// one at a time.
type Netns struct {
	// Path is how the namespace was opened, for messages.
	Path string
	// ID is its identity.
	ID NetnsID

	fd     netns.NsHandle
	handle *netlink.Handle
	socket map[int]*nl.SocketHandle
}

// ErrNoNetns is wrapped when a path leads to no network namespace: it does not
// exist, or is something else.
var ErrNoNetns = errors.New("no network namespace")

// CurrentNetns opens the namespace of the calling thread: for a plugin, the
// host netns.
func CurrentNetns() (*Netns, error) { return openNetns("/proc/thread-self/ns/net") }

// OpenNetns opens the network namespace at path, as CNI_NETNS gives it. The
// error wraps [ErrNoNetns] when there is none at path.
func OpenNetns(path string) (*Netns, error) { return openNetns(path) }

func openNetns(path string) (*Netns, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, noNetns(path, err)
	}
	n := &Netns{Path: path, fd: netns.NsHandle(fd)}
	if err := n.open(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func noNetns(path string, err error) error {
	return cnierr.Wrap(fmt.Errorf("%w: %w", ErrNoNetns, err), cnierr.UnknownContainer, "", "netns %s", path)
}

// open checks that the file is a network namespace, and opens sockets in it.
func (n *Netns) open() error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(n.fd), &fs); err != nil {
		return noNetns(n.Path, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return noNetns(n.Path, errors.New("not a namespace file"))
	}
	if kind, err := unix.IoctlRetInt(int(n.fd), unix.NS_GET_NSTYPE); err == nil && kind != unix.CLONE_NEWNET {
		return noNetns(n.Path, errors.New("a namespace of another type"))
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(n.fd), &st); err != nil {
		return noNetns(n.Path, err)
	}
	n.ID.Inode = st.Ino
	err := n.Do(func() error {
		n.ID.Cookie = cookie()
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		n.handle = handle
		s, err := nl.Subscribe(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		n.socket = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
		return nil
	})
	return cnierr.Wrap(err, cnierr.Kernel, "the plugin needs CAP_SYS_ADMIN and CAP_NET_ADMIN", "cannot work in netns %s", n.Path)
}

// cookie reads SO_NETNS_COOKIE of the calling thread's namespace, or 0.
func cookie() uint64 {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(s)
	c, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return c
}

// Close releases the namespace and its sockets.
func (n *Netns) Close() {
	if n == nil {
		return
	}
	if n.handle != nil {
		n.handle.Close()
	}
	for _, s := range n.socket {
		s.Close()
	}
	if n.fd.IsOpen() {
		_ = n.fd.Close()
	}
}

// Do runs f on a thread that is in the namespace, and leaves the thread in the
// namespace it came from. Only for what needs the thread to be there
// (/proc/sys); netlink does not.
func (n *Netns) Do(f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	if err := netns.Set(n.fd); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter netns %s: %w", n.Path, err)
	}
	ferr := f()
	if err := netns.Set(home); err != nil {
		// The thread stays locked and ends with its goroutine: a thread in
		// the wrong namespace must never run anything else.
		return errors.Join(ferr, fmt.Errorf("leave netns %s: %w", n.Path, err))
	}
	runtime.UnlockOSThread()
	return ferr
}

// request makes a raw netlink request that goes through a socket of n.
func (n *Netns) request(kind, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Sockets = n.socket
	return r
}

// FindNetns opens the namespace id, whose last known path was path. It looks
// there first, then where else namespaces are held: bind mounts under
// /run/netns, processes, and files that processes hold open. It gives nil
// without an error when the namespace is gone.
func FindNetns(id NetnsID, path string) (*Netns, error) {
	if n := openIf(path, id); n != nil {
		return n, nil
	}
	want := id.String()
	for _, pattern := range []string{"/run/netns/*", "/var/run/netns/*"} {
		for _, p := range glob(pattern) {
			if n := openIf(p, id); n != nil {
				return n, nil
			}
		}
	}
	for _, pattern := range []string{"/proc/[0-9]*/ns/net", "/proc/[0-9]*/task/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		for _, p := range glob(pattern) {
			if target, err := os.Readlink(p); err == nil && target == want {
				if n := openIf(p, id); n != nil {
					return n, nil
				}
			}
		}
	}
	return nil, nil
}

// NetnsAlive is the quick form of [FindNetns] for the usual case: it says
// whether path still leads to the namespace id. False means "look closer".
func NetnsAlive(id NetnsID, path string) bool {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil || st.Ino != id.Inode {
		return false
	}
	n := openIf(path, id)
	if n == nil {
		return false
	}
	n.Close()
	return true
}

func openIf(path string, id NetnsID) *Netns {
	if path == "" {
		return nil
	}
	// A path on another kind of file system may have the same inode number;
	// OpenNetns tells them apart, this only saves opening what cannot match.
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || st.Ino != id.Inode {
		return nil
	}
	n, err := OpenNetns(path)
	if err != nil {
		return nil
	}
	if !n.ID.Equal(id) {
		n.Close()
		return nil
	}
	return n
}

func glob(pattern string) []string {
	if !strings.ContainsAny(pattern, "*[") {
		return []string{pattern}
	}
	// The only error is a malformed pattern, and these are constants.
	found, _ := filepath.Glob(pattern)
	return found
}
