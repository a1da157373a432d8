package link

import (
	"bytes"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// PeerAddress returns the other end of a point-to-point address, or nil if the address has none.
func PeerAddress(attrs nlattr.Attrs) net.IP {
	local, ok := attrs.Get(unix.IFA_LOCAL)
	peer, _ := attrs.Get(unix.IFA_ADDRESS)
	if !ok || len(peer) != len(local) || bytes.Equal(peer, local) {
		return nil
	}
	return slices.Clone(peer)
}

// AddressOf returns the address in a message, with the prefix length of the address's subnet.
func AddressOf(ifaddrmsg []byte, attrs nlattr.Attrs) *net.IPNet {
	ip, ok := attrs.Get(unix.IFA_LOCAL)
	if !ok {
		ip, _ = attrs.Get(unix.IFA_ADDRESS)
	}
	bits := int(ifaddrmsg[1])
	if PeerAddress(attrs) != nil {
		bits = 8 * len(ip) // the prefix length belongs to the peer (ip-address(8))
	}
	return &net.IPNet{IP: slices.Clone(ip), Mask: net.CIDRMask(bits, 8*len(ip))}
}

// AddressFlags returns all flags (IFA_F_*) of an address. The header ifaddrmsg has room only for
// the first eight.
func AddressFlags(ifaddrmsg []byte, attrs nlattr.Attrs) uint32 {
	if all, ok := attrs.Uint32(unix.IFA_FLAGS); ok {
		return all
	}
	return uint32(ifaddrmsg[2])
}
