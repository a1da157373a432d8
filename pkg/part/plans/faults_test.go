package plans_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/part/plans"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// steps has all steps of an ADD with IPAM, in order. The test below fails if the
// transaction has other steps. The step of a part fails after the part was applied.
// The inner steps of a part fail before their work is done.
var steps = map[string][]string{
	"host-device": {
		"name", "claim", "record", "confirm", "ipam", "rdma", "mtu", "netdev", "addresses", "routing",
		"sysctl", "address", "up", "link", "route", "dad", "interface", "ports", "gids", "devinfo", "close",
	},
	"macvlan": {
		"name", "claim", "record", "confirm", "ipam", "mtu", "macvlan", "addresses", "rdma", "routing",
		"sysctl", "address", "up", "link", "route", "dad", "interface", "ports", "gids", "devinfo", "close",
	},
}

func TestAddThatFailsAtAnyStepLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		seen := stepsOf(t, plugin, "")
		if fmt.Sprint(seen) != fmt.Sprint(steps[plugin]) {
			t.Errorf("%s has the steps %v, the test knows %v", plugin, seen, steps[plugin])
		}
		for _, step := range steps[plugin] {
			t.Run(plugin+"/"+step, func(t *testing.T) {
				t.Parallel()
				stepsOf(t, plugin, step)
			})
		}
	}
}

// stepsOf makes an ADD that fails at the step named bad, checks that nothing is
// left, and returns the steps that it reached.
func stepsOf(t *testing.T, plugin, bad string) (seen []string) {
	b := newBench(t)
	b.furnish()
	before, pod := b.node.State(), b.pod.State()
	n := b.open()
	injected := errors.New("injected")
	n.Fault = func(step string) error {
		seen = append(seen, step)
		if step == bad {
			return injected
		}
		return nil
	}
	more := map[string]any{"ipam": localIPAM("fd31::/64"), "mtu": 4000, "routing": source(1001), "arp": "own"}
	var p *attachment.Plan
	var common *netconf.Common
	switch plugin {
	case "macvlan":
		conf, err := netconf.ParseMacvlan([]byte(b.macvlanConfig(more)), netconf.Args{})
		if err != nil {
			t.Fatal(err)
		}
		p, common = plans.MacvlanPlan(conf), &conf.Common
	default:
		conf, err := netconf.ParseHostDevice([]byte(b.config(more)))
		if err != nil {
			t.Fatal(err)
		}
		p, common = plans.HostDevicePlan(conf), &conf.Common
	}
	call := &attachment.Call{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/" + b.pod.Name,
		Path: testnet.Bin(t) + ":" + testnet.Peers(t), Conf: common,
	}
	_, err := n.Add(context.Background(), call, p)
	if bad != "" {
		if !errors.Is(err, injected) {
			t.Fatalf("step %s failed, ADD says: %v", bad, err)
		}
		b.untouched(before)
		if d := b.pod.Settled(pod); d != "" {
			t.Errorf("the pod is not as it was:\n%s", d)
		}
		return seen
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Del(context.Background(), call, p); err != nil {
		t.Fatal(err)
	}
	b.untouched(before)
	return seen
}

func TestAddThatFailsForARealReasonLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*bench)
		more    map[string]any
		code    uint
		text    string
	}{
		"IPAM plugin missing": {nil, map[string]any{"ipam": map[string]any{"type": "nowhere"}}, cnierr.IPAM, `"nowhere"`},
		"IPAM plugin is a path": {
			nil, map[string]any{"ipam": map[string]any{"type": "../../../bin/sh"}}, cnierr.IPAM, "not a plugin's name",
		},
		"IPAM gives nothing": {nil, map[string]any{"ipam": map[string]any{"type": "whereabouts"}}, cnierr.IPAM, "returned missing IP config"},
		"IPAM has no address left": {
			nil,
			map[string]any{"ipam": map[string]any{"type": "whereabouts", "range": "10.1.1.0/30", "exclude": []string{"10.1.1.0/30"}}},
			cnierr.IPAM, "Could not allocate IP in range",
		},
		"name taken in the pod": {
			func(b *bench) { b.pod.IP("link", "add", "net1", "type", "ifb") }, nil, cnierr.NameTaken, `already has an interface "net1"`,
		},
		"name is an altname in the pod": {
			func(b *bench) { b.pod.IP("link", "property", "add", "dev", "lo", "altname", "net1") }, nil, cnierr.NameTaken, `"net1"`,
		},
		"altname taken in the pod": {
			func(b *bench) { b.pod.IP("link", "add", "enp4s0np0", "type", "ifb") }, nil, cnierr.NameTaken, `"enp4s0np0"`,
		},
		"MTU refused": {nil, map[string]any{"mtu": 70000}, cnierr.InvalidConfig, "does not accept MTU 70000"},
		"route refused": {
			nil, map[string]any{"ipam": map[string]any{
				"type": "static", "addresses": []map[string]any{{"address": "10.1.1.2/24"}},
				"routes": []map[string]any{{"dst": "10.0.0.0/8", "gw": "192.0.2.1"}},
			}}, cnierr.Kernel, "192.0.2.1",
		},
		"address duplicate": {
			func(b *bench) {
				b.wire.IP("addr", "add", "fd77::2/64", "dev", nicName+"-sw", "nodad")
				b.pod.Sysctl("ipv6/conf/default/accept_dad", "1")
			},
			map[string]any{"ipam": map[string]any{"type": "static", "addresses": []map[string]any{{"address": "fd77::2/64"}}}},
			cnierr.Kernel, "another host on the link uses fd77::2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.furnish()
			if c.prepare != nil {
				c.prepare(b)
			}
			before, pod := b.node.State(), b.pod.State()
			config := b.config(c.more)
			_, err := b.node.Run(b.call("ADD", config))
			fails(t, err, c.code, c.text)
			b.untouched(before)
			if d := b.pod.Settled(pod); d != "" {
				t.Errorf("the pod is not as it was:\n%s", d)
			}
			// The runtime calls DEL after a failed ADD: it must do no harm.
			b.node.MustRun(b.call("DEL", config))
			b.untouched(before)
			if d := b.pod.Settled(pod); d != "" {
				t.Errorf("DEL after a failed ADD changed the pod:\n%s", d)
			}
		})
	}
}

func TestDADIsAwaitedForEveryAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.pod.Sysctl("ipv6/conf/default/accept_dad", "1")
	config := b.config(map[string]any{"ipam": map[string]any{"type": "static", "addresses": []map[string]any{
		{"address": "fd77::2/64"}, {"address": "fd78::2/64"}, {"address": "10.7.7.2/24"},
	}}})
	b.node.MustRun(b.call("ADD", config))
	if text := b.pod.IP("-6", "addr", "show", "net1", "scope", "global", "tentative"); text != "" {
		t.Errorf("ADD ended with tentative addresses:\n%s", text)
	}
	b.node.MustRun(b.call("DEL", config))
}

func TestStateDirectoryThatCannotBeWrittenRefusesTheLoan(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"read-only", "full"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.furnish()
			before := b.node.State()
			if err := os.MkdirAll(b.state, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", b.state, "tmpfs", 0, "mode=0700"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(b.state, unix.MNT_DETACH) })
			for _, d := range []string{"attachments", "nics", "locks"} {
				if err := os.Mkdir(filepath.Join(b.state, d), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			switch name {
			case "read-only":
				if err := unix.Mount("", b.state, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
					t.Fatal(err)
				}
			case "full":
				if err := unix.Mount("", b.state, "", unix.MS_REMOUNT, "size=8k"); err != nil {
					t.Fatal(err)
				}
				fill(t, filepath.Join(b.state, "ballast"))
			}
			_, err := b.node.Run(b.call("ADD", b.config(nil)))
			fails(t, err, cnierr.IO, b.state)
			if d := b.node.Settled(before); d != "" {
				t.Errorf("the host is not as it was:\n%s", d)
			}
		})
	}
}

// fill writes until the file system has no room left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

func TestAddIntoTheHostsOwnNetnsIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	c := b.call("ADD", b.config(nil))
	c.Netns = "/run/netns/" + b.node.Name
	_, err := b.node.Run(c)
	fails(t, err, cnierr.InvalidNetns, "own netns")
	b.untouched(before)
}

func TestAddWhoseContextEndsGivesBackWhatItHas(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	dir := t.TempDir()
	// An IPAM plugin that hangs on ADD, and answers DEL.
	writeExecutable(t, dir+"/slow", "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] && exec sleep 30\ntouch \""+dir+"/freed\"\n")
	n := b.open()
	conf, err := netconf.ParseHostDevice([]byte(b.config(map[string]any{"ipam": map[string]any{"type": "slow"}})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err = n.Add(ctx, &attachment.Call{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/" + b.pod.Name, Path: dir, Conf: &conf.Common,
	}, plans.HostDevicePlan(conf))
	fails(t, err, cnierr.IPAM, "slow")
	b.untouched(before)
	if _, err := os.Stat(dir + "/freed"); err != nil {
		t.Error("IPAM DEL was not called")
	}
}

// TestMacvlanOnANICThatIsBeingLentIsRefused makes the macvlan while the ADD that
// lends its master waits for an address.
func TestMacvlanOnANICThatIsBeingLentIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	n := b.open()
	other := b.call("ADD", b.macvlanConfig(nil))
	other.ContainerID, other.Netns = "c2", "/run/netns/"+testnet.NewNetns(t, "pod2").Name
	n.Fault = func(step string) error {
		if step == "confirm" {
			_, err := b.node.Run(other)
			fails(t, err, cnierr.NICLent, "is lent to container c1")
		}
		return nil
	}
	conf, err := netconf.ParseHostDevice([]byte(b.config(nil)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.Add(context.Background(), &attachment.Call{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/" + b.pod.Name, Path: testnet.Bin(t), Conf: &conf.Common,
	}, plans.HostDevicePlan(conf))
	if err != nil {
		t.Fatal(err)
	}
	b.node.MustRun(b.call("DEL", b.config(nil)))
	b.untouched(before)
}

func TestAddWhoseResultNobodyCanReadLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		b := newBench(t)
		b.furnish()
		before := b.node.State()
		call, p := b.inProcess(plugin, nil)
		call.Conf.CNIVersion = "99.0.0"
		if _, err := b.open().Add(context.Background(), call, p); err == nil {
			t.Errorf("%s: a result of version %s was made", plugin, call.Conf.CNIVersion)
		}
		b.untouched(before)
	}
}
