#!/usr/bin/env bash
# Linux: a neighbor entry with NTF_USE ("ip neigh add … use") makes the kernel resolve the neighbor at
# once. If the neighbor's address is an address of the interface itself, the kernel sends a gratuitous
# ARP, so a program can announce the address without a packet socket.
# The kernel acknowledges the request without an error even if it sends nothing. This is the case if the
# interface's sysctl mcast_solicit is 0, or if app_solicit leaves the question to a daemon that does not
# run. The kernel also acknowledges the request if it sends something else: if the address itself cannot
# be a source, the kernel does not announce the address, but asks for it with another interface's
# address as the source.
#
# Expected: an error, or the announcement.
# Seen, on Linux 6.18.44, with github.com/vishvananda/netlink v1.3.1:
#
#   defaults:        acknowledged, sent: 10.9.0.1 asks for 10.9.0.1
#   mcast_solicit 0: acknowledged, sent: nothing
#   app_solicit 1:   acknowledged, sent: nothing
#   scope host:      acknowledged, sent: 192.168.5.5 asks for 10.9.0.1
#
# A program that announces addresses in this way must read both sysctls of the interface, which takes
# them from neigh/default of the host. The announced address must be the interface's only address.
#
# Needs root (to make a network namespace), Go and unshare(1).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >go.mod <<'MOD'
module finding

go 1.25.0

require github.com/vishvananda/netlink v1.3.1
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func sysctl(name, value string) {
	if name != "" {
		must(os.WriteFile("/proc/sys/net/ipv4/neigh/a/"+name, []byte(value), 0))
	}
}

// asked returns the ARP requests about 10.9.0.1 that arrive at a link in 300 ms.
func asked(index int, while func()) string {
	arp := uint16(unix.ETH_P_ARP>>8 | unix.ETH_P_ARP<<8&0xffff)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(arp))
	must(err)
	defer unix.Close(fd)
	must(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: arp, Ifindex: index}))
	timeout := unix.NsecToTimeval(int64(300 * time.Millisecond))
	must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	while()
	var found []string
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		frame := make([]byte, 64)
		n, _, err := unix.Recvfrom(fd, frame, 0)
		if err != nil || n < 28 || frame[7] != 1 || !net.IP(frame[24:28]).Equal(net.IPv4(10, 9, 0, 1)) {
			continue
		}
		found = append(found, fmt.Sprintf("%s asks for %s", net.IP(frame[14:18]), net.IP(frame[24:28])))
		break // it may be asked again
	}
	if len(found) == 0 {
		return "nothing"
	}
	return strings.Join(found, ", ")
}

func try(name, key, value string, scope int) {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
	must(netlink.LinkAdd(veth))
	defer func() { must(netlink.LinkDel(veth)) }()
	peer, err := netlink.LinkByName("b")
	must(err)
	must(netlink.LinkSetUp(peer))
	must(netlink.LinkSetUp(veth))
	for link, _ := netlink.LinkByName("a"); link.Attrs().OperState != netlink.OperUp; link, _ = netlink.LinkByName("a") {
		time.Sleep(time.Millisecond)
	}
	sysctl(key, value)
	address, err := netlink.ParseAddr("10.9.0.1/24")
	must(err)
	address.Scope = scope
	must(netlink.AddrAdd(veth, address))
	time.Sleep(50 * time.Millisecond) // for what the kernel announces by itself
	answer := "acknowledged"
	sent := asked(peer.Attrs().Index, func() {
		if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: veth.Index, Family: unix.AF_INET, IP: address.IP, Flags: netlink.NTF_USE}); err != nil {
			answer = err.Error()
		}
	})
	fmt.Printf("%-16s %s, sent: %s\n", name+":", answer, sent)
}

func main() {
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "far"}))
	other, err := netlink.LinkByName("other")
	must(err)
	must(netlink.LinkSetUp(other))
	address, err := netlink.ParseAddr("192.168.5.5/24")
	must(err)
	must(netlink.AddrAdd(other, address))
	try("defaults", "", "", unix.RT_SCOPE_UNIVERSE)
	try("mcast_solicit 0", "mcast_solicit", "0", unix.RT_SCOPE_UNIVERSE)
	try("app_solicit 1", "app_solicit", "1", unix.RT_SCOPE_UNIVERSE)
	try("scope host", "", "", unix.RT_SCOPE_HOST)
}
GO
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
go mod tidy >/dev/null 2>&1
go build -o finding .
seen=$(unshare --net ./finding)
echo "Linux $(uname -r)"
echo "$seen"
diff - <(echo "$seen") <<'OUT'
defaults:        acknowledged, sent: 10.9.0.1 asks for 10.9.0.1
mcast_solicit 0: acknowledged, sent: nothing
app_solicit 1:   acknowledged, sent: nothing
scope host:      acknowledged, sent: 192.168.5.5 asks for 10.9.0.1
OUT
echo "as described"
