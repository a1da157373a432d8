package probe

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a UDP socket that is bound to one interface. Its packets are not fragmented. The kernel
// reports when packets arrive at the interface and leave it.
type socket struct {
	*net.UDPConn
	raw      syscall.RawConn
	deadline atomic.Int64 // the deadline of read in Unix nanoseconds; 0 means no deadline, and 1 means closed
}

// These limit how many packets are read before read checks whether it must end, because a flood of
// packets never ends.
const (
	batch   = 256
	maxLate = 16 << 10 // after the deadline; this is more than the buffer holds
)

// SetReadDeadline sets the deadline of read.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.deadline.Store(t.UnixNano())
	return s.UDPConn.SetReadDeadline(t)
}

// Close ends read.
func (s *socket) Close() error {
	s.deadline.Store(1)
	return s.UDPConn.Close()
}

// over reports whether read must end.
func (s *socket) over() bool {
	deadline := s.deadline.Load()
	return deadline != 0 && time.Now().UnixNano() > deadline
}

// receiveBuffer is the size of the socket's buffer, in bytes. The buffer holds packets and reports
// about packets that a busy machine has not read yet.
const receiveBuffer = 4 << 20

// listen opens a socket with this address of the interface, and with a port that the kernel
// chooses.
func listen(device string, address netip.Addr) (*socket, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = configure(int(fd), device, address.Is4()) }); cerr != nil {
			return cerr
		}
		return err
	}}
	network := "udp6"
	if address.Is4() {
		network = "udp4"
	}
	conn, err := config.ListenPacket(context.Background(), network, netip.AddrPortFrom(address, 0).String())
	if err != nil {
		return nil, err
	}
	udp := conn.(*net.UDPConn) //nolint:errcheck // for these networks it always has this type
	raw, err := udp.SyscallConn()
	if err != nil {
		_ = udp.Close()
		return nil, err
	}
	return &socket{UDPConn: udp, raw: raw}, nil
}

// configure sets the options of a socket.
func configure(fd int, device string, is4 bool) error {
	if err := unix.BindToDevice(fd, device); err != nil {
		return err
	}
	// With PROBE, packets are not fragmented, and the path MTU that the kernel remembers does not
	// matter.
	level, option, probe := unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	if is4 {
		level, option, probe = unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	}
	if err := unix.SetsockoptInt(fd, level, option, probe); err != nil {
		return err
	}
	// Without CAP_NET_ADMIN, the buffer is only as large as net.core.rmem_max allows.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
		unix.SOF_TIMESTAMPING_TX_SOFTWARE|unix.SOF_TIMESTAMPING_RX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE)
}

// address returns the socket's address and port.
func (s *socket) address() netip.AddrPort {
	a := s.LocalAddr().(*net.UDPAddr).AddrPort() //nolint:errcheck // a UDP socket has an address of this type
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// packet is a probe or an answer that has arrived or has left.
type packet struct {
	header
	data []byte // complete if the packet arrived
	from netip.AddrPort
	time time.Time // the kernel's time
}

// read calls arrived and left for the packets of this run that arrive and leave. It returns when
// done returns true or the socket's deadline has passed. The functions are called by this
// goroutine. They must not keep the packet's data.
func (s *socket) read(token [8]byte, arrived, left func(p *packet), done func() bool) {
	data, control := make([]byte, 64<<10), make([]byte, 512)
	ended := false
	drain := func(fd uintptr) bool {
		for more, late := true, 0; more && late < maxLate; {
			more = s.drain(int(fd), token, data, control, arrived, left)
			if ended = done(); ended {
				return true
			}
			if s.over() {
				late += batch
			}
		}
		return s.over()
	}
	for {
		err := s.raw.Read(drain)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// On a busy machine, packets that arrived in time may still be unread when the deadline
			// is noticed.
			err = s.raw.Control(func(fd uintptr) { drain(fd) })
		}
		if err == nil || errors.Is(err, net.ErrClosed) {
			return
		}
		// If a report arrives in the error queue while the socket is not writable, Go's runtime
		// treats the report as an error of the socket. Then it does not wait for the socket until
		// the socket's next event.
		if err := s.raw.Control(func(fd uintptr) { drain(fd) }); err != nil || ended {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// drain reads packets that have arrived and reports about packets that have left, but at most one
// batch of each. It reports whether there may be more.
func (s *socket) drain(fd int, token [8]byte, data, control []byte, arrived, left func(p *packet)) (more bool) {
	in, out := 0, 0
	for ; in < batch; in++ {
		n, oobn, _, from, err := unix.Recvmsg(fd, data, control, unix.MSG_DONTWAIT)
		if err != nil {
			break
		}
		if h, ok := parse(data[:n], token); ok {
			arrived(&packet{h, data[:n], addrPort(from), stamp(control[:oobn])})
		}
	}
	for ; out < batch; out++ {
		// The kernel returns the packet that left together with the headers before its payload.
		n, oobn, _, _, err := unix.Recvmsg(fd, data[:512], control, unix.MSG_DONTWAIT|unix.MSG_ERRQUEUE)
		if err != nil {
			break
		}
		if i := bytes.Index(data[:n], []byte(mark)); i >= 0 {
			if h, ok := parse(data[i:n], token); ok {
				left(&packet{header: h, time: stamp(control[:oobn])})
			}
		}
	}
	return in == batch || out == batch
}

// stamp returns the kernel's time of a packet (struct scm_timestamping). If the kernel has reported
// no time, it returns the present time.
func stamp(control []byte) time.Time {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPING && len(m.Data) >= 16 {
			seconds, nanos := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:])
			if seconds != 0 {
				return time.Unix(int64(seconds), int64(nanos))
			}
		}
	}
	return time.Now().Round(0) // without the monotonic clock, because the kernel's times have none
}

func addrPort(from unix.Sockaddr) netip.AddrPort {
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// header is the beginning of a packet's payload: the mark, the flow, the number of the probe,
// whether the packet is an answer, and the signature of these. The token itself is never sent. If
// it were in a packet, everybody in the rail's network could read it and invent probes and answers.
type header struct {
	flow, number uint32
	answer       bool
}

const (
	mark          = "railctl\x01"
	signatureSize = 8
	signedSize    = 4 + 4 + 1
	headerSize    = len(mark) + signedSize + signatureSize
)

// sign returns the signature of data with the token of the run, which is the beginning of the
// HMAC-SHA256.
func sign(token [8]byte, data []byte) []byte {
	h := hmac.New(sha256.New, token[:])
	_, _ = h.Write(data) // a hash never returns an error
	return h.Sum(nil)[:signatureSize]
}

func (h header) write(to []byte, token [8]byte) {
	signed := to[copy(to, mark):][:signedSize]
	binary.BigEndian.PutUint32(signed, h.flow)
	binary.BigEndian.PutUint32(signed[4:], h.number)
	signed[8] = 0
	if h.answer {
		signed[8] = 1
	}
	copy(to[len(mark)+signedSize:], sign(token, signed))
}

// parse reads the header of a packet, and reports whether the packet belongs to this run.
func parse(data []byte, token [8]byte) (header, bool) {
	if len(data) < headerSize || string(data[:len(mark)]) != mark {
		return header{}, false
	}
	signed, signature := data[len(mark):][:signedSize], data[len(mark)+signedSize:headerSize]
	if signed[8] > 1 || !hmac.Equal(signature, sign(token, signed)) {
		return header{}, false
	}
	return header{binary.BigEndian.Uint32(signed), binary.BigEndian.Uint32(signed[4:]), signed[8] == 1}, true
}
