package main

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/block"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/report"
)

// blockLab has the nodes of a network with blocks.
type blockLab struct {
	*ipamLab
	pods int // so far
}

func (l *blockLab) client() *kube.Client {
	l.t.Helper()
	client, err := kube.Open(kube.Config{Kubeconfig: l.plane.AdminKubeconfig(), Namespace: l.ns, RetryFor: block.RetryFor})
	if err != nil {
		l.t.Fatal(err)
	}
	return client
}

// node makes a node that assigns addresses of blocks of 4 to new pods, and publishes them as
// the node's rail-agent does.
func (l *blockLab) node(name string, pool ipam.Claim, addrs ...string) {
	l.t.Helper()
	state := l.t.TempDir()
	s, err := block.New(block.Options{Client: l.client(), Kubeconfig: l.plane.AdminKubeconfig(), StateDir: state, Node: name, Size: 4})
	if err != nil {
		l.t.Fatal(err)
	}
	defer s.Close()
	for _, addr := range addrs {
		pool.Want = netip.MustParseAddr(addr)
		if _, err := s.Allocate(pooltest.Context(l.t), pooltest.Pod(l.pods), []ipam.Claim{pool}); err != nil {
			l.t.Fatal(err)
		}
		l.pods++
	}
	k := &block.Keeper{
		StateDirs: []string{state}, Log: slog.New(slog.DiscardHandler),
		Open: func(string, string) (*kube.Client, error) { return l.client(), nil },
	}
	if err := k.Pass(pooltest.Context(l.t)); err != nil {
		l.t.Fatal(err)
	}
}

// onBlock calls do with the name and the state of the block of an address.
func (l *blockLab) onBlock(pool ipam.Claim, prefix string, do func(ctx context.Context, client *kube.Client, name string, was api.Block) (bool, error)) {
	l.t.Helper()
	name := api.BlockName(pool.Pool, netip.MustParsePrefix(prefix))
	client, ctx := l.client(), pooltest.Context(l.t)
	p, err := api.ReadBlock(ctx, client, name)
	if err != nil {
		l.t.Fatal(err)
	}
	if ok, err := do(ctx, client, name, *p.Block); err != nil || !ok {
		l.t.Fatal(ok, err)
	}
}

func (l *blockLab) clusterNode(name string) {
	l.t.Helper()
	l.create("/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": name}})
	l.t.Cleanup(func() {
		if _, _, err := l.plane.Admin().Delete(context.Background(), "/api/v1/nodes/"+name); err != nil {
			l.t.Error(err)
		}
	})
}

func testIPAMBlocks(il *ipamLab) {
	l := &blockLab{ipamLab: il}
	l.macvlan("rail", `"range":"10.0.0.0/26","block_size":4`)
	pool := pooltest.Claim(l.t, "", "10.0.0.0/26")
	l.node("node1", pool, "10.0.0.4", "10.0.0.5", "10.0.0.36")
	l.node("node2", pool, "10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11")
	l.node("node3", pool, "10.0.0.16")
	l.onBlock(pool, "10.0.0.16/30", api.FreeBlock)
	l.onBlock(pool, "10.0.0.36/30", func(ctx context.Context, client *kube.Client, name string, was api.Block) (bool, error) {
		return api.RevokeBlock(ctx, client, name, was, "mark")
	})
	l.shows()
	l.explains()
	l.checks()
}

func (l *blockLab) shows() {
	l.t.Helper()
	const divided = `divided into blocks, with the addresses that the nodes' rail-agents have published:
POOL         RANGE        BLOCKSIZE  BLOCKS  CLAIMED  FREED  USED  NETWORKS        PROBLEMS
10.0.0.0-26  10.0.0.0/26  4          16      3        1      7     ns-blocks/rail  block 10.0.0.36/30: revoked: the Node is gone, or was rebooted and has not taken the block again
`
	l.prints(divided, "show")
	l.pool("10.9.0.0-24", "10.9.0.0/24", map[string]string{"1": "a"})
	l.prints(`POOL         RANGE        USED  FREE  SIZE  NETWORKS  PROBLEMS
10.9.0.0-24  10.9.0.0/24  1     253   254   -         -

`+divided, "show")
	l.prints(`pool 10.0.0.0-26, blocks of 4 addresses; the holders of addresses are as the nodes' rail-agents have published them
BLOCK         NODE   STATE    USED  PROBLEM
10.0.0.4/30   node1  claimed  2     -
10.0.0.8/30   node2  claimed  4     -
10.0.0.16/30  -      free     0     -
10.0.0.36/30  node1  claimed  1     revoked: the Node is gone, or was rebooted and has not taken the block again

ADDRESS    NODE   POD            IFNAME  CONTAINER     PROBLEM
10.0.0.4   node1  default/pod-0  net1    000000000000  -
10.0.0.5   node1  default/pod-1  net1    000000000000  -
10.0.0.8   node2  default/pod-3  net1    000000000000  -
10.0.0.9   node2  default/pod-4  net1    000000000000  -
10.0.0.10  node2  default/pod-5  net1    000000000000  -
10.0.0.11  node2  default/pod-6  net1    000000000000  -
10.0.0.36  node1  default/pod-2  net1    000000000000  -
`, "show", "10.0.0.0/26")
	out, errOut, code := l.railctl("show", "10.0.0.0-26", "-o", "json")
	views := listed[report.Pool](l.t, out)
	if code != 0 || len(views) != 1 || views[0].Used != 7 || len(views[0].Holders) != 7 || len(views[0].Divided.Blocks) != 4 || !views[0].Divided.Blocks[3].Revoked {
		l.t.Errorf("%d: %s%s", code, out, errOut)
	}
	_, errOut, code = l.railctl("show", "rail-cni-block-10.0.0.4-30")
	if code != 1 {
		l.t.Errorf("a block is a pool: exit code %d", code)
	}
	contains(l.t, "stderr", errOut, `no pool "rail-cni-block-10.0.0.4-30"`)
}

