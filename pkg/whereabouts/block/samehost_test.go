package block

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// onRail returns the claim of an address on a rail of a node that has these rails.
func onRail(t *testing.T, space string, rail int, rails ...int) ipam.Claim {
	t.Helper()
	c := pooltest.Claim(t, space, fmt.Sprintf("10.%d.0.0/24", rail))
	for _, i := range rails {
		c.SameHost = append(c.SameHost, netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", i)))
	}
	return c
}

// railPod returns the interface of a pod on a rail.
func railPod(pod, rail int) ipam.Owner {
	o := pooltest.Pod(pod)
	o.IfName = fmt.Sprint("net", rail)
	return o
}

// addRails adds a pod on the rails, and returns its host part.
func (n *node) addRails(space string, pod int, rails ...int) int {
	n.t.Helper()
	host := -1
	for _, rail := range rails {
		b := n.add(railPod(pod, rail), onRail(n.t, space, rail, rails...)).As4()
		if host < 0 {
			host = int(b[3])
		}
		if int(b[1]) != rail || int(b[3]) != host {
			n.t.Errorf("pod %d on rail %d has %v, and the host part %d elsewhere", pod, rail, b, host)
		}
	}
	return host
}

var eightRails = []int{0, 1, 2, 3, 4, 5, 6, 7}

func TestPodWithEightRailsMakesOneRequestForABlock(t *testing.T) {
	n := newNode(t, "node1")
	writes := func(do func()) (reads, writes int) {
		t.Helper()
		began := time.Now()
		do()
		for _, r := range pooltest.RequestsSince(t, plane, began) {
			if r.Verb == "get" || r.Verb == "list" {
				reads++
			} else {
				writes++
			}
		}
		return reads, writes
	}
	if _, got := writes(func() { n.addRails("wide", 0, eightRails...) }); got != 10 {
		t.Errorf("the cluster's first pod: %d writes, want 9 guards and a block", got)
	}
	if reads, got := writes(func() { n.addRails("wide", 1, eightRails...) }); reads+got != 0 {
		t.Errorf("a pod of a held block: %d reads, %d writes", reads, got)
	}
	other := newNode(t, "node2")
	if _, got := writes(func() { other.addRails("wide", 9, eightRails...) }); got != 1 {
		t.Errorf("the first pod of another node: %d writes, want a block", got)
	}
	if _, got := writes(func() {
		for pod := 2; pod < 10; pod++ {
			n.addRails("wide", pod+10, eightRails...)
		}
	}); got > 3 {
		t.Errorf("8 pods with 8 rails: %d writes, want one for each block of %d", got, testSize)
	}
	for _, rail := range eightRails {
		c := onRail(t, "wide", rail, eightRails...)
		if held, err := n.Check(pooltest.Context(t), railPod(1, rail), []ipam.Pool{c.Pool}); err != nil || held[0].Bits() != 24 {
			t.Errorf("CHECK: %v, %v", held, err)
		}
		n.del(railPod(0, rail), c)
	}
	if err := n.Status(pooltest.Context(t), []ipam.Claim{onRail(t, "wide", 3, eightRails...)}); err != nil {
		t.Error(err)
	}
}

// The nodes of one cluster may have different rails. They must not hold the same blocks
// even then.
func TestNodesWithOtherRailsShareTheirHostParts(t *testing.T) {
	one, two := newNode(t, "node1"), newNode(t, "node2")
	seen := map[string]bool{}
	for pod := range 12 {
		n, rails := one, []int{0, 1, 2}
		if pod%2 == 1 {
			n, rails = two, []int{2, 3}
		}
		host := n.addRails("other", pod, rails...)
		for _, rail := range rails {
			text := fmt.Sprint(rail, " ", host)
			if seen[text] {
				t.Errorf("host part %d is given twice on rail %d", host, rail)
			}
			seen[text] = true
		}
	}
}

func TestPoolsOfRailsAreGuarded(t *testing.T) {
	n := newNode(t, "node1")
	plain := pooltest.Claim(t, "guards", "10.1.0.0/24")
	n.addRails("guards", 0, 0, 1)
	_, err := n.Allocate(pooltest.Context(t), pooltest.Pod(7), []ipam.Claim{plain})
	wantError(t, err, "a network without sameHost", "networks with sameHost")
	state, err := api.ReadPool(pooltest.Context(t), n.client, plain.Pool.Name())
	if err != nil || state.BlockSize != testSize || !state.SameHost || state.Guarded() == nil {
		t.Errorf("%+v, %v", state, err)
	}
	divided := pooltest.Claim(t, "guards", "10.2.0.0/24")
	n.add(pooltest.Pod(8), divided)
	_, err = n.Allocate(pooltest.Context(t), railPod(9, 2), []ipam.Claim{onRail(t, "guards", 2, 0, 1, 2)})
	wantError(t, err, "a network with sameHost", "networks without sameHost")
	if failure.KindOf(err) != failure.InvalidConfig {
		t.Errorf("kind %s", failure.KindOf(err))
	}
	// A versions that knows blocks, but not sameHost, finds a range that is none, and no size.
	data, err := n.client.Get(pooltest.Context(t), api.Pools(n.client.Namespace()), plain.Pool.Name())
	if err != nil || strings.Contains(string(data), "rail-cni/block-size") || !strings.Contains(string(data), "10.1.0.0/24 in blocks of 4 on all rails") {
		t.Errorf("%s, %v", data, err)
	}
}

func TestBlockOfHostPartsIsKeptWhileOneRailUsesIt(t *testing.T) {
	n := newNode(t, "node1")
	n.addRails("kept", 0, 0, 1, 2)
	c := onRail(t, "kept", 2, 0, 1, 2)
	hosts := ipam.Claim{Pool: ipam.HostPool(c.Pool)}
	block := n.blocks(hosts)[0]
	k := keeper(n)
	n.pass(k)
	published := onServer(t, hosts, block)
	if len(published.Entries) != 1 {
		t.Fatalf("published: %+v", published.Entries)
	}
	for _, e := range published.Entries {
		if e.PodRef != "default/pod-0" || e.IfName != "net0,net1,net2" {
			t.Errorf("published: %+v", e)
		}
	}
	for rail := range 2 {
		n.del(railPod(0, rail), onRail(t, "kept", rail, 0, 1, 2))
	}
	for range 3 {
		n.passed += returnAfter + time.Second
		n.pass(k)
	}
	if got := n.blocks(hosts); len(got) != 1 {
		t.Fatalf("the node has the blocks %s, and a pod an address of %s", got, block)
	}
	if held, err := n.Check(pooltest.Context(t), railPod(0, 2), []ipam.Pool{c.Pool}); err != nil || len(held) != 1 {
		t.Errorf("%v, %v", held, err)
	}
	n.del(railPod(0, 2), c)
	for range 2 {
		n.passed += returnAfter + time.Second
		n.pass(k)
	}
	if got := n.blocks(hosts); len(got) != 0 {
		t.Errorf("the node has the blocks %s, without an address", got)
	}
}

// A block whose host parts are taken on one rail only is full for a pod with all rails.
func TestHostPartsThatAreTakenOnOneRailMakeABlockFull(t *testing.T) {
	n := newNode(t, "node1")
	for pod := range 4 * testSize {
		rail := pod % 2
		n.add(railPod(pod, rail), onRail(t, "full", rail, 0, 1))
	}
	before := len(n.blocks(ipam.Claim{Pool: ipam.HostPool(onRail(t, "full", 0).Pool)}))
	for pod := range testSize {
		n.addRails("full", 100+pod, 0, 1)
	}
	if after := len(n.blocks(ipam.Claim{Pool: ipam.HostPool(onRail(t, "full", 0).Pool)})); after > before+2 {
		t.Errorf("%d blocks, and then %d", before, after)
	}
}

func TestHostPartsOfIPv6(t *testing.T) {
	n := newNode(t, "node1")
	var rails []netip.Prefix
	for rail := range 3 {
		rails = append(rails, netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", rail+1)))
	}
	for pod := range testSize {
		var first netip.Addr
		for rail, prefix := range rails {
			c := pooltest.Claim(t, "six", prefix.String())
			c.SameHost = rails
			got := n.add(railPod(pod, rail), c)
			if rail == 0 {
				first = got
			}
			if !prefix.Contains(got) || ipam.Move(got, rails[0]) != first {
				t.Errorf("pod %d has %s on rail %d, and %s on the first one", pod, got, rail, first)
			}
		}
	}
	if blocks := n.blocks(ipam.Claim{Pool: ipam.HostPool(ipam.Pool{Space: "six", Prefix: rails[0]})}); len(blocks) > 2 || !blocks[0].Addr().Is6() {
		t.Errorf("blocks %s", blocks)
	}
}

// Networks with other ranges of the same length share the blocks of host parts.
func TestNetworksWithSameHostNeedOneBlockSize(t *testing.T) {
	newNode(t, "node1").addRails("sizes", 0, 0, 1)
	larger := newNode(t, "node2")
	larger.size = 2 * testSize
	_, err := larger.Allocate(pooltest.Context(t), railPod(1, 7), []ipam.Claim{onRail(t, "sizes", 7, 6, 7)})
	wantError(t, err, "block_size 8", "divided into blocks of 4", "all networks of this network_name with sameHost and ranges of the length /24 the same block_size")
}
