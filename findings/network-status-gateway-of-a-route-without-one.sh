#!/usr/bin/env bash
# network-attachment-definition-client: if a plugin returns a default route without a gateway, the
# pod's annotation k8s.v1.cni.cncf.io/network-status shows the gateway "<nil>". A plugin returns such a
# route for a point-to-point link, or if only the address has the gateway. For an address with a gateway
# and without a route, the annotation shows no gateway.
#
# Expected: no gateway, or the address's gateway if the address has one.
# Seen, with github.com/k8snetworkplumbingwg/network-attachment-definition-client v1.7.7 and
# github.com/containernetworking/cni v1.3.1:
#
#   route with gateway:     ["10.1.0.254"]
#   route by the address's: ["\u003cnil\u003e"]
#   route without gateway:  ["\u003cnil\u003e"]
#   address's gateway only: null
#
# A program that reads the annotation must accept values in "gateway" that are not addresses. A plugin
# whose gateway must appear in the annotation has to write the gateway into the route. (pkg/utils,
# CreateNetworkStatus.)
#
# Needs Go.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >go.mod <<'MOD'
module finding

go 1.25.0

require (
	github.com/containernetworking/cni v1.3.1
	github.com/k8snetworkplumbingwg/network-attachment-definition-client v1.7.7
)
MOD
cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
)

func main() {
	zero := 0
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	gateway := net.ParseIP("10.1.0.254")
	for _, of := range []struct {
		name    string
		address net.IP // its gateway
		routes  []*types.Route
	}{
		{"route with gateway", gateway, []*types.Route{{Dst: *all, GW: gateway}}},
		{"route by the address's", gateway, []*types.Route{{Dst: *all}}},
		{"route without gateway", nil, []*types.Route{{Dst: *all}}},
		{"address's gateway only", gateway, nil},
	} {
		status, err := utils.CreateNetworkStatus(&current.Result{
			CNIVersion: current.ImplementedSpecVersion,
			Interfaces: []*current.Interface{{Name: "net1", Sandbox: "/run/netns/pod"}},
			IPs:        []*current.IPConfig{{Interface: &zero, Address: net.IPNet{IP: net.ParseIP("10.1.0.1"), Mask: net.CIDRMask(24, 32)}, Gateway: of.address}},
			Routes:     of.routes,
		}, "default/net", false, nil)
		if err != nil {
			log.Fatal(err)
		}
		text, err := json.Marshal(status.Gateway)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-23s %s\n", of.name+":", text)
	}
}
GO
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
go mod tidy >/dev/null 2>&1
go build -o finding .
seen=$(./finding)
echo "$seen"
diff - <(echo "$seen") <<'OUT'
route with gateway:     ["10.1.0.254"]
route by the address's: ["\u003cnil\u003e"]
route without gateway:  ["\u003cnil\u003e"]
address's gateway only: null
OUT
echo "as described"
