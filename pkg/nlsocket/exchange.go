package nlsocket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

const (
	// replyRoom is the initial size of the receive buffer. The kernel fills the datagrams of a dump
	// up to this size (netlink_dump). It sends a larger datagram only if a single object needs it.
	replyRoom = 32 << 10
	// replyWait bounds the wait for a reply. When the send of a request returns, rtnetlink has
	// already queued the reply, unless the socket's buffer was full.
	replyWait = 10 * time.Second
)

// Socket is a netlink socket that [Dial] opened. It may be used concurrently: the kernel answers
// one request after another.
type Socket struct {
	*nl.SocketHandle
	buffer []byte // for receive

	familiesMu sync.Mutex
	families   map[string]uint16 // the numbers of the generic netlink families, by name
}

// Exchange sends a request and calls each with the payload of every message of the
// answer. The payload is valid only until each returns.
//
// The library's Execute receives at most 64 KiB and fails on a truncated message. Exchange accepts
// messages of any size, because a pod that configures a link can make the link's description longer
// than 64 KiB. Exchange also needs no new buffer of 64 KiB for each datagram.
func (s *Socket) Exchange(req *nl.NetlinkRequest, each func(payload []byte)) error {
	s.Socket.Lock()
	defer s.Socket.Unlock()
	return s.exchange(req, each)
}

// ExchangeStrictly is [Socket.Exchange] for a dump that the kernel checks strictly (Linux 4.20).
// The kernel then sends only the objects that the request selects.
func (s *Socket) ExchangeStrictly(req *nl.NetlinkRequest, each func(payload []byte)) error {
	s.Socket.Lock()
	defer s.Socket.Unlock()
	fd := s.Socket.GetFd()
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return unix.EOPNOTSUPP
	}
	defer func() { _ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 0) }()
	return s.exchange(req, each)
}

// exchange is Exchange for a caller that has locked the socket.
func (s *Socket) exchange(req *nl.NetlinkRequest, each func(payload []byte)) error {
	req.Seq = atomic.AddUint32(&s.Seq, 1)
	if err := s.Socket.Send(req); err != nil {
		return err
	}
	interrupted := false
	for {
		datagram, err := s.receive(s.Socket.GetFd())
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
				if err := replyError(m.Header.Flags, m.Data); err != nil {
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

// exchangeAll sends several requests in one system call. No request may be a dump or ask for an
// acknowledgment. exchangeAll calls each with the index of a request and the payload of the
// request's answer. It returns one error for each request. An error of one request does not stop
// the later requests (netlink_rcv_skb).
func (s *Socket) exchangeAll(reqs []*nl.NetlinkRequest, each func(i int, payload []byte)) ([]error, error) {
	s.Socket.Lock()
	defer s.Socket.Unlock()
	var all []byte
	open := map[uint32]int{} // indexes of the requests without an answer, by sequence number
	for i, req := range reqs {
		req.Seq = atomic.AddUint32(&s.Seq, 1)
		open[req.Seq] = i
		all = append(all, req.Serialize()...)
		all = append(all, make([]byte, nlattr.Align(len(all))-len(all))...)
	}
	fd := s.Socket.GetFd()
	if err := unix.Sendto(fd, all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	errs := make([]error, len(reqs))
	for len(open) > 0 {
		datagram, err := s.receive(fd)
		if err != nil {
			return nil, err
		}
		msgs, err := syscall.ParseNetlinkMessage(datagram)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", nlattr.ErrMalformed, err)
		}
		for _, m := range msgs {
			i, ok := open[m.Header.Seq]
			if !ok {
				continue // the acknowledgment of an earlier request
			}
			delete(open, m.Header.Seq)
			if m.Header.Type == unix.NLMSG_ERROR {
				errs[i] = replyError(m.Header.Flags, m.Data)
			} else {
				each(i, m.Data)
			}
		}
	}
	return errs, nil
}

// replyError returns the error at the beginning of the payload of NLMSG_ERROR or NLMSG_DONE
// (netlink(7), struct nlmsgerr), or nil if there is none. After the error number the payload has
// the request and, with NLM_F_ACK_TLVS, the kernel's explanation.
func replyError(flags uint16, payload []byte) error {
	if len(payload) < 4 {
		return nil
	}
	code := int32(binary.NativeEndian.Uint32(payload))
	if code == 0 {
		return nil
	}
	err, rest := error(unix.Errno(-code)), payload[4:]
	if flags&unix.NLM_F_ACK_TLVS == 0 || len(rest) < unix.SizeofNlMsghdr {
		return err
	}
	attrs, _ := nlattr.Parse(rest[min(nlattr.Align(int(binary.NativeEndian.Uint32(rest))), len(rest)):])
	if text := attrs.Text(nl.NLMSGERR_ATTR_MSG); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// receive returns the kernel's next datagram in full. The datagram is valid until the next call.
func (s *Socket) receive(fd int) ([]byte, error) {
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
		if size > len(s.buffer) {
			s.buffer = make([]byte, max(size, replyRoom))
		}
		size, from, err := unix.Recvfrom(fd, s.buffer, 0)
		if err != nil {
			return nil, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == nl.PidKernel {
			return s.buffer[:size], nil
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
