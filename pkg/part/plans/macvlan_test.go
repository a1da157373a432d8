package plans_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestMacvlanIsMadeAsConfigured(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("link", "add", "net1", "type", "ifb") // the host may have the name as well
	before := b.node.State()
	for name, c := range map[string]struct {
		more map[string]any
		args string
		want []string
	}{
		"defaults":   {nil, "", []string{"mtu 9000", "macvlan mode bridge"}},
		"mtu":        {map[string]any{"mtu": 4000}, "", []string{"mtu 4000"}},
		"same mtu":   {map[string]any{"mtu": 9000}, "", []string{"mtu 9000"}},
		"mode":       {map[string]any{"mode": "private"}, "", []string{"macvlan mode private"}},
		"vepa":       {map[string]any{"mode": "vepa"}, "", []string{"macvlan mode vepa"}},
		"passthru":   {map[string]any{"mode": "passthru"}, "", []string{"macvlan mode passthru"}},
		"bcqueuelen": {map[string]any{"bcqueuelen": 500}, "", []string{"bcqueuelen 500"}},
		"mac":        {map[string]any{"mac": "02:00:00:00:00:01"}, "", []string{"02:00:00:00:00:01"}},
		"mac of CNI_ARGS": {
			map[string]any{"mac": "02:00:00:00:00:01"}, "IgnoreUnknown=1;MAC=02:00:00:00:00:02", []string{"02:00:00:00:00:02"},
		},
		"mac of runtimeConfig": {
			map[string]any{"mac": "02:00:00:00:00:01", "RuntimeConfig": map[string]any{"mac": "02:00:00:00:00:03"}},
			"MAC=02:00:00:00:00:02",
			[]string{"02:00:00:00:00:03"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			call := b.call("ADD", b.macvlanConfig(c.more))
			call.Args = c.args
			out := b.node.MustRun(call)
			var result current.Result
			if err := json.Unmarshal(out, &result); err != nil {
				t.Fatal(err)
			}
			text := b.pod.IP("-d", "link", "show", "net1")
			for _, want := range append(c.want, result.Interfaces[0].Mac, "UP") {
				if !strings.Contains(text, want) {
					t.Errorf("the link lacks %q:\n%s", want, text)
				}
			}
			b.node.MustRun(call.With("DEL"))
			b.untouched(before)
			if _, err := link.ByName(b.pod.Netns, "net1"); err == nil {
				t.Error("the macvlan is still there")
			}
		})
	}
}

func TestMacvlanThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*bench)
		more    map[string]any
		code    uint
		text    string
	}{
		"MTU over the master's": {nil, map[string]any{"mtu": 9001}, cnierr.InvalidConfig, "invalid MTU 9001, must be [0, master MTU(9000)]"},
		"negative MTU":          {nil, map[string]any{"mtu": -1}, cnierr.InvalidConfig, "invalid MTU -1"},
		"unknown mode":          {nil, map[string]any{"mode": "source"}, cnierr.InvalidConfig, `unknown macvlan mode: "source"`},
		"bad MAC":               {nil, map[string]any{"mac": "02:00"}, cnierr.InvalidConfig, "02:00"},
		"multicast MAC":         {nil, map[string]any{"mac": "01:00:5e:00:00:01"}, 0, "refused a macvlan on " + nicName},
		"missing master":        {nil, map[string]any{"master": "ens99"}, cnierr.NICNotFound, `"ens99"`},
		"no master, no route":   {nil, map[string]any{"master": nil}, cnierr.InvalidConfig, "no default route"},
		"master in a bridge": {func(b *bench) {
			b.node.IP("link", "add", "br0", "type", "bridge")
			b.node.IP("link", "set", nicName, "master", "br0")
		}, nil, cnierr.InvalidConfig, "something else receives its packets"},
		"passthru twice": {func(b *bench) {
			b.node.IP("link", "add", "mv0", "link", nicName, "type", "macvlan", "mode", "passthru")
		}, nil, cnierr.InvalidConfig, "passthru"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.prepare != nil {
				c.prepare(b)
			}
			before, pod := b.node.State(), b.pod.State()
			more := map[string]any{"ipam": localIPAM("172.31.1.0/24")}
			for k, v := range c.more {
				more[k] = v
			}
			_, err := b.node.Run(b.call("ADD", b.macvlanConfig(more)))
			fails(t, err, c.code, c.text)
			b.untouched(before)
			if d := b.pod.Settled(pod); d != "" {
				t.Errorf("the pod is not as it was:\n%s", d)
			}
		})
	}
}

func TestMacvlanLiesOnTheDefaultRoutesInterfaceUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("addr", "add", "10.9.0.1/24", "dev", nicName)
	b.node.IP("route", "add", "default", "via", "10.9.0.254")
	config := b.macvlanConfig(map[string]any{"master": nil})
	b.node.MustRun(b.call("ADD", config))
	if r := b.records(); r[0].Child.Master != nicName {
		t.Errorf("master %q", r[0].Child.Master)
	}
	b.node.MustRun(b.call("DEL", config))
}

func TestMacvlanOnALinkOfThePod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.pod.NIC("eth1", b.wire)
	config := b.macvlanConfig(map[string]any{"master": "eth1", "linkInContainer": true, "ipam": localIPAM("172.31.1.0/24")})
	pod := b.pod.State()
	b.node.MustRun(b.call("ADD", config))
	if text := b.pod.IP("-d", "link", "show", "net1"); !strings.Contains(text, "net1@eth1") {
		t.Errorf("the link: %s", text)
	}
	b.node.MustRun(b.call("DEL", config))
	if d := b.pod.Settled(pod); d != "" {
		t.Errorf("the pod is not as it was:\n%s", d)
	}
	b.nothingHeld()
}

