package testnet

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// Attribute returns a netlink attribute.
func Attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// ask sends one request to a netlink family and returns the payloads of the
// answers. It shares no code with the tested packages.
func (n *Netns) ask(family int, kind uint16, flags int, payload []byte) ([][]byte, error) {
	n.t.Helper()
	var answers [][]byte
	var err error
	n.Inside(func() { answers, err = ask(family, kind, flags, payload) })
	return answers, err
}

// buffers are for answers of netlink.
var buffers = sync.Pool{New: func() any { buf := make([]byte, 1<<20); return &buf }}

func ask(family int, kind uint16, flags int, payload []byte) ([][]byte, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, err
	}
	defer unix.Close(s)
	m := words(uint32(unix.SizeofNlMsghdr+len(payload)), uint32(kind)|uint32(unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)<<16, 1, 0)
	if err := unix.Sendto(s, append(m, payload...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var answers [][]byte
	pooled, _ := buffers.Get().(*[]byte)
	defer buffers.Put(pooled)
	for buf := *pooled; ; {
		size, _, err := unix.Recvfrom(s, buf, 0)
		if err != nil {
			return nil, err
		}
		for rest := buf[:size]; len(rest) >= unix.SizeofNlMsghdr; {
			length, kind := binary.NativeEndian.Uint32(rest), binary.NativeEndian.Uint16(rest[4:])
			body := rest[unix.SizeofNlMsghdr:length]
			switch kind {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				if len(body) >= 4 && int32(binary.NativeEndian.Uint32(body)) != 0 {
					return answers, unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
				}
				if kind == unix.NLMSG_DONE || flags&unix.NLM_F_DUMP == 0 {
					return answers, nil
				}
			default:
				answers = append(answers, slices.Clone(body))
			}
			rest = rest[min(int(length+3)&^3, len(rest)):]
		}
	}
}

// setLink changes attributes of a link.
func (n *Netns) setLink(index int, attributes ...[]byte) error {
	n.t.Helper()
	payload := append(words(0, uint32(index), 0, 0), slices.Concat(attributes...)...)
	_, err := n.ask(unix.NETLINK_ROUTE, unix.RTM_SETLINK, 0, payload)
	return err
}

// SetLink changes attributes of the link with this name.
func (n *Netns) SetLink(name string, attributes ...[]byte) error {
	n.t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		return err
	}
	return n.setLink(l.Index, attributes...)
}

// SetFlags sets flags of a link (IFF_…) to those of a mask, including flags
// that ip(8) does not know.
func (n *Netns) SetFlags(name string, flags, mask uint32) {
	n.t.Helper()
	payload := append(words(0, 0, flags, mask), Attribute(unix.IFLA_IFNAME, []byte(name+"\x00"))...)
	if _, err := n.ask(unix.NETLINK_ROUTE, unix.RTM_NEWLINK, 0, payload); err != nil {
		n.t.Fatalf("flags %x of %x of %s: %v", flags, mask, name, err)
	}
}

// nests are the attributes of RTM_NEWLINK that contain others, by their path.
// Not all of them have NLA_F_NESTED.
var nests = []string{"18", "22", "22.1", "26", "26.2", "26.10", "43", "52", "55"}

// MayDiffer are the attributes of RTM_NEWLINK, by the path of their numbers
// (linux/if_link.h), that are not part of a link's configuration.
var MayDiffer = map[string]string{
	"7":       "IFLA_STATS: counters",
	"23":      "IFLA_STATS64: counters",
	"35":      "IFLA_CARRIER_CHANGES: a counter; the link was down meanwhile",
	"47":      "IFLA_CARRIER_UP_COUNT: a counter",
	"48":      "IFLA_CARRIER_DOWN_COUNT: a counter",
	"26.10.1": "IFLA_INET6_FLAGS: whether a router was asked for and answered since the link is up",
	"26.10.3": "IFLA_INET6_STATS: counters",
	"26.10.5": "IFLA_INET6_CACHEINFO: the time of the last change of an address, in 10 ms since boot",
	"26.10.6": "IFLA_INET6_ICMP6STATS: counters",
}

// Attributes returns everything in the answer to RTM_GETLINK for a link,
// attribute by attribute, also unknown ones, except those in [MayDiffer].
func (n *Netns) Attributes(name string) string {
	n.t.Helper()
	filter := Attribute(unix.IFLA_EXT_MASK, words(1)) // RTEXT_FILTER_VF
	payload := append(append(words(0, 0, 0, 0), Attribute(unix.IFLA_IFNAME, []byte(name+"\x00"))...), filter...)
	answers, err := n.ask(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, payload)
	if err != nil || len(answers) != 1 {
		n.t.Fatalf("RTM_GETLINK of %s in %s: %d answers, %v", name, n.Name, len(answers), err)
	}
	header := answers[0][:unix.SizeofIfInfomsg]
	var b strings.Builder
	fmt.Fprintf(&b, "link type %d flags %x\n", binary.NativeEndian.Uint16(header[2:]), binary.NativeEndian.Uint32(header[8:]))
	// The queueing discipline of a link that is down depends on whether it ever
	// was up.
	down := binary.NativeEndian.Uint32(header[8:])&unix.IFF_UP == 0
	skip := func(path string) bool { return MayDiffer[path] != "" || path == "6" && down }
	dump(&b, "", answers[0][unix.SizeofIfInfomsg:], skip, nests)
	return b.String()
}

// dump writes attributes, one per line, each with the path of its numbers.
func dump(b *strings.Builder, prefix string, rest []byte, skip func(path string) bool, nests []string) {
	for len(rest) >= 4 {
		length, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if length < 4 || length > len(rest) {
			fmt.Fprintf(b, "%s: malformed\n", prefix)
			return
		}
		path := fmt.Sprintf("%s%d", prefix, kind&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER))
		value := rest[4:length]
		rest = rest[min((length+3)&^3, len(rest)):]
		switch {
		case skip(path):
		case kind&unix.NLA_F_NESTED != 0, slices.Contains(nests, path):
			fmt.Fprintf(b, "%s {\n", path)
			dump(b, path+".", value, skip, nests)
		default:
			fmt.Fprintf(b, "%s = %x %s\n", path, value, printable(value))
		}
	}
}

func printable(value []byte) string {
	text := strings.TrimRight(string(value), "\x00")
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return text
}
