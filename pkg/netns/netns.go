package netns

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// InitPath is the path of the first process's netns. That netns is the kernel's init_net, except in
// a container that has its own PID namespace. The kernel moves a NIC to init_net when the NIC's
// netns ends.
const InitPath = "/proc/1/ns/net"

// ID identifies a network namespace among all others of this boot.
//
// The inode number alone is not enough: the kernel reuses the number of a dead namespace for the
// next one. The cookie (SO_NETNS_COOKIE, Linux 5.14) is never reused. On a kernel without cookies
// Cookie is 0.
type ID struct {
	Inode  uint64 `json:"inode"`
	Cookie uint64 `json:"cookie,omitempty"`
}

// Equal reports whether both identify the same namespace.
func (id ID) Equal(other ID) bool {
	if id.Cookie != 0 && other.Cookie != 0 {
		return id.Cookie == other.Cookie
	}
	return id.Inode == other.Inode
}

// IsZero reports whether id identifies no namespace.
func (id ID) IsZero() bool { return id == ID{} }

func (id ID) String() string { return fmt.Sprintf("net:[%d]", id.Inode) }

// Netns is an open network namespace with sockets in it. It keeps the namespace
// alive until Close. Its methods may be called from any goroutine, but not
// concurrently. After Close they panic.
type Netns struct {
	// Path is the path by which the namespace was opened. It is for messages.
	Path string
	// ID is the identity of the namespace.
	ID ID
	// Unread, if set, is called once for each link of the namespace that cannot be read in full. err
	// is the reason.
	Unread func(index int, name string, err error)

	fd       int
	mu       sync.Mutex // guards sockets and sys, because RDMA cores are used concurrently
	handle   *netlink.Handle
	sockets  map[int]*nlsocket.Socket // by netlink family
	sys      int                      // root of its sysfs, 0 until Sysfs
	reported map[int]bool             // indexes that Unread was called with
}

// self is the namespace of the calling thread. /proc/<pid>/task/<tid> would be wrong: a plugin that
// was chrooted from a pod to the host (thick Multus) may see a /proc in which its process has
// another ID.
const self = "/proc/thread-self/ns/net"

// ErrNoNetns is wrapped if a path does not lead to a network namespace: the path does not exist, or
// leads to something else.
var ErrNoNetns = errors.New("no network namespace")

// Current opens the namespace of the calling thread. For a plugin, that is the host netns.
func Current() (*Netns, error) { return Open(self) }

// Open opens the network namespace at path, for example CNI_NETNS. The error wraps [ErrNoNetns] if
// path does not lead to one. The caller must close the Netns.
func Open(path string) (*Netns, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, noNetns(path, err)
	}
	return openFile(int(ns), path)
}

// openFile returns a Netns of a namespace file. The Netns then owns the descriptor fd.
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
	return failure.From(err, failure.Kernel, "cannot work in netns %s", path).Cure("run the program with CAP_SYS_ADMIN and CAP_NET_ADMIN")
}

// identify checks that the file is the file of a network namespace, and reads the ID.
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

// connect opens a socket in the namespace. The socket stays in the namespace in which it was
// opened, whatever thread uses it.
func (n *Netns) connect() error {
	return cannotWork(n.Path, n.Do(func() error {
		s, err := nlsocket.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		n.sockets = map[int]*nlsocket.Socket{unix.NETLINK_ROUTE: s}
		n.handle, err = nlsocket.HandleOf(map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: s.SocketHandle})
		return err
	}))
}

// Socket returns a socket of the netlink family in the namespace. The first call opens the socket,
// and Close closes it.
func (n *Netns) Socket(family int) (*nlsocket.Socket, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.sockets[family]; s != nil {
		return s, nil
	}
	var s *nlsocket.Socket
	if err := n.Do(func() (err error) { s, err = nlsocket.Dial(family); return err }); err != nil {
		return nil, err
	}
	n.sockets[family] = s
	return s, nil
}

// isCurrent reports whether the calling thread is in the namespace. It compares inode numbers: no
// other namespace has this number, because n keeps its namespace alive.
func (n *Netns) isCurrent() bool {
	var st unix.Stat_t
	return n.fd >= 0 && unix.Stat(self, &st) == nil && st.Ino == n.ID.Inode
}

// Handle returns the library's handle of the namespace's rtnetlink socket, or nil after Close.
func (n *Netns) Handle() *netlink.Handle { return n.handle }

// ReportUnread calls Unread, but only once for each index.
func (n *Netns) ReportUnread(index int, name string, err error) {
	if n.Unread == nil || n.reported[index] {
		return
	}
	if n.reported == nil {
		n.reported = map[int]bool{}
	}
	n.reported[index] = true
	n.Unread(index, name, err)
}

// FD returns the descriptor of the namespace file. It is valid until Close.
func (n *Netns) FD() int { return n.fd }

// cookie returns SO_NETNS_COOKIE of the calling thread's namespace, or 0 if the kernel has no
// cookies. Any other problem is an error: without its cookie, a namespace could be mistaken for a
// dead one with the same inode number.
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
	return c, failure.Context(err, "SO_NETNS_COOKIE")
}

// Close releases the namespace and its sockets.
func (n *Netns) Close() {
	if n == nil {
		return
	}
	// A closed handle of the library would go on working, with sockets in the current namespace of
	// the thread, which is the host's. A panic is better.
	n.handle = nil
	for _, s := range n.sockets {
		s.Close()
	}
	if n.sys != 0 {
		_ = unix.Close(n.sys)
		n.sys = 0
	}
	if n.fd >= 0 {
		_ = unix.Close(n.fd)
		n.fd = -1
	}
}

// Do runs f on a thread in the namespace, and then moves the thread back. Use it only for code
// whose thread must be in the namespace (/proc/sys). Netlink does not need that.
func (n *Netns) Do(f func() error) error {
	runtime.LockOSThread()
	if n.isCurrent() {
		defer runtime.UnlockOSThread()
		return f()
	}
	home, err := netns.GetFromPath(self) // netns.Get uses a pid and a tid: see self
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open %s: %w", self, err)
	}
	defer home.Close()
	if err := netns.Set(netns.NsHandle(n.fd)); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter netns %s: %w", n.Path, err)
	}
	// If f ends the goroutine or panics, the thread stays locked and ends with the goroutine: a
	// thread in the wrong namespace must run nothing else.
	ferr := f()
	err = netns.Set(home)
	for try := 1; try < 3 && err != nil; try++ {
		// Without another try the caller would undo its work in the wrong namespace.
		err = netns.Set(home)
	}
	if err != nil {
		return errors.Join(ferr, fmt.Errorf("leave netns %s: %w", n.Path, err))
	}
	runtime.UnlockOSThread()
	return ferr
}
