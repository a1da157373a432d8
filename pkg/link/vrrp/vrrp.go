package vrrp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// The multicast groups of VRRP (RFC 9568), 224.0.0.18 and ff02::12. groups4 has the first group as
// /proc/net/igmp shows it on machines of either byte order. groups6 has the second group as
// /proc/net/igmp6 shows it.
var (
	groups4 = []string{"120000E0", "E0000012"}
	groups6 = []string{"ff020000000000000000000000000012"}
)

// Listening returns the families ("IPv4", "IPv6") in which a VRRP daemon listens on the link with
// this name. The daemon listens to the multicast group of VRRP. A daemon that sends to single hosts
// (unicast_peer of keepalived) listens at one of the link's addresses instead. Listening returns
// those addresses as sources.
func Listening(n *netns.Netns, name string, addresses []net.IP) (families, sources []string, err error) {
	err = n.Do(func() error {
		for _, f := range []struct {
			family, memberships, sockets string
			groups                       []string
		}{{IPv4, "igmp", "raw", groups4}, {IPv6, "igmp6", "raw6", groups6}} {
			member, bound := false, []string(nil)
			err := readLines("/proc/thread-self/net/"+f.memberships, func(file io.Reader) { member = isMember(file, name, f.groups) })
			if err == nil {
				err = readLines("/proc/thread-self/net/"+f.sockets, func(file io.Reader) { bound = sockets(file, addresses) })
			}
			if err != nil {
				return err
			}
			if member || len(bound) > 0 {
				families, sources = append(families, f.family), append(sources, bound...)
			}
		}
		return nil
	})
	return families, sources, failure.Context(err, "VRRP daemons that listen on %s", name)
}

// readLines calls read with a file of /proc. If the file does not exist, readLines does nothing:
// the kernel has no IPv6.
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

// sockets reads /proc/net/raw or raw6, and returns those addresses at which a socket of the
// protocol VRRP listens.
func sockets(file io.Reader, addresses []net.IP) (bound []string) {
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // "24: 0500010A:0070 00000000:0000 …": a number, the address and the protocol
		if len(fields) < 2 {
			continue
		}
		local, protocol, _ := strings.Cut(fields[1], ":")
		if ip := procAddress(local); protocol == protocolVRRP && ip != nil && slices.ContainsFunc(addresses, ip.Equal) {
			bound = append(bound, ip.String())
		}
	}
	return bound
}

// protocolVRRP is IPPROTO_VRRP (112), as /proc/net/raw shows it.
const protocolVRRP = "0070"

// procAddress returns an address that /proc/net shows as words in the machine's byte order. It
// returns nil for anything else.
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

// The families that [Listening] returns.
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
)

// isMember reports whether device is in one of the groups. It reads /proc/net/igmp, in which the
// groups of a device follow the line of that device, or /proc/net/igmp6, in which each line has the
// device and a group.
func isMember(file io.Reader, device string, groups []string) bool {
	current := ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) < 2:
		case !strings.HasPrefix(lines.Text(), "\t"): // "2 eth0 : 1 V3", or "2 eth0 ff02…12 1 00000004 0"
			if current = fields[1]; current == device && len(fields) > 2 && slices.Contains(groups, fields[2]) {
				return true
			}
		case current == device && slices.Contains(groups, fields[0]):
			return true
		}
	}
	return false
}
