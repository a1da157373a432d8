//go:build rig

package tests

import (
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// TestCheckKnowsAnInterfaceInAVRF moves the interface into a VRF, as the plugin vrf does behind this
// one: the route is in the VRF's table, and the rule that leads there names no table.
func TestCheckKnowsAnInterfaceInAVRF(t *testing.T) {
	n := newNode(t)
	n.up(1)
	before := n.State()
	p := n.pod("trainer")
	add := p.call("ADD", "net1", n.config(0, map[string]any{"rdma": "off", "ipam": map[string]any{
		"type": "static", "addresses": []map[string]any{{"address": "172.31.1.9/24", "gateway": "172.31.1.1"}}, "routes": []map[string]any{{"dst": "10.0.0.0/8"}},
	}}))
	check := add.With("CHECK")
	check.Config = withResult(t, add.Config, n.MustRun(add))
	p.IP("link", "add", "vrf0", "type", "vrf", "table", "77")
	p.IP("link", "set", "vrf0", "up")
	p.IP("link", "set", "net1", "master", "vrf0")
	p.IP("route", "replace", "10.0.0.0/8", "via", "172.31.1.1", "dev", "net1", "table", "77")
	n.MustRun(check)
	p.IP("route", "del", "10.0.0.0/8", "table", "77")
	_, err := n.Run(check)
	mustFail(t, err, cnierr.Mismatch, "the route to 10.0.0.0/8")
	n.MustRun(add.With("DEL"))
	n.untouched(before)
}
