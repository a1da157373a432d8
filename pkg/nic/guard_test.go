package nic

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// Kinds that this machine's kernel may lack, in the kernel's description.
func TestGuardrails(t *testing.T) {
	nic := &link.Link{Index: 4, Name: "ens1", Kind: "device", Encap: "ether", ParentDev: "0000:3b:00.0", ParentBus: "pci"}
	on := func(kind string) []*link.Link { return []*link.Link{nic, {Index: 9, Name: "x", Kind: kind, Lower: 4}} }
	in := func(kind string) (*link.Link, []*link.Link) {
		port := *nic
		port.Master = 9
		return &port, []*link.Link{&port, {Index: 9, Name: "x", Kind: kind}}
	}
	type test struct {
		name    string
		l       *link.Link
		f       facts
		reason  string // "" = it may be lent
		lift    string // the override key, "" = none
		mention string
	}
	tests := []test{
		{"a NIC", nic, facts{links: []*link.Link{nic}}, "", "", ""},
		{"a virtual NIC", &link.Link{Index: 4, Kind: "veth", Encap: "ether"}, facts{}, "", "", ""},
		{"an InfiniBand port", &link.Link{Index: 4, Kind: "ipoib", Encap: "infiniband", ParentDev: "0000:3b:00.0"}, facts{}, "", "", ""},
		{"the loopback", &link.Link{Index: 1, Name: "lo", Encap: "loopback"}, facts{}, "loopback", "", "lo"},
		{"the uplink", nic, facts{uplink: true}, "default route", netconf.AllowUplink, "ens1"},
		{"a peer elsewhere has the index", nic, facts{links: []*link.Link{nic, {Index: 9, Kind: "macvlan", Lower: 4, LowerInOtherNetns: true}}}, "", "", ""},
		{"a child of another", nic, facts{links: []*link.Link{nic, {Index: 9, Kind: "vlan", Lower: 5}}}, "", "", ""},
		{"the lower link of a child", &link.Link{Index: 9, Kind: "vlan", Lower: 4}, facts{links: []*link.Link{nic}}, "", "", ""},
		{"itself", nic, facts{links: []*link.Link{{Index: 4, Kind: "dsa", Lower: 4}}}, "", "", ""},
		{"with connections of the host", nic, facts{inUse: "the host has TCP connections"}, "TCP connections", netconf.AllowUplink, "ens1"},
		{"with virtual functions", nic, facts{functions: "8 virtual functions"}, "8 virtual functions", netconf.AllowVFs, "ens1"},
		{"in switchdev mode", nic, facts{immutable: true}, "netns-local", "", "devlink dev eswitch set pci/0000:3b:00.0 mode legacy"},
		{"the master has gone", &link.Link{Index: 4, Name: "ens1", Master: 9}, facts{}, "belongs to another link", netconf.AllowMember, "ens1"},
	}
	for _, kind := range []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec", "vxlan", "gre", "ipoib", "a kind of the future"} {
		tests = append(tests, test{"with a " + kind, nic, facts{links: on(kind)}, "lie on it", netconf.AllowChildren, "x (" + kind + ")"})
	}
	for _, kind := range peerKinds {
		tests = append(tests, test{"with a peer of kind " + kind, nic, facts{links: on(kind)}, "", "", ""})
	}
	for _, kind := range []string{"bridge", "bond", "team", "vrf", "openvswitch"} {
		port, links := in(kind)
		tests = append(tests, test{"in a " + kind, port, facts{links: links}, "it belongs to", netconf.AllowMember, "the " + kind + " x"})
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			err := c.f.guard(c.l, nil)
			if c.reason == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if failure.KindOf(err) != failure.NICProtected || !strings.Contains(err.Error(), c.reason) || !strings.Contains(err.Error(), c.mention) {
				t.Errorf("error %v (code %d), want %q and %q", err, cnierr.Code(err), c.reason, c.mention)
			}
			for _, override := range netconf.Overrides {
				if err := c.f.guard(c.l, []string{override}); (err == nil) != (override == c.lift) {
					t.Errorf("with override %q: %v", override, err)
				}
			}
			if c.lift != "" && !strings.Contains(err.Error(), `"allow": ["`+c.lift+`"]`) {
				t.Errorf("the error does not name the override %q: %v", c.lift, err)
			}
		})
	}
	t.Run("two at once", func(t *testing.T) {
		f := facts{uplink: true, links: on("vlan")}
		if f.guard(nic, []string{netconf.AllowUplink}) == nil || f.guard(nic, []string{netconf.AllowChildren}) == nil {
			t.Error("one override lifted both guardrails")
		}
		if err := f.guard(nic, []string{netconf.AllowUplink, netconf.AllowChildren}); err != nil {
			t.Error(err)
		}
	})
}

