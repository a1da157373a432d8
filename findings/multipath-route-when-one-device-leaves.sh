#!/usr/bin/env bash
# Linux: when one of two devices leaves the network namespace, the kernel removes an IPv4 route over
# both devices completely. The same route of IPv6 keeps its other hop. While a device is only down, the
# IPv4 route also keeps its other hop. When the device returns, the kernel restores neither the IPv4
# route nor the lost hop of the IPv6 route.
#
# Expected: in both families, traffic continues over the other device.
# Seen, on Linux 6.18.44, with github.com/vishvananda/netlink v1.3.1:
#
#   both:    IPv4 a b, IPv6 a b
#   b down:  IPv4 a b(dead), IPv6 a b(dead)
#   b up:    IPv4 a b, IPv6 a b
#   b away:  IPv4 no route, IPv6 a
#   b back:  IPv4 no route, IPv6 a
#
# A program that moves a NIC of a node to a pod also removes the node's equal-cost route, although the
# other NIC stays. So the program must restore the other NIC's part of the route at once.
# (net/ipv4/fib_semantics.c, fib_sync_down_dev: if a device is unregistered, all hops of the route are
# dead.)
#
# Needs root (to make network namespaces), Go and unshare(1).
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
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func network(text string) *net.IPNet {
	n, err := netlink.ParseIPNet(text)
	must(err)
	return n
}

func named(name string) netlink.Link {
	link, err := netlink.LinkByName(name)
	must(err)
	return link
}

// configure gives a link its addresses.
func configure(name string, number int) {
	for _, address := range []string{fmt.Sprintf("10.%d.0.1/24", number), fmt.Sprintf("fd00:%d::1/64", number)} {
		must(netlink.AddrReplace(named(name), &netlink.Addr{IPNet: network(address), Flags: unix.IFA_F_NODAD}))
	}
	must(netlink.LinkSetUp(named(name)))
}

func destination(family int) *net.IPNet {
	if family == netlink.FAMILY_V4 {
		return network("192.0.2.0/24")
	}
	return network("2001:db8::/32")
}

func addRoute(family int, gateways ...string) {
	var hops []*netlink.NexthopInfo
	for i, name := range []string{"a", "b"} {
		hops = append(hops, &netlink.NexthopInfo{LinkIndex: named(name).Attrs().Index, Gw: net.ParseIP(gateways[i])})
	}
	must(netlink.RouteAdd(&netlink.Route{Family: family, Dst: destination(family), MultiPath: hops}))
}

// hops returns the devices of the route.
func hops(family int) string {
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: destination(family)}, netlink.RT_FILTER_DST)
	must(err)
	var found []string
	add := func(index, flags int) {
		link, err := netlink.LinkByIndex(index)
		must(err)
		text := link.Attrs().Name
		if flags&unix.RTNH_F_DEAD != 0 {
			text += "(dead)"
		}
		found = append(found, text)
	}
	for _, r := range routes {
		if len(r.MultiPath) == 0 {
			add(r.LinkIndex, r.Flags)
		}
		for _, hop := range r.MultiPath {
			add(hop.LinkIndex, hop.Flags)
		}
	}
	if len(found) == 0 {
		return "no route"
	}
	slices.Sort(found)
	return strings.Join(found, " ")
}

func show(when string) {
	time.Sleep(500 * time.Millisecond) // IPv6 changes some routes in a worker
	fmt.Printf("%-8s IPv4 %s, IPv6 %s\n", when+":", hops(netlink.FAMILY_V4), hops(netlink.FAMILY_V6))
}

func main() {
	runtime.LockOSThread()
	home, err := netns.Get()
	must(err)
	pod, err := netns.New()
	must(err)
	inPod, err := netlink.NewHandleAt(pod)
	must(err)
	must(netns.Set(home))
	for i, name := range []string{"a", "b"} {
		must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}))
		must(netlink.LinkSetUp(named(name + "-peer")))
		configure(name, i+1)
	}
	addRoute(netlink.FAMILY_V4, "10.1.0.254", "10.2.0.254")
	addRoute(netlink.FAMILY_V6, "fd00:1::fe", "fd00:2::fe")
	show("both")
	must(netlink.LinkSetDown(named("b")))
	show("b down")
	configure("b", 2)
	show("b up")
	must(netlink.LinkSetNsFd(named("b"), int(pod)))
	show("b away")
	back, err := inPod.LinkByName("b")
	must(err)
	must(inPod.LinkSetNsFd(back, int(home)))
	configure("b", 2)
	show("b back")
	os.Exit(0)
}
GO
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
go mod tidy >/dev/null 2>&1
go build -o finding .
seen=$(unshare --net ./finding)
echo "Linux $(uname -r)"
echo "$seen"
diff - <(echo "$seen") <<'OUT'
both:    IPv4 a b, IPv6 a b
b down:  IPv4 a b(dead), IPv6 a b(dead)
b up:    IPv4 a b, IPv6 a b
b away:  IPv4 no route, IPv6 a
b back:  IPv4 no route, IPv6 a
OUT
echo "as described"
