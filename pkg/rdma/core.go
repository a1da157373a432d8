package rdma

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// ErrNoRDMA is wrapped by [Open] if this kernel has no RDMA core (no module ib_core). That is not a
// failure: it means that there are no RDMA devices.
var ErrNoRDMA = errors.New("no RDMA here: the kernel's RDMA core (module ib_core) is not loaded")

// ErrNotFound is wrapped if the namespace has no such device or port. While a device is being
// moved, it is in no namespace for a moment.
var ErrNotFound = errors.New("no such RDMA device")

// NotifyGroup is the multicast group of NETLINK_RDMA in which the kernel
// reports added and removed devices (RDMA_NL_GROUP_NOTIFY, Linux 6.12).
const NotifyGroup = 4

// Core is the RDMA core as one network namespace sees it. It is safe for concurrent use. Requests
// are serialized, so other requests wait until a move is done.
type Core struct {
	// Sys is the root of sysfs. If it is empty, as after Open, the sysfs of the namespace itself is
	// used ([netns.Netns.Sysfs]). Tests set a directory.
	Sys string

	ns     *netns.Netns
	socket *nlsocket.Socket
	mu     sync.Mutex
}

// Open connects to the RDMA core in ns, which must stay open as long as the Core. The error wraps
// [ErrNoRDMA] if the kernel has no RDMA core. The Core uses the socket and the mount of sysfs of
// ns, which end with ns. So it costs nothing to open another Core for the same namespace. The
// caller must close the Core.
func Open(ns *netns.Netns) (*Core, error) {
	s, err := ns.Socket(unix.NETLINK_RDMA)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrNoRDMA
	}
	if err != nil {
		return nil, failure.Wrap(err, failure.Kernel, "open RDMA netlink in netns %s", ns.Path)
	}
	return &Core{ns: ns, socket: s}, nil
}

// Close ends the use of the Core. A request after Close panics.
func (c *Core) Close() {
	if c != nil {
		c.socket = nil
	}
}

// inNetns runs f on a thread of the namespace. Most unexported methods must be called from such an
// f.
func (c *Core) inNetns(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ns.Do(f)
}

// sameNetns reports whether c and other belong to the same namespace.
func (c *Core) sameNetns(other *Core) bool { return c.ns.ID.Equal(other.ns.ID) }

// dumpTries bounds how often a dump that the kernel interrupted is repeated.
const dumpTries = 10

var errSilent = errors.New("the kernel gave no answer")

// request sends one RDMA_NLDEV_CMD_* command and returns the payloads of the answers.
func (c *Core) request(cmd, flags int, attrs ...*nl.RtAttr) ([][]byte, error) {
	var messages [][]byte
	var err error
	for range dumpTries {
		req := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|cmd, flags|unix.NLM_F_ACK)
		for _, a := range attrs {
			req.AddData(a)
		}
		messages = nil
		err = c.socket.Exchange(req, func(m []byte) { messages = append(messages, bytes.Clone(m)) })
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return messages, err
}

// ask is like request, for a command that is answered with exactly one message.
func (c *Core) ask(cmd int, attrs ...*nl.RtAttr) (nlattr.Attrs, error) {
	messages, err := c.request(cmd, 0, attrs...)
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, errSilent
	}
	return nlattr.Parse(messages[0])
}

// await waits for the kernel until done returns true or an error, or ctx ends. It polls rarely:
// most waits end at once, and the others are not urgent.
func await(ctx context.Context, done func() (bool, error)) error {
	return wait.Until(ctx, 20*time.Millisecond, done)
}
