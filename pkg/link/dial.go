package link

import (
	"errors"
	"reflect"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Dial opens a netlink socket in the calling thread's namespace that receives
// only what the kernel sends. Any process with CAP_NET_ADMIN in the namespace can
// send to the port of another process's socket, and to one of generic netlink
// without it; the library fails on such a message, and the kernel's answer is
// dropped when the socket's buffer is full.
func Dial(family int) (*nl.SocketHandle, error) {
	// A subscription to no group is an ordinary socket; the library has no other
	// constructor for one.
	s, err := nl.Subscribe(family)
	if err != nil {
		return nil, err
	}
	timeout := unix.NsecToTimeval(replyWait.Nanoseconds())
	_ = s.SetSendTimeout(&timeout)
	_ = s.SetReceiveTimeout(&timeout)
	// The kernel adds its reason to the number of an error (Linux 4.12).
	_ = s.SetExtAck(true)
	// Connected to the kernel, the socket takes nothing from processes of the
	// namespace (netlink_getsockbyportid). What they sent before is dropped.
	fd := s.GetFd()
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		s.Close()
		return nil, err
	}
	for err == nil || errors.Is(err, unix.EINTR) {
		_, _, err = unix.Recvfrom(fd, nil, unix.MSG_DONTWAIT)
	}
	return &nl.SocketHandle{Socket: s}, nil
}

// handleOf returns a handle of the library that uses these sockets. The library
// opens the sockets of a handle itself, and gives no access to them, so that they
// could not be connected to the kernel.
func handleOf(sockets map[int]*nl.SocketHandle) (*netlink.Handle, error) {
	h := &netlink.Handle{}
	field := reflect.ValueOf(h).Elem().FieldByName("sockets")
	if !field.IsValid() || field.Type() != reflect.TypeOf(sockets) {
		return nil, errors.New("the netlink library keeps the sockets of a handle elsewhere")
	}
	*(*map[int]*nl.SocketHandle)(field.Addr().UnsafePointer()) = sockets
	return h, nil
}
