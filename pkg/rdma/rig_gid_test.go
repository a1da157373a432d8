//go:build rig

package rdma

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

func TestRigGIDsOfAPodsNICInSharedMode(t *testing.T) {
	r := inRig(t, Shared)
	ns, pod := r.pod("pod")
	d := r.devs[3]
	l := r.netdev(r.ns, d)
	must(t, link.Move(r.ns, l.Index, ns, "net1", ""))
	in := r.netdev(ns, d)
	must(t, link.SetUp(ns, in.Index))
	before, err := r.host.GIDs(d, 1)
	must(t, err)
	var took []time.Duration
	for _, a := range []string{"10.0.0.1/24", "10.0.1.1/24", "fd00:10::1/64"} {
		must(t, link.AddAddress(ns, in.Index, address(a)))
		ip := netip.MustParsePrefix(a).Addr()
		began := time.Now()
		e, err := r.host.AwaitGID(r.soon(), d, 1, ip, "net1")
		must(t, err)
		took = append(took, time.Since(began))
		if got := gidsOf(t, d, ibaddr.GIDOf(ip)); !slices.Equal(got, []int{e.Index}) {
			t.Errorf("%s: %+v, sysfs has it at %v", a, e, got)
		}
		inPod, err := pod.FindGID(d, 1, ip, "net1")
		if err != nil || inPod != e {
			t.Errorf("%s: the pod sees %+v, the host %+v; %v", a, inPod, e, err)
		}
	}
	after, err := r.host.GIDs(d, 1)
	must(t, err)
	if used := len(after.Entries) - len(before.Entries); used < 6 || after.Free() != after.Size-len(after.Entries) {
		t.Errorf("three addresses took %d entries: %+v", used, after)
	}
	t.Logf("waits for a GID, %s; table of %d, %d free", figures(took), after.Size, after.Free())
	r.giveBack(ns, d, l.Name)
}

// giveBack returns a netdev to the host.
func (r *rig) giveBack(ns *netns.Netns, d Device, name string) {
	r.t.Helper()
	must(r.t, link.Move(ns, r.netdev(ns, d).Index, r.ns, name, ""))
	must(r.t, link.SetUp(r.ns, r.netdev(r.ns, d).Index))
}

func TestRigGIDsOfMacvlansAreOnTheMastersPort(t *testing.T) {
	r := inRig(t, Shared)
	d := r.devs[4]
	master := r.netdev(r.ns, d)
	child := func(ns *netns.Netns, ip string) {
		must(t, link.CreateMacvlan(r.ns, ns, link.Macvlan{Master: master.Index, Name: "net1", Mode: "bridge"}))
		l, err := link.ByName(ns, "net1")
		must(t, err)
		must(t, link.AddAddress(ns, l.Index, address(ip+"/24")))
		must(t, link.SetUp(ns, l.Index))
	}
	indexes := map[int]bool{}
	var pods []func()
	var took []time.Duration
	for _, ip := range []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"} {
		ns, pod := r.pod("pod")
		pods = append(pods, ns.Close, pod.Close)
		child(ns, ip)
		began := time.Now()
		e, err := r.host.AwaitGID(r.soon(), d, 1, netip.MustParseAddr(ip), "net1")
		must(t, err)
		took = append(took, time.Since(began))
		if got := gidsOf(t, d, e.GID); !slices.Equal(got, []int{e.Index}) || e.Netdev != "net1" || indexes[e.Index] {
			t.Errorf("%s: %+v, sysfs has it at %v", ip, e, got)
		}
		indexes[e.Index] = true
	}
	t.Logf("waits for the GID of a macvlan, %s", figures(took))

	// Two pods have the same address, each on an interface net1, so the owner of the GID is
	// unknown.
	ns := newNetns(t, "pod")
	child(ns, "10.1.0.1")
	err := await(r.soon(), func() (bool, error) {
		_, err := r.host.FindGID(d, 1, netip.MustParseAddr("10.1.0.1"), "net1")
		return err != nil && strings.Contains(err.Error(), "two interfaces"), nil
	})
	if err != nil {
		t.Errorf("one address twice was not noticed: %v", err)
	}
	ns.Close()
	for _, end := range pods {
		end()
	}
	err = await(r.soon(), func() (bool, error) {
		_, err := r.host.FindGID(d, 1, netip.MustParseAddr("10.1.0.2"), "net1")
		return errors.Is(err, errNoGID), nil
	})
	if err != nil {
		t.Errorf("the GID of a pod that is gone stays: %v", err)
	}
}

func TestRigAGIDThatDoesNotComeIsExplained(t *testing.T) {
	r := inRig(t, Shared)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := r.host.AwaitGID(ctx, r.devs[0], 1, netip.MustParseAddr("10.9.9.9"), "net1")
	if !errors.Is(err, errNoGID) || !strings.Contains(err.Error(), `has no RoCE v2 GID for the address 10.9.9.9 of "net1"`) {
		t.Errorf("%v", err)
	}
}

// In exclusive mode the host cannot see the table at all, but the pod's sysfs shows it.
func TestRigGIDsOfAPodsNICInExclusiveMode(t *testing.T) {
	r := inRig(t, Exclusive)
	ns, pod := r.pod("pod")
	d := r.devs[6]
	l := r.netdev(r.ns, d)
	r.move(r.host, d, pod)
	must(t, link.Move(r.ns, l.Index, ns, "net1", ""))
	in := r.netdev(ns, d)
	must(t, link.AddAddress(ns, in.Index, address("10.2.0.1/24")))
	must(t, link.SetUp(ns, in.Index))
	e, err := pod.AwaitGID(r.soon(), d, 1, netip.MustParseAddr("10.2.0.1"), "net1")
	must(t, err)
	if e.Type != ibaddr.RoCEv2 || e.GID.String() != "0000:0000:0000:0000:0000:ffff:0a02:0001" {
		t.Errorf("%+v", e)
	}
	if table, err := r.host.GIDs(d, 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("the host reads %+v, %v", table, err)
	}
	r.move(pod, d, r.host)
	r.giveBack(ns, d, l.Name)
	r.checkDevice(d)
}