// The same with real links.
func TestGuardOfRealLinks(t *testing.T) {
	const nic = "ens1"
	for _, c := range []struct {
		name   string
		given  [][]string
		reason string
		lift   string
	}{
		{"a NIC of its own", nil, "", ""},
		{"with addresses", [][]string{{"addr", "add", "10.0.0.5/24", "dev", nic}, {"route", "add", "10.5.0.0/16", "via", "10.0.0.1"}}, "", ""},
		{"uplink", [][]string{{"addr", "add", "10.0.0.5/24", "dev", nic}, {"route", "add", "default", "via", "10.0.0.1"}}, "default route", netconf.AllowUplink},
		{"IPv6 uplink", [][]string{{"-6", "route", "add", "default", "via", "fe80::1", "dev", nic}}, "default route", netconf.AllowUplink},
		{"policy routing", [][]string{{"route", "add", "default", "dev", nic, "table", "100"}}, "", ""},
		{"bridge port", [][]string{{"link", "add", "br0", "type", "bridge"}, {"link", "set", nic, "master", "br0"}}, "the bridge br0", netconf.AllowMember},
		{"macvlan", [][]string{{"link", "add", "mv0", "link", nic, "type", "macvlan"}}, "mv0 (macvlan)", netconf.AllowChildren},
		{"macvtap and macvlan", [][]string{{"link", "add", "mv0", "link", nic, "type", "macvlan"}, {"link", "add", "mv1", "link", nic, "type", "macvtap"}}, "mv0 (macvlan), mv1 (macvtap)", netconf.AllowChildren},
		{"VXLAN", [][]string{{"link", "add", "flannel.1", "type", "vxlan", "id", "1", "dev", nic, "dstport", "4789"}}, "flannel.1 (vxlan)", netconf.AllowChildren},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := testnet.NewNetns(t, "host")
			host.NIC(nic, testnet.NewNetns(t, "wire"))
			for _, args := range c.given {
				host.IP(args...)
			}
			h := &Host{Netns: host.Netns, Sys: t.TempDir()}
			l, err := link.ByName(host.Netns, nic)
			if err != nil {
				t.Fatal(err)
			}
			before := host.State()
			err = h.Guard(viewOf(t, host, l), nil)
			if (err != nil) != (c.reason != "") || err != nil && !strings.Contains(err.Error(), c.reason) {
				t.Errorf("error %v, want %q", err, c.reason)
			}
			if c.lift != "" {
				if err := h.Guard(viewOf(t, host, l), []string{c.lift}); err != nil {
					t.Errorf("with its override: %v", err)
				}
			}
			if d := testnet.Diff(before, host.State()); d != "" {
				t.Errorf("looking changed the host:\n%s", d)
			}
		})
	}
	t.Run("a veth whose peer is on the host too", func(t *testing.T) {
		host := testnet.NewNetns(t, "host")
		host.IP("link", "add", "a0", "type", "veth", "peer", "name", "b0")
		h := &Host{Netns: host.Netns, Sys: t.TempDir()}
		l, err := link.ByName(host.Netns, "a0")
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Guard(viewOf(t, host, l), nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("the loopback, with every override", func(t *testing.T) {
		host := testnet.NewNetns(t, "host")
		lo, err := link.ByName(host.Netns, "lo")
		if err != nil {
			t.Fatal(err)
		}
		h := &Host{Netns: host.Netns, Sys: t.TempDir()}
		if err := h.Guard(viewOf(t, host, lo), netconf.Overrides); failure.KindOf(err) != failure.NICProtected {
			t.Errorf("error %v", err)
		}
	})
}

func viewOf(t *testing.T, n *testnet.Netns, l *link.Link) *link.View {
	t.Helper()
	v, err := link.ReadView(n.Netns, l.Index)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func linkOf(bus, dev string) *link.Link { return &link.Link{ParentBus: bus, ParentDev: dev} }