func (l *blockLab) explains() {
	l.t.Helper()
	_, errOut, code := l.railctl("explain", l.ns+"/rail")
	if code != 1 {
		l.t.Errorf("without --node: exit code %d", code)
	}
	contains(l.t, "without --node", errOut, "network ns-blocks/rail gives each node blocks of its range; name a node with --node")
	l.prints(`network ns-blocks/rail, pool 10.0.0.0-26: from 10.0.0.1 to 10.0.0.62
  node node1 holds these blocks of 4 addresses; the numbers of used addresses are as its rail-agent has published them
    10.0.0.4/30: 2 used
    10.0.0.36/30: 1 used, revoked: the Node is gone, or was rebooted and has not taken the block again
  10.0.0.4: held by default/pod-0
  10.0.0.5: held by default/pod-1
  10.0.0.6: free, comes next
`, "explain", l.ns+"/rail", "--node", "node1")
	l.prints(`network ns-blocks/rail, pool 10.0.0.0-26: from 10.0.0.1 to 10.0.0.62
  node node2 holds these blocks of 4 addresses; the numbers of used addresses are as its rail-agent has published them
    10.0.0.8/30: 4 used
  10.0.0.8: held by default/pod-3
  10.0.0.9: held by default/pod-4
  10.0.0.10: held by default/pod-5
  10.0.0.11: held by default/pod-6
  the next ADD claims a block of 4 addresses
`, "explain", l.ns+"/rail", "--node", "node2")
	l.prints(`network ns-blocks/rail, pool 10.0.0.0-26: from 10.0.0.1 to 10.0.0.62
  node node3 holds no block
  the next ADD claims a block of 4 addresses
`, "explain", l.ns+"/rail", "--node", "node3")
	l.macvlan("plain", `"range":"10.0.0.0/26"`)
	out, errOut, code := l.railctl("explain", l.ns+"/plain")
	equal(l.t, "explain without block_size", out, "network ns-blocks/plain, pool 10.0.0.0-26: from 10.0.0.1 to 10.0.0.62\n")
	contains(l.t, "stderr", errOut, "IPPool 10.0.0.0-26 is divided into blocks of 4 addresses")
	if code != 1 {
		l.t.Errorf("exit code %d", code)
	}
}

func (l *blockLab) checks() {
	l.t.Helper()
	for _, name := range []string{"node1", "node2", "node3"} {
		l.clusterNode(name)
	}
	l.macvlan("few", `"range":"10.1.0.0/29","block_size":4`)
	l.macvlan("large", `"range":"10.2.0.0/16","block_size":16`)
	l.macvlan("other", `"range":"10.0.0.0/25","block_size":8`)
	l.macvlan("entries", `"range":"10.9.0.0/24","block_size":16`)
	out, errOut, code := l.railctl("check")
	equal(l.t, "check", squeezed(out), strings.Join([]string{
		"LEVEL NETWORK WHAT CURE",
		"error ns-blocks/entries the network has block_size, and IPPool 10.9.0.0-24 (used: 1) belongs to networks without block_size: the network's pods get no address end the pods of those networks and delete the IPPool, or give this network another range or network_name",
		"error ns-blocks/few 3 nodes and 2 blocks of 4 addresses in 10.1.0.0/29: not every node can have a block make block_size smaller or the range larger",
		"error ns-blocks/other 10.0.0.0/25 (block_size 8) overlaps 10.0.0.0/26 of network ns-blocks/plain (no block_size): one address may be assigned twice give both the same block_size, or set network_name if they are different networks",
		"error ns-blocks/other 10.0.0.0/25 (block_size 8) overlaps 10.0.0.0/26 of network ns-blocks/rail (block_size 4): one address may be assigned twice give both the same block_size, or set network_name if they are different networks",
		"error ns-blocks/plain the network has no block_size, and IPPool 10.0.0.0-26 is divided into blocks of 4 addresses: the network's pods get no address give all networks of this range the same block_size, or give this network another range or network_name",
	}, "\n"))
	contains(l.t, "stderr", errOut, "5 errors")
	if code != 1 {
		l.t.Errorf("exit code %d", code)
	}
}

// prints runs a command, which must not fail, and compares its output with want.
func (l *blockLab) prints(want string, args ...string) {
	l.t.Helper()
	out, errOut, code := l.railctl(args...)
	equal(l.t, strings.Join(args, " "), out, want)
	if code != 0 || errOut != "" {
		l.t.Errorf("%v: exit code %d, stderr %q", args, code, errOut)
	}
}
