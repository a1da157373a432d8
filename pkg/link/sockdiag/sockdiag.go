package sockdiag

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// Connection is the pair of endpoints of a TCP connection.
type Connection struct{ Local, Remote netip.AddrPort }

// From linux/inet_diag.h and the kernel's net/tcp_states.h.
const (
	diagSourceCond  = 7 // INET_DIAG_BC_S_COND
	diagJump        = 1 // INET_DIAG_BC_JMP
	diagBytecode    = 1 // INET_DIAG_REQ_BYTECODE
	diagOp          = 4 // struct inet_diag_bc_op
	diagHostCond    = 8 // struct inet_diag_hostcond, without the address
	tcpEstablished  = 1
	sizeofDiagReq   = 60 // struct inet_diag_req
	diagGetSock     = 18 // TCPDIAG_GETSOCK
	sizeofDiagReply = 72 // struct inet_diag_msg
)

// ConnectionOf returns one of the namespace's established TCP connections whose local address is an
// address of the link of v, or nil if there is none. It also returns nil if the kernel does not
// have inet_diag.
//
// IPv6 link-local addresses do not count: every NIC that is up has one, so each ADD would have to
// search all sockets, which takes a millisecond or two. The kernel filters the connections
// (sock_diag(7)), so it does not copy thousands of others.
func ConnectionOf(n *netns.Netns, v *link.View) (*Connection, error) {
	addrs := v.Addresses()
	if len(addrs) == 0 {
		return nil, nil
	}
	var local []netip.Addr
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		local = append(local, ip.Unmap())
	}
	var found *Connection
	err := n.Do(func() error {
		s, err := nlsocket.Dial(unix.NETLINK_INET_DIAG)
		if err != nil {
			return err
		}
		defer s.Close()
		_, err = nlsocket.RetryDump(func() (struct{}, error) {
			return struct{}{}, s.Exchange(diagRequest(local), func(m []byte) {
				if found == nil {
					found = connection(m)
				}
			})
		})
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // a kernel without inet_diag, or one that cannot load it
	}
	return found, failure.Context(err, "list TCP connections of netns %s", n.Path)
}

// diagRequest returns a request for the established TCP sockets whose local address is one of
// addrs. It uses the older form of the request, which covers both families (inet_diag_dump_compat):
// the kernel walks its whole table of sockets for each dump, and one walk takes longer than all
// other guardrails.
func diagRequest(addrs []netip.Addr) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(diagGetSock, unix.NLM_F_DUMP)
	header := make([]byte, sizeofDiagReq)
	header[0] = unix.AF_INET
	binary.NativeEndian.PutUint32(header[52:], 1<<tcpEstablished)
	req.AddRawData(nlattr.Marshal(header, nlattr.Attrs{{Type: diagBytecode, Value: diagFilter(addrs)}}))
	return req
}

// diagFilter returns the filter "the local address is one of addrs". Each instruction has an offset
// for true and an offset for false. The filter matches if it stops exactly at its end. It does not
// match if it goes beyond its end (inet_diag_bc_run). So each condition except the last is followed
// by a jump to the end, which is taken if the condition is true. If the last condition is false,
// the filter goes beyond its end.
func diagFilter(addrs []netip.Addr) []byte {
	var filter []byte
	for i := len(addrs) - 1; i >= 0; i-- {
		rest := len(filter)
		size := diagOp + diagHostCond + addrs[i].BitLen()/8
		op := []byte{diagSourceCond, byte(size)}
		op = binary.NativeEndian.AppendUint16(op, uint16(size+diagOp))
		family := byte(unix.AF_INET)
		if addrs[i].Is6() {
			family = unix.AF_INET6
		}
		op = append(op, family, byte(addrs[i].BitLen()), 0, 0, 0xff, 0xff, 0xff, 0xff) // any port
		op = append(op, addrs[i].AsSlice()...)
		if rest > 0 {
			op = append(op, diagJump, diagOp)
			op = binary.NativeEndian.AppendUint16(op, uint16(diagOp+rest))
		}
		filter = append(op, filter...)
	}
	return filter
}

// connection reads struct inet_diag_msg, whose addresses are in network order.
func connection(m []byte) *Connection {
	if len(m) < sizeofDiagReply {
		return nil
	}
	end := func(port, addr []byte) netip.AddrPort {
		size := net.IPv4len
		if m[0] == unix.AF_INET6 {
			size = net.IPv6len
		}
		ip, _ := netip.AddrFromSlice(addr[:size])
		return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(port))
	}
	return &Connection{Local: end(m[4:], m[8:24]), Remote: end(m[6:], m[24:40])}
}
