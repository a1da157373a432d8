package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

const (
	// replyRoom is the initial size of the receive buffer. The kernel fills the
	// datagrams of a dump up to this size (netlink_dump), and sends a larger one
	// only for a single object that needs it.
	replyRoom = 32 << 10
	// replyWait bounds the wait for a reply. rtnetlink has queued it when the
	// request's send returns, unless the socket's buffer was full.
	replyWait = 10 * time.Second
)

// exchange sends a request through the socket of n and calls each with the
// payload of every message of the answer. The payload is valid only until each
// returns.
//
// Unlike the library's Execute, which receives at most 64 KiB and fails on a
// truncated message, exchange accepts messages of any size: a pod that
// configures a link can make its description longer than that.
func (n *Netns) exchange(req *nl.NetlinkRequest, each func(payload []byte)) error {
	return n.exchangeOn(n.socket[unix.NETLINK_ROUTE], req, each)
}

// exchangeOn is [Netns.exchange] through another socket.
func (n *Netns) exchangeOn(handle *nl.SocketHandle, req *nl.NetlinkRequest, each func(payload []byte)) error {
	s := handle.Socket
	s.Lock()
	defer s.Unlock()
	req.Seq = atomic.AddUint32(&handle.Seq, 1)
	if err := s.Send(req); err != nil {
		return err
	}
	interrupted := false
	for {
		datagram, err := n.receive(s.GetFd())
		if err != nil {
			return err
		}
		msgs, err := syscall.ParseNetlinkMessage(datagram)
		if err != nil {
			return fmt.Errorf("%w: %w", nlattr.ErrMalformed, err)
		}
		for _, m := range msgs {
			if m.Header.Seq != req.Seq {
				continue // the acknowledgment of an earlier request
			}
			interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if err := replyError(m.Data); err != nil {
					return err
				}
			default:
				each(m.Data)
				if m.Header.Flags&unix.NLM_F_MULTI != 0 {
					continue
				}
			}
			if interrupted {
				return netlink.ErrDumpInterrupted
			}
			return nil
		}
	}
}

// replyError returns the error that the payload of NLMSG_ERROR or NLMSG_DONE
// begins with (netlink(7), struct nlmsgerr), nil for none.
func replyError(payload []byte) error {
	if len(payload) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(payload)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// receive returns the kernel's next datagram in full. It is valid until the next
// call.
func (n *Netns) receive(fd int) ([]byte, error) {
	for {
		size, _, err := unix.Recvfrom(fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if err := awaitReply(fd); err != nil {
				return nil, err
			}
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		}
		if size > len(n.buffer) {
			n.buffer = make([]byte, max(size, replyRoom))
		}
		size, from, err := unix.Recvfrom(fd, n.buffer, 0)
		if err != nil {
			return nil, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == nl.PidKernel {
			return n.buffer[:size], nil
		}
	}
}

func awaitReply(fd int) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	ready, err := unix.Poll(fds, int(replyWait.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	if ready == 0 && err == nil {
		return errors.New("the kernel does not answer")
	}
	return nil
}
