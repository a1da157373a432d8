package nlsocket

import (
	"errors"
	"reflect"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Dial opens a netlink socket in the calling thread's namespace. The socket receives only messages
// from the kernel. An ordinary socket also receives messages from other processes: a process with
// CAP_NET_ADMIN in the namespace can send to the socket's port, and for generic netlink a process
// needs no capability. The library fails on such a message. Once such messages fill the socket's
// buffer, the kernel's answer is dropped.
func Dial(family int) (*Socket, error) {
	// A subscription to no group is an ordinary socket. The library has no other constructor for an
	// ordinary socket.
	s, err := nl.Subscribe(family)
	if err != nil {
		return nil, err
	}
	timeout := unix.NsecToTimeval(replyWait.Nanoseconds())
	_ = s.SetSendTimeout(&timeout)
	_ = s.SetReceiveTimeout(&timeout)
	// Since Linux 4.12 the kernel explains its errors in a message.
	_ = s.SetExtAck(true)
	// Once the socket is connected to the kernel, it accepts nothing from other processes
	// (netlink_getsockbyportid). Messages that they sent before are discarded here.
	fd := s.GetFd()
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		s.Close()
		return nil, err
	}
	for err == nil || errors.Is(err, unix.EINTR) {
		_, _, err = unix.Recvfrom(fd, nil, unix.MSG_DONTWAIT)
	}
	return &Socket{SocketHandle: &nl.SocketHandle{Socket: s}}, nil
}

// HandleOf returns a handle of the library that uses these sockets. The library would open a
// handle's sockets itself and not expose them, so they could not be connected to the kernel.
func HandleOf(sockets map[int]*nl.SocketHandle) (*netlink.Handle, error) {
	h := &netlink.Handle{}
	field := reflect.ValueOf(h).Elem().FieldByName("sockets")
	if !field.IsValid() || field.Type() != reflect.TypeOf(sockets) {
		return nil, errors.New("netlink.Handle has no field \"sockets\" of the expected type; adapt HandleOf to the library's version")
	}
	*(*map[int]*nl.SocketHandle)(field.Addr().UnsafePointer()) = sockets
	return h, nil
}
