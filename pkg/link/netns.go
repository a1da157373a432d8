package link

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// InitNetns is the first process's netns: the kernel's init_net, except in a
// container that has a pid namespace of its own. The kernel moves a NIC there when
// its netns ends.
const InitNetns = "/proc/1/ns/net"

// NetnsID tells one network namespace from all others of this boot.
//
// The inode number alone does not: the kernel gives the number of a dead
// namespace to the next one. The cookie (SO_NETNS_COOKIE, Linux 5.14) is never
// given twice; where the kernel has none it is 0.
type NetnsID struct {
	Inode  uint64 `json:"inode"`
	Cookie uint64 `json:"cookie,omitempty"`
}

// Equal reports whether both mean the same namespace.
func (id NetnsID) Equal(other NetnsID) bool {
	if id.Cookie != 0 && other.Cookie != 0 {
		return id.Cookie == other.Cookie
	}
	return id.Inode == other.Inode
}

// IsZero reports whether id names no namespace.
func (id NetnsID) IsZero() bool { return id == NetnsID{} }

func (id NetnsID) String() string { return fmt.Sprintf("net:[%d]", id.Inode) }

// Netns is an open network namespace with sockets in it. It keeps the
// namespace alive until Close. Its methods may be called from any goroutine,
// one at a time. After Close they must not be called any more, and panic.
type Netns struct {
	// Path is how the namespace was opened, for messages.
	Path string
	// ID is its identity.
	ID NetnsID
	// Unread, if set, is called by [Netns.Links] once for each link that cannot
	// be read in full.
	Unread func(*Link)

	fd     int
	handle *netlink.Handle
	socket map[int]*nl.SocketHandle
	buffer []byte       // for receive
	told   map[int]bool // indexes that Unread was called with
}

// self is the namespace of the calling thread. Not /proc/<pid>/task/<tid>:
// a plugin that was chrooted from a pod to the host (thick Multus) may see a
// /proc in which its process has another number.
const self = "/proc/thread-self/ns/net"

// ErrNoNetns is wrapped when a path leads to no network namespace: it does not
// exist, or is something else.
var ErrNoNetns = errors.New("no network namespace")

// CurrentNetns opens the namespace of the calling thread: for a plugin, the
// host netns.
func CurrentNetns() (*Netns, error) { return OpenNetns(self) }

// OpenNetns opens the network namespace at path, as CNI_NETNS gives it. The
// error wraps [ErrNoNetns] when there is none at path.
func OpenNetns(path string) (*Netns, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, noNetns(path, err)
	}
	return openFile(int(ns), path)
}

// openFile makes a Netns of a namespace file, which it takes over.
func openFile(fd int, path string) (*Netns, error) {
	n := &Netns{Path: path, fd: fd}
	err := n.identify()
	if err == nil {
		err = n.connect()
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func noNetns(path string, err error) error {
	return failure.Wrap(fmt.Errorf("%w: %w", ErrNoNetns, err), failure.UnknownContainer, "netns %s", path)
}

func cannotWork(path string, err error) error {
	return failure.WithCure(failure.Wrap(err, failure.Kernel, "cannot work in netns %s", path), "the plugin needs CAP_SYS_ADMIN and CAP_NET_ADMIN")
}

// identify checks that the file is a network namespace, and reads its ID.
func (n *Netns) identify() error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(n.fd, &fs); err != nil {
		return noNetns(n.Path, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return noNetns(n.Path, errors.New("not a namespace file"))
	}
	if kind, err := unix.IoctlRetInt(n.fd, unix.NS_GET_NSTYPE); err == nil && kind != unix.CLONE_NEWNET {
		return noNetns(n.Path, errors.New("a namespace of another type"))
	}
	var st unix.Stat_t
	if err := unix.Fstat(n.fd, &st); err != nil {
		return noNetns(n.Path, err)
	}
	n.ID.Inode = st.Ino
	return cannotWork(n.Path, n.Do(func() (err error) { n.ID.Cookie, err = cookie(); return err }))
}

// connect opens a socket in the namespace. A socket stays in the namespace that
// it was opened in, whichever thread uses it.
func (n *Netns) connect() error {
	return cannotWork(n.Path, n.Do(func() error {
		s, err := Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		n.socket = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s}
		n.handle, err = handleOf(n.socket)
		return err
	}))
}

// cookie reads SO_NETNS_COOKIE of the calling thread's namespace, 0 where the
// kernel has none. Any other trouble is an error: without the cookie of one that
// has one, a namespace could pass for a dead one with the same inode number.
func cookie() (uint64, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket for SO_NETNS_COOKIE: %w", err)
	}
	defer unix.Close(s)
	c, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	return c, wrap(err, "SO_NETNS_COOKIE")
}

// Close releases the namespace and its sockets.
func (n *Netns) Close() {
	if n == nil {
		return
	}
	// A closed handle of the library goes on working, with sockets in whatever
	// namespace the thread is in: the host's. Rather crash.
	n.handle = nil
	for _, s := range n.socket {
		s.Close()
	}
	if n.fd >= 0 {
		_ = unix.Close(n.fd)
		n.fd = -1
	}
}

// Do runs f on a thread that is in the namespace, and leaves the thread in the
// namespace it came from. Only for what needs the thread to be there
// (/proc/sys); netlink does not.
func (n *Netns) Do(f func() error) error {
	runtime.LockOSThread()
	home, err := netns.GetFromPath(self) // netns.Get asks for a pid and tid, see self
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open %s: %w", self, err)
	}
	defer home.Close()
	if err := netns.Set(netns.NsHandle(n.fd)); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter netns %s: %w", n.Path, err)
	}
	// If f ends the goroutine or panics, the thread stays locked and ends with
	// its goroutine: a thread in the wrong namespace must run nothing else.
	ferr := f()
	err = netns.Set(home)
	for try := 1; try < 3 && err != nil; try++ {
		// Whatever the caller does to undo its work would be done in there.
		err = netns.Set(home)
	}
	if err != nil {
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
