package nicstate

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/vrrp"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// ifaProto is IFA_PROTO of linux/if_addr.h.
const ifaProto = 11

// isVirtual reports whether a VRRP daemon has added the address. Newer daemons mark the address
// (IFA_PROTO). On a link on which a daemon listens, isVirtual also recognizes the address by its form:
// beside the link's own address the daemon adds a host address, or an address within the subnet of the
// own address.
func (s *Snapshot) isVirtual(ifaddrmsg []byte, attrs nlattr.Attrs) bool {
	if proto, ok := attrs.Get(ifaProto); ok && len(proto) == 1 && proto[0] == unix.RTPROT_KEEPALIVED {
		return true
	}
	if link.PeerAddress(attrs) != nil {
		return false
	}
	family := vrrp.IPv4
	if ifaddrmsg[0] == unix.AF_INET6 {
		family = vrrp.IPv6
	}
	ip := link.AddressOf(ifaddrmsg, attrs).IP
	if !slices.Contains(s.VRRP, family) || slices.Contains(s.VRRPSources, ip.String()) {
		return false
	}
	if isHost(ifaddrmsg) {
		return s.hasSubnet(ifaddrmsg[0])
	}
	// The kernel calls an IPv6 privacy address "secondary".
	secondary := family == vrrp.IPv4 && link.AddressFlags(ifaddrmsg, attrs)&unix.IFA_F_SECONDARY != 0
	return secondary || s.withinEarlier(ifaddrmsg, ip)
}

// withinEarlier reports whether the address is in the larger subnet of an address that the link had
// before: a daemon adds its addresses to a link that already has an address.
func (s *Snapshot) withinEarlier(ifaddrmsg []byte, ip net.IP) bool {
	for _, r := range s.Addresses { // in the order in which they were added
		header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofIfAddrmsg)
		if err != nil || header[0] != ifaddrmsg[0] || header[3] != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		earlier := link.AddressOf(header, attrs)
		if earlier.IP.Equal(ip) {
			return false
		}
		if header[1] < ifaddrmsg[1] && earlier.Contains(ip) {
			return true
		}
	}
	return false
}

// isHost reports whether the address has no subnet.
func isHost(ifaddrmsg []byte) bool {
	return ifaddrmsg[0] == unix.AF_INET && ifaddrmsg[1] == 32 || ifaddrmsg[0] == unix.AF_INET6 && ifaddrmsg[1] == 128
}

// hasSubnet reports whether the link has an address of the family with a subnet.
func (s *Snapshot) hasSubnet(family byte) bool {
	return slices.ContainsFunc(s.Addresses, func(r Replay) bool {
		header, _, err := nlattr.ParseMessage(r.Raw, unix.SizeofIfAddrmsg)
		return err == nil && header[0] == family && header[3] == unix.RT_SCOPE_UNIVERSE && !isHost(header)
	})
}

// ErrVirtual is wrapped by the error for an address that was not restored because it belongs to a
// VRRP daemon.
var ErrVirtual = errors.New("a VRRP daemon had added the address: another host may have the address now, and the daemon adds it again when this host takes it over")

// virtual reports whether the address of the snapshot belongs to a VRRP daemon.
func (s *Snapshot) virtual(r Replay) bool {
	header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofIfAddrmsg)
	return err == nil && s.isVirtual(header, attrs)
}

// Virtual returns the addresses of VRRP daemons.
func (s *Snapshot) Virtual() []string {
	var found []string
	for _, r := range s.Addresses {
		if s.virtual(r) {
			found = append(found, r.Text)
		}
	}
	return found
}

// withoutVirtual returns the snapshot without the addresses of VRRP daemons. lost has an error for
// each of these addresses.
func (s *Snapshot) withoutVirtual() (left *Snapshot, lost []error) {
	c := *s
	c.Addresses = slices.DeleteFunc(slices.Clone(s.Addresses), s.virtual)
	for _, text := range s.Virtual() {
		lost = append(lost, fmt.Errorf("address %s of %s: %w", text, s.Name, ErrVirtual))
	}
	return &c, lost
}
