package attacker

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// indexOf requests only an interface's index: a reply with altnames could be
// large.
func indexOf(name string) (int, error) {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	err = withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(s int) error { return unix.IoctlIfreq(s, unix.SIOCGIFINDEX, r) })
	return int(r.Uint32()), err
}

// withSocket runs f with a socket of the thread's namespace.
func withSocket(family, kind, protocol int, f func(s int) error) error {
	s, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	return errors.Join(f(s), unix.Close(s))
}

// attribute makes an attribute of a 32-bit number.
func attribute(kind int, value uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind, binary.NativeEndian.AppendUint32(nil, value))
}

// text makes an attribute of a string.
func text(kind int, value string) *nl.RtAttr { return nl.NewRtAttr(kind, append([]byte(value), 0)) }

// change changes a link: its flags within mask, and attributes.
func change(index int, flags, mask uint32, attributes ...*nl.RtAttr) error {
	return request(unix.RTM_SETLINK, 0, index, flags, mask, attributes...)
}

// request sends a request about a link.
func request(kind, how, index int, flags, mask uint32, attributes ...*nl.RtAttr) error {
	r := nl.NewNetlinkRequest(kind, how|unix.NLM_F_ACK)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index, m.Flags, m.Change = int32(index), flags, mask
	r.AddData(m)
	for _, a := range attributes {
		r.AddData(a)
	}
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// up sets the interface up.
func up(index int) error { return change(index, unix.IFF_UP, unix.IFF_UP) }

// raw appends a netlink message that requests no acknowledgement.
func raw(b []byte, kind, flags int, header []byte, attributes ...*nl.RtAttr) []byte {
	start := len(b)
	b = append(b, make([]byte, unix.SizeofNlMsghdr)...)
	b = append(b, header...)
	for _, a := range attributes {
		b = append(b, a.Serialize()...)
	}
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+4:], uint16(kind))
	binary.NativeEndian.PutUint16(b[start+6:], uint16(unix.NLM_F_REQUEST|flags))
	return b
}

// send sends messages, as many at a time as a socket takes, and returns the
// first error.
func send(count int, message func(b []byte, i int) []byte) error {
	return withSocket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, func(s int) error {
		for i := 0; i < count; {
			var b []byte
			for ; i < count && len(b) < 32<<10; i++ {
				b = message(b, i)
			}
			if err := unix.Sendto(s, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				return err
			}
		}
		answer := make([]byte, 64<<10) // errors arrive even without NLM_F_ACK
		size, _, err := unix.Recvfrom(s, answer, unix.MSG_DONTWAIT)
		if err == nil && size >= unix.SizeofNlMsghdr+4 {
			if e := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); e < 0 {
				return unix.Errno(-e)
			}
		}
		return nil
	})
}
