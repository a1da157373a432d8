#!/usr/bin/env bash
# Linux: when a device loses its carrier, the kernel removes the device's nexthop objects (ip nexthop),
# and the routes that use these objects. A route that names its next hop itself stays, and the kernel
# uses it again when the carrier is back. The kernel does not restore the object.
#
# Expected: the object stays and is marked as dead, like the hop of a route.
# Seen, on Linux 6.18.44, with github.com/vishvananda/netlink v1.3.1:
#
#   carrier:     by object, object, own hop
#   no carrier:  own hop
#   again:       own hop
#
# If a daemon uses nexthop objects (FRRouting's zebra does so by default), the daemon must make the
# objects again after each loss of the carrier. A tool that compares a NIC's routes with an earlier list
# must not regard such a loss as its own fault. (net/ipv4/nexthop.c, nh_netdev_event.)
#
# Needs root (to make a network namespace), Go and unshare(1).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >go.mod <<'MOD'
module finding

go 1.25.0

require (
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.31.0
)
MOD
cat >main.go <<'GO'
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// nhmsg is the header of a message about nexthop objects (linux/nexthop.h).
type nhmsg struct{ family, scope, protocol uint8 }

func (m nhmsg) Len() int { return 8 }
func (m nhmsg) Serialize() []byte {
	return []byte{m.family, m.scope, m.protocol, 0, 0, 0, 0, 0}
}

// Attributes of a nexthop object, and of a route by one.
const (
	nhaID, nhaOIF, nhaGateway = 1, 5, 6
	rtaNexthopID              = 30
	object                    = 7 // the ID
)

func addObject(index int, gateway net.IP) {
	request := nl.NewNetlinkRequest(unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	request.AddData(nhmsg{family: unix.AF_INET, protocol: unix.RTPROT_STATIC})
	request.AddData(nl.NewRtAttr(nhaID, nl.Uint32Attr(object)))
	request.AddData(nl.NewRtAttr(nhaOIF, nl.Uint32Attr(uint32(index))))
	request.AddData(nl.NewRtAttr(nhaGateway, gateway.To4()))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	must(err)
}

func routeTo(destination net.IP, attrs ...*nl.RtAttr) {
	request := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	header := nl.NewRtMsg()
	header.Family, header.Dst_len = unix.AF_INET, 32
	request.AddData(header)
	for _, attr := range append(attrs, nl.NewRtAttr(unix.RTA_DST, destination.To4())) {
		request.AddData(attr)
	}
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	must(err)
}

// found returns which of the three are there.
func found() string {
	var have []string
	for _, of := range []struct{ name, destination string }{{"own hop", "192.0.2.1"}, {"by object", "192.0.2.2"}} {
		destination := &net.IPNet{IP: net.ParseIP(of.destination), Mask: net.CIDRMask(32, 32)}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: destination}, netlink.RT_FILTER_DST)
		must(err)
		if len(routes) > 0 {
			have = append(have, of.name)
		}
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETNEXTHOP, unix.NLM_F_DUMP)
	request.AddData(nhmsg{family: unix.AF_UNSPEC})
	objects, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEXTHOP)
	must(err)
	for _, message := range objects {
		attrs, err := nl.ParseRouteAttr(message[8:])
		must(err)
		if slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
			return a.Attr.Type == nhaID && binary.NativeEndian.Uint32(a.Value) == object
		}) {
			have = append(have, "object")
		}
	}
	slices.Sort(have)
	return strings.Join(have, ", ")
}

func show(when string) {
	time.Sleep(2 * time.Second) // the kernel tells of carriers once a second
	fmt.Printf("%-12s %s\n", when+":", found())
}

func main() {
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nic"}, PeerName: "switch"}))
	nic, err := netlink.LinkByName("nic")
	must(err)
	port, err := netlink.LinkByName("switch")
	must(err)
	must(netlink.LinkSetUp(port))
	must(netlink.LinkSetUp(nic))
	address, err := netlink.ParseAddr("10.1.0.1/24")
	must(err)
	must(netlink.AddrAdd(nic, address))
	time.Sleep(2 * time.Second) // until it has a carrier
	gateway, index := net.ParseIP("10.1.0.254"), nic.Attrs().Index
	addObject(index, gateway)
	routeTo(net.ParseIP("192.0.2.1"), nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))), nl.NewRtAttr(unix.RTA_GATEWAY, gateway.To4()))
	routeTo(net.ParseIP("192.0.2.2"), nl.NewRtAttr(rtaNexthopID, nl.Uint32Attr(object)))
	show("carrier")
	must(netlink.LinkSetDown(port))
	show("no carrier")
	must(netlink.LinkSetUp(port))
	show("again")
}
GO
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
go mod tidy >/dev/null 2>&1
go build -o finding .
seen=$(unshare --net ./finding)
echo "Linux $(uname -r)"
echo "$seen"
diff - <(echo "$seen") <<'OUT'
carrier:     by object, object, own hop
no carrier:  own hop
again:       own hop
OUT
echo "as described"