// On an older kernel the macvlan is first made under another name if the host has a link with the
// right name. If the ADD is killed before the rename, the macvlan keeps that other name.
func TestMacvlanThatHasNotGotItsNameYetIsDeleted(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"DEL", "ADD"} {
		t.Run(verb, func(t *testing.T) {
			b := newBench(t)
			before, pod := b.node.State(), b.pod.State()
			config := b.macvlanConfig(nil)
			b.node.MustRun(b.call("ADD", config))
			r := b.records()[0]
			b.pod.IP("link", "set", "net1", "down", "name", fmt.Sprintf("rail%011x", r.Created.UnixNano()&0xfffffffffff))
			forge(t, b, func(r *ledger.Record) { r.Phase, r.MAC = ledger.Lending, "" })
			b.node.MustRun(b.call(verb, config))
			b.node.MustRun(b.call("DEL", config))
			b.untouched(before)
			if d := b.pod.Settled(pod); d != "" {
				t.Errorf("the pod is not as it was:\n%s", d)
			}
		})
	}
}

// Kernels before 5.14 identify namespaces by inode number only, and reuse that
// of a dead pod's for the next one.
func TestMacvlanOfThePodThatHasTheInodeNumberOfADeadOneStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.macvlanConfig(nil)
	b.node.MustRun(b.call("ADD", config))
	forge(t, b, func(r *ledger.Record) {
		r.Netns.Cookie, r.Netns.Path, r.MAC = 0, "/run/netns/gone", "02:00:00:00:00:99"
	})
	b.node.MustRun(b.call("DEL", config))
	if _, err := link.ByName(b.pod.Netns, "net1"); err != nil {
		t.Errorf("the macvlan of the pod that lives: %v", err)
	}
}

func TestMacvlanPodsOfOneNICReachEachOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other := testnet.NewNetns(t, "pod2")
	config := b.macvlanConfig(map[string]any{"ipam": localIPAM("192.168.111.0/24")})
	c := b.call("ADD", config)
	b.node.MustRun(c)
	c.ContainerID, c.Netns = "c2", "/run/netns/"+other.Name
	b.node.MustRun(c)
	b.pod.Exec("ping", "-c", "1", "-W", "5", "-M", "do", "-s", "8972", "192.168.111.2")
}

// TestMacvlanOnAMacvlanEnds has a host whose own address is on a macvlan ("shim"), and a network
// whose master is that macvlan. If the master is a macvlan, the kernel makes the new macvlan on the
// NIC below.
func TestMacvlanOnAMacvlanEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		more  map[string]any
		kind  string // of the master, macvlan if empty
		inPod bool
	}{
		"by name":              {more: map[string]any{"master": "shim"}},
		"on a macvtap":         {more: map[string]any{"master": "shim"}, kind: "macvtap"},
		"by the default route": {more: map[string]any{"master": nil}},
		"in the pod":           {more: map[string]any{"master": "shim", "linkInContainer": true}, inPod: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			at := b.node
			b.node.IP("link", "add", "link", nicName, "name", "shim", "type", cmp.Or(c.kind, "macvlan"), "mode", "bridge")
			if c.inPod {
				at = b.pod
				b.node.IP("link", "set", "shim", "netns", b.pod.Name)
			}
			at.IP("link", "set", "shim", "up")
			at.IP("addr", "add", "10.3.0.1/24", "dev", "shim")
			at.IP("route", "add", "default", "via", "10.3.0.254")
			config := b.macvlanConfig(merged(c.more, map[string]any{"ipam": localIPAM("10.77.0.8/30")}))
			b.node.MustRun(b.call("ADD", config))
			b.node.MustRun(b.call("DEL", config))
			if b.pod.Has("net1") || len(b.held()) > 0 {
				t.Errorf("it is left: %v, addresses %v", b.pod.Has("net1"), b.held())
			}
		})
	}
}

func TestMACThatAnotherPodHasIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other := *b
	other.pod = testnet.NewNetns(t, "other")
	const mac = "02:00:00:00:00:77"
	config := b.macvlanConfig(map[string]any{"mac": mac, "ipam": localIPAM("10.77.0.0/24")})
	b.node.MustRun(b.call("ADD", config))
	before := b.held()
	call := other.call("ADD", config)
	call.ContainerID = "c2"
	_, err := b.node.Run(call)
	var refused *types.Error
	if !errors.As(err, &refused) || refused.Code != types.ErrInvalidNetworkConfig || !strings.Contains(refused.Msg, mac) {
		t.Errorf("the second: %v", err)
	}
	if held := b.held(); len(held) != len(before) || other.pod.Has("net1") {
		t.Errorf("addresses %v are held, and the second has an interface: %v", held, other.pod.Has("net1"))
	}
}

// The kernel's reason for an MTU below the minimum says nothing of the key.
func TestMacvlanWithAnMTUBelowTheMinimum(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	_, err := b.node.Run(b.call("ADD", b.macvlanConfig(map[string]any{"mtu": 67})))
	fails(t, err, cnierr.InvalidConfig, "MTU 67", `"mtu" to at least 68`)
	b.untouched(before)
}
