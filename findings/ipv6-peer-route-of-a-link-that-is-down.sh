#!/usr/bin/env bash
# Linux: if a point-to-point IPv6 address without duplicate address detection (nodad) is added while
# its link is down, the kernel never makes the route to the peer, not even when the link comes up. When
# the link comes up, the kernel makes the route to the address itself, and IPv4's route to the peer. With
# duplicate address detection, the kernel makes the peer's route when the detection ends. If the link is
# up, the kernel makes the peer's route at once.
#
# Expected: the same routes in all cases, as for addresses with a subnet.
# Seen, on Linux 6.18.44, with github.com/vishvananda/netlink v1.3.1:
#
#   up, nodad:   fd00:3::5/128 fd00:3::6/128, 10.3.0.6/32
#   down, dad:   fd00:3::5/128 fd00:3::6/128, 10.3.0.6/32
#   down, nodad: fd00:3::5/128, 10.3.0.6/32
#
# A program that moves a link with such an address to another network namespace, where the link is
# down at first, must add the route after it sets the link up. If the program adds the address and sets
# the link up at once, there is a race: if the kernel's worker runs after the link is up, the worker
# makes the route.
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
	"slices"
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

func network(text string) *netlink.Addr {
	local, peer, _ := strings.Cut(text, " peer ")
	own, err := netlink.ParseIPNet(local)
	must(err)
	other, err := netlink.ParseIPNet(peer)
	must(err)
	return &netlink.Addr{IPNet: own, Peer: other}
}

// routes returns the routes of a new link whose addresses have peers.
func routes(upFirst bool, flags int) string {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
	must(netlink.LinkAdd(veth))
	defer func() { must(netlink.LinkDel(veth)) }()
	other, err := netlink.LinkByName("b")
	must(err)
	must(netlink.LinkSetUp(other))
	if upFirst {
		must(netlink.LinkSetUp(veth))
	}
	six := network("fd00:3::5/128 peer fd00:3::6/128")
	six.Flags = flags
	must(netlink.AddrAdd(veth, six))
	must(netlink.AddrAdd(veth, network("10.3.0.5/32 peer 10.3.0.6/32")))
	time.Sleep(time.Second)
	must(netlink.LinkSetUp(veth))
	time.Sleep(4 * time.Second) // detection takes up to two
	var found []string
	for _, family := range []int{netlink.FAMILY_V6, netlink.FAMILY_V4} {
		list, err := netlink.RouteList(veth, family)
		must(err)
		var of []string
		for _, r := range list {
			if r.Dst != nil && !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
				of = append(of, r.Dst.String())
			}
		}
		slices.Sort(of)
		found = append(found, strings.Join(of, " "))
	}
	return strings.Join(found, ", ")
}

func main() {
	fmt.Println("up, nodad:  ", routes(true, unix.IFA_F_NODAD))
	fmt.Println("down, dad:  ", routes(false, 0))
	fmt.Println("down, nodad:", routes(false, unix.IFA_F_NODAD))
}
GO
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
go mod tidy >/dev/null 2>&1
go build -o finding .
seen=$(unshare --net ./finding)
echo "Linux $(uname -r)"
echo "$seen"
diff - <(echo "$seen") <<'OUT'
up, nodad:   fd00:3::5/128 fd00:3::6/128, 10.3.0.6/32
down, dad:   fd00:3::5/128 fd00:3::6/128, 10.3.0.6/32
down, nodad: fd00:3::5/128, 10.3.0.6/32
OUT
echo "as described"
