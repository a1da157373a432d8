package testnet

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// Attributes of a macvlan, and values of its IFLA_MACVLAN_MACADDR_MODE (linux/if_link.h).
const (
	macvlanAddress     = 4
	macvlanAddressMode = 3
	macvlanAddresses   = 5

	addAddress   = 0
	setAddresses = 3
)

// Damage makes the kernel's description of a macvlan in mode source malformed, by this many
// source addresses, at least 5,400: the length of their list overflows 16 bits. The macvlan
// still works.
//
// The kernel describes the macvlan after each change, address by address: this takes a tenth of
// the time of ip(8), which also asks for the description before each.
func (n *Netns) Damage(name string, addresses int) {
	n.t.Helper()
	l, err := link.ByName(n.Netns, name)
	if err != nil {
		n.t.Fatal(err)
	}
	address := func(i int) []byte {
		return Attribute(macvlanAddress, []byte{2, 0, 0, 0, byte(i >> 8), byte(i)})
	}
	change := func(mode uint32, addresses []byte) []byte {
		data := Attribute(unix.IFLA_INFO_DATA, append(Attribute(macvlanAddressMode, words(mode)), addresses...))
		kind := Attribute(unix.IFLA_INFO_KIND, []byte("macvlan\x00"))
		return append(words(0, uint32(l.Index), 0, 0), Attribute(unix.IFLA_LINKINFO, append(kind, data...))...)
	}
	const first = 5400 // as many as one message holds
	var all []byte
	for i := range first {
		all = append(all, address(i)...)
	}
	changes := [][]byte{change(setAddresses, Attribute(macvlanAddresses, all))}
	for i := first; i < addresses; i++ {
		changes = append(changes, change(addAddress, address(i)))
	}
	n.Inside(func() {
		for some := range slices.Chunk(changes, 500) {
			if err := askAll(unix.NETLINK_ROUTE, unix.RTM_NEWLINK, some); err != nil {
				n.t.Fatalf("source addresses of %s: %v", name, err)
			}
		}
	})
}

// askAll sends several requests to a netlink family in one message. Each is carried out, and
// the first error returned.
func askAll(family int, kind uint16, payloads [][]byte) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	var message []byte
	for i, p := range payloads {
		flags := uint32(unix.NLM_F_REQUEST)
		if i == len(payloads)-1 {
			flags |= unix.NLM_F_ACK // else only errors are answered
		}
		message = append(message, words(uint32(unix.SizeofNlMsghdr+len(p)), uint32(kind)|flags<<16, uint32(i), 0)...)
		message = append(message, p...)
	}
	if err := unix.Sendto(s, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 1<<17)
	size, _, err := unix.Recvfrom(s, answer, 0)
	if err != nil {
		return err
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:size])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
