package link

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
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
// "IPv6". One that sends to single hosts (unicast_peer of keepalived) is not seen.
func (n *Netns) vrrp(name string) (families []string, err error) {
	err = n.Do(func() error {
		for _, f := range []struct {
			family, file string
			groups       []string
		}{{ipv4, "igmp", vrrpGroups4}, {ipv6, "igmp6", vrrpGroups6}} {
			file, err := os.Open("/proc/thread-self/net/" + f.file)
			if errors.Is(err, fs.ErrNotExist) {
				continue // without IPv6
			}
			if err != nil {
				return err
			}
			if isMember(file, name, f.groups) {
				families = append(families, f.family)
			}
			file.Close()
		}
		return nil
	})
	return families, wrap(err, "multicast groups of %s", name)
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
// (IFA_PROTO), and on a link on which a daemon listens by its form. Such a daemon adds a host
// address beside the link's own, or an IPv4 one in the subnet of the link's own.
func (s *Snapshot) isVirtual(ifaddrmsg []byte, attrs nlattr.Attrs) bool {
	if by, ok := attrs.Get(ifaProto); ok && len(by) == 1 && by[0] == unix.RTPROT_KEEPALIVED {
		return true
	}
	if peerOf(attrs) != nil {
		return false
	}
	switch ifaddrmsg[0] {
	case unix.AF_INET:
		return slices.Contains(s.VRRP, ipv4) && (addressFlags(ifaddrmsg, attrs)&unix.IFA_F_SECONDARY != 0 || isHost(ifaddrmsg) && s.hasSubnet(unix.AF_INET))
	case unix.AF_INET6:
		return slices.Contains(s.VRRP, ipv6) && isHost(ifaddrmsg) && s.hasSubnet(unix.AF_INET6)
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
