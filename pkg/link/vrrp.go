package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// The groups of VRRP (RFC 9568), 224.0.0.18 and ff02::12, as /proc/net/igmp has them on a
// machine of either byte order, and as /proc/net/igmp6 has it.
var (
	vrrpGroups4 = []string{"120000E0", "E0000012"}
	vrrpGroups6 = []string{"ff020000000000000000000000000012"}
)

// vrrp returns the families in which a VRRP daemon listens on the link with this name: "IPv4",
// "IPv6". It listens to the group of VRRP, or, where it sends to single hosts (unicast_peer of
// keepalived), at one of the link's addresses. Those are returned as its sources.
func (n *Netns) vrrp(name string, addresses []net.IP) (families, sources []string, err error) {
	err = n.Do(func() error {
		for _, f := range []struct {
			family, memberships, sockets string
			groups                       []string
		}{{ipv4, "igmp", "raw", vrrpGroups4}, {ipv6, "igmp6", "raw6", vrrpGroups6}} {
			member, at := false, []string(nil)
			err := readLines("/proc/thread-self/net/"+f.memberships, func(file io.Reader) { member = isMember(file, name, f.groups) })
			if err == nil {
				err = readLines("/proc/thread-self/net/"+f.sockets, func(file io.Reader) { at = vrrpSockets(file, addresses) })
			}
			if err != nil {
				return err
			}
			if member || len(at) > 0 {
				families, sources = append(families, f.family), append(sources, at...)
			}
		}
		return nil
	})
	return families, sources, wrap(err, "VRRP daemons that listen on %s", name)
}

// readLines opens a file of /proc, unless the kernel has none of this name: it is without IPv6.
func readLines(path string, read func(io.Reader)) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	read(file)
	return nil
}

// vrrpSockets reads /proc/net/raw or raw6, and returns those of the addresses at which a socket
// of the protocol VRRP listens.
func vrrpSockets(file io.Reader, addresses []net.IP) (at []string) {
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // "24: 0500010A:0070 00000000:0000 …": a number, the address and the protocol
		if len(fields) < 2 {
			continue
		}
		local, protocol, _ := strings.Cut(fields[1], ":")
		if ip := procAddress(local); protocol == vrrpProtocol && ip != nil && slices.ContainsFunc(addresses, ip.Equal) {
			at = append(at, ip.String())
		}
	}
	return at
}

// vrrpProtocol is IPPROTO_VRRP, 112, as /proc/net/raw has it.
const vrrpProtocol = "0070"

// procAddress returns an address that /proc/net has as words of the machine's byte order, and nil
// for anything else.
func procAddress(text string) net.IP {
	if len(text) != 2*net.IPv4len && len(text) != 2*net.IPv6len {
		return nil
	}
	var ip net.IP
	for word := range slices.Chunk([]byte(text), 8) {
		value, err := strconv.ParseUint(string(word), 16, 32)
		if err != nil {
			return nil
		}
		ip = binary.NativeEndian.AppendUint32(ip, uint32(value))
	}
	return ip
}

const ipv4, ipv6 = "IPv4", "IPv6"

// isMember reads /proc/net/igmp, in which the groups follow a line with their device, or
// /proc/net/igmp6, in which each line has both.
func isMember(file io.Reader, device string, groups []string) bool {
	of := ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) < 2:
		case !strings.HasPrefix(lines.Text(), "\t"): // "2 eth0 : 1 V3", or "2 eth0 ff02…12 1 00000004 0"
			if of = fields[1]; of == device && len(fields) > 2 && slices.Contains(groups, fields[2]) {
				return true
			}
		case of == device && slices.Contains(groups, fields[0]):
			return true
		}
	}
	return false
}

// ifaProto is IFA_PROTO of linux/if_addr.h.
const ifaProto = 11

// isVirtual reports whether a VRRP daemon has added the address: by the mark of newer ones
// (IFA_PROTO), and on a link on which a daemon listens by its form. Such a daemon adds, beside the link's
// own address, a host address, or one within the own one's subnet.
func (s *Snapshot) isVirtual(ifaddrmsg []byte, attrs nlattr.Attrs) bool {
	if by, ok := attrs.Get(ifaProto); ok && len(by) == 1 && by[0] == unix.RTPROT_KEEPALIVED {
		return true
	}
	if peerOf(attrs) != nil {
		return false
	}
	family := ipv4
	if ifaddrmsg[0] == unix.AF_INET6 {
		family = ipv6
	}
	ip := addressOf(ifaddrmsg, attrs).IP
	if !slices.Contains(s.VRRP, family) || slices.Contains(s.VRRPSources, ip.String()) {
		return false
	}
	if isHost(ifaddrmsg) {
		return s.hasSubnet(ifaddrmsg[0])
	}
	// The kernel calls an IPv6 privacy address secondary.
	secondary := family == ipv4 && addressFlags(ifaddrmsg, attrs)&unix.IFA_F_SECONDARY != 0
	return secondary || s.withinEarlier(ifaddrmsg, ip)
}

// withinEarlier reports whether the address is in the larger subnet of one that the link had
// before it: a daemon adds its addresses to a link that has its own.
func (s *Snapshot) withinEarlier(ifaddrmsg []byte, ip net.IP) bool {
	for _, r := range s.Addresses { // in the order in which they were added
		header, attrs, err := nlattr.ParseMessage(r.Raw, unix.SizeofIfAddrmsg)
		if err != nil || header[0] != ifaddrmsg[0] || header[3] != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		earlier := addressOf(header, attrs)
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

// ErrVirtual is wrapped by the error for an address that was not restored because it is a VRRP
// daemon's.
var ErrVirtual = errors.New("a VRRP daemon had added it: another host may have it now, and the daemon adds it again when it is this one's")

// virtual reports whether the address of the snapshot is a VRRP daemon's.
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

// withoutVirtual returns the snapshot without the addresses of VRRP daemons, and an error for
// each of these.
func (s *Snapshot) withoutVirtual() (left *Snapshot, lost []error) {
	c := *s
	c.Addresses = slices.DeleteFunc(slices.Clone(s.Addresses), s.virtual)
	for _, text := range s.Virtual() {
		lost = append(lost, fmt.Errorf("address %s of %s: %w", text, s.Name, ErrVirtual))
	}
	return &c, lost
}
