package link_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/without"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// On most machines the links of the machine itself include NICs.
func TestParentsInSysfsAreThoseOfRtnetlink(t *testing.T) {
	n := testnet.Current(t)
	links, err := link.Links(n.Netns)
	if err != nil {
		t.Fatal(err)
	}
	if !link.ReportsParents(n.Netns) {
		t.Fatal("this kernel does not report the parents of links")
	}
	link.ParentsInSysfs(t)
	for _, l := range links {
		again := *l
		if err := link.AddParents(n.Netns, &again); err != nil {
			t.Fatal(err)
		}
		if again.ParentDev != l.ParentDev || again.ParentBus != l.ParentBus {
			t.Errorf("%s: parent %s %s by rtnetlink, %s %s by sysfs", l.Describe(), l.ParentBus, l.ParentDev, again.ParentBus, again.ParentDev)
		}
		if l.HasParent() {
			t.Logf("%s: parent %s %s", l.Describe(), l.ParentBus, l.ParentDev)
		}
	}
}

// Sysfs is read for none of these links. If they looked like NICs, it would be read for each.
func TestLinksOfAPodHaveNoParent(t *testing.T) {
	n := testnet.NewNetns(t, "pod")
	const pairs = 200
	var commands []string
	for i := range pairs {
		commands = append(commands, fmt.Sprintf("link add d%d type veth peer name e%d", i, i))
	}
	for i, name := range []string{"...", "..a", "device", `a\b`} {
		commands = append(commands, fmt.Sprintf("link set d%d name %s", i, name))
	}
	n.Batch(nil, commands...)
	link.ParentsInSysfs(t)
	links, err := link.Links(n.Netns)
	if err != nil || len(links) != 2*pairs+1 {
		t.Fatalf("%d links, %v", len(links), err)
	}
	for _, like := range []string{"veth", "device"} {
		for _, l := range links {
			l.Kind = like
		}
		began := time.Now()
		if err := link.AddParents(n.Netns, links...); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d links of kind %s in %v", len(links), like, time.Since(began))
		for _, l := range links {
			if l.HasParent() || l.Damage != nil {
				t.Errorf("%s has parent %s, %v", l.Describe(), l.ParentDev, l.Damage)
			}
		}
	}
}

// likeNIC returns a pod's end of a veth that looks like a NIC if the parents come from sysfs.
func likeNIC(t *testing.T) (*testnet.Netns, *link.Link) {
	t.Helper()
	n := testnet.NewNetns(t, "pod")
	n.IP("link", "add", "name", "a", "type", "veth", "peer", "name", "b")
	link.ParentsInSysfs(t)
	a, err := link.ByName(n.Netns, "a")
	if err != nil {
		t.Fatal(err)
	}
	a.Kind = "device"
	return n, a
}

// To the code, a link without a kind may be a NIC, whatever name a pod has given it.
func TestParentIsThatOfTheLinkWithTheIndex(t *testing.T) {
	n, a := likeNIC(t)
	for _, name := range []string{"b", "x", "", ".", "..", "../../devices", "a/..", "bonding_masters", strings.Repeat("x", 5000), "lo"} {
		renamed := *a
		renamed.Name = name
		if err := link.AddParents(n.Netns, &renamed); err != nil || renamed.HasParent() || renamed.Damage != nil {
			t.Errorf("%q: %+v, %v", name, renamed, err)
		}
	}
	gone := *a
	gone.Index = 1 << 20
	if err := link.AddParents(n.Netns, &gone); err != nil || gone.HasParent() {
		t.Errorf("of a link that is gone: %+v, %v", gone, err)
	}
}

// With such a kernel nothing is lent, but the loans of an earlier version must still end.
func TestLinksAreReadWhereNoSysfsCanBeMounted(t *testing.T) {
	n, a := likeNIC(t)
	var err error
	without.Fsopen(t, func() { err = link.AddParents(n.Netns, a) })
	if err != nil || a.HasParent() || a.Damage != nil {
		t.Errorf("%+v, %v", a, err)
	}
}
