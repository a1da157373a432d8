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

// The groups of VRRP (RFC 9568), 224.0.0.18 and ff02::12, as /proc/net/igmp has them on a
// machine of either byte order, and as /proc/net/igmp6 has it.
var (
	groups4 = []string{"120000E0", "E0000012"}
	groups6 = []string{"ff020000000000000000000000000012"}
)

// Listening returns the families in which a VRRP daemon listens on the link with this name: "IPv4",
// "IPv6". It listens to the group of VRRP, or, where it sends to single hosts (unicast_peer of
// keepalived), at one of the link's addresses. Those are returned as its sources.
func Listening(n *netns.Netns, name string, addresses []net.IP) (families, sources []string, err error) {
	err = n.Do(func() error {
		for _, f := range []struct {
			family, memberships, sockets string
			groups                       []string
		}{{IPv4, "igmp", "raw", groups4}, {IPv6, "igmp6", "raw6", groups6}} {
			member, at := false, []string(nil)
			err := readLines("/proc/thread-self/net/"+f.memberships, func(file io.Reader) { member = isMember(file, name, f.groups) })
			if err == nil {
				err = readLines("/proc/thread-self/net/"+f.sockets, func(file io.Reader) { at = sockets(file, addresses) })
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
	return families, sources, failure.Context(err, "VRRP daemons that listen on %s", name)
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

// sockets reads /proc/net/raw or raw6, and returns those of the addresses at which a socket
// of the protocol VRRP listens.
func sockets(file io.Reader, addresses []net.IP) (at []string) {
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // "24: 0500010A:0070 00000000:0000 …": a number, the address and the protocol
		if len(fields) < 2 {
			continue
		}
		local, protocol, _ := strings.Cut(fields[1], ":")
		if ip := procAddress(local); protocol == protocolVRRP && ip != nil && slices.ContainsFunc(addresses, ip.Equal) {
			at = append(at, ip.String())
		}
	}
	return at
}

// protocolVRRP is IPPROTO_VRRP, 112, as /proc/net/raw has it.
const protocolVRRP = "0070"

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

// The families that [Listening] returns.
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
)

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
