package report

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// block returns a block of a pool that node holds, with the holders of its addresses by
// key. If node is "", the block is free.
func block(space, prefix, node string, holders map[string]string) *api.PoolState {
	p := netip.MustParsePrefix(prefix)
	b := &api.PoolState{
		Name: api.BlockName(ipam.Pool{Space: space}, p), Base: p.Addr(), Prefix: p,
		Block: &api.Block{}, Entries: map[string]api.Entry{},
	}
	if node != "" {
		b.Block.Holder = api.Holder{Node: node, Claim: "claim of " + node}
	}
	for key, pod := range holders {
		b.Entries[key] = api.Entry{PodRef: pod}
	}
	return b
}

// guard returns the IPPool of a pool that is divided into blocks of 4.
func guard(space, prefix string) *api.PoolState {
	pool := ipam.Pool{Space: space, Prefix: netip.MustParsePrefix(prefix)}
	return &api.PoolState{Name: pool.Name(), Base: pool.Prefix.Addr(), Prefix: pool.Prefix, BlockSize: 4}
}

func revoked(b *api.PoolState) *api.PoolState {
	b.Block.Revoked = "mark"
	return b
}

func TestDividedPoolsHaveTheBlocksOfTheirSpace(t *testing.T) {
	views, err := dividedPools(&api.Survey{
		Divided: []*api.PoolState{guard("", "10.0.0.0/24"), guard("fd00-1", "fd00:1::/120")},
		Blocks: []*api.PoolState{
			block("", "10.0.0.16/30", "", nil),
			block("", "10.0.0.4/30", "node1", map[string]string{"0": "ns/a", "2": "ns/b"}),
			block("", "10.0.0.32/28", "node1", map[string]string{"0": "ns/c", "99": "ns/d"}),
			block("blue", "10.0.0.4/30", "node9", nil),
			revoked(block("fd00-1", "fd00:1::8/126", "node2", map[string]string{"1": "ns/e"})),
		},
	})
	if err == nil || !strings.Contains(err.Error(), "1 block without the IPPool of the whole range, for example IPPool blue-rail-cni-block-10.0.0.4-30") {
		t.Errorf("the block of another space: %v", err)
	}
	var got []string
	for _, v := range views {
		d := v.Divided
		got = append(got, fmt.Sprint(v.Name, " ", v.Range, ": ", v.Used, " of ", v.Size, " used, ", v.Free, " free; ", d.InRange, " blocks of ", d.BlockSize, ", ", d.Claimed, " claimed, ", d.Freed, " freed"))
		for _, b := range d.Blocks {
			got = append(got, fmt.Sprint("block ", b.Range, " ", b.State, " ", b.Node, " ", b.Used, " ", b.Problem()))
		}
		for _, h := range v.Holders {
			got = append(got, fmt.Sprint(h.Address, " ", h.PodRef, " ", h.Block, " ", h.Node))
		}
		got = append(got, v.Problems...)
	}
	want := []string{
		"10.0.0.0-24 10.0.0.0/24: 4 of 254 used, 250 free; 64 blocks of 4, 2 claimed, 1 freed",
		"block 10.0.0.4/30 claimed node1 2 ",
		"block 10.0.0.16/30 free  0 ",
		"block 10.0.0.32/28 claimed node1 2 ",
		"10.0.0.4 ns/a 10.0.0.4/30 node1",
		"10.0.0.6 ns/b 10.0.0.4/30 node1",
		"10.0.0.32 ns/c 10.0.0.32/28 node1",
		"10.0.0.131 ns/d 10.0.0.32/28 node1",
		"block 10.0.0.32/28: 10.0.0.131 is not in its range",
		"block 10.0.0.32/28: it does not have 4 addresses",
		"fd00-1-fd00-1---120 fd00:1::/120: 1 of 254 used, 253 free; 64 blocks of 4, 1 claimed, 0 freed",
		"block fd00:1::8/126 claimed node2 1 revoked: the Node is gone, or was rebooted and has not taken the block again",
		"fd00:1::9 ns/e fd00:1::8/126 node2",
		"block fd00:1::8/126: revoked: the Node is gone, or was rebooted and has not taken the block again",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestExplainLooksIntoTheNodesBlocks(t *testing.T) {
	const keys = `"range":"10.0.0.0/28","block_size":4,"gateway":"10.0.0.5"`
	full := map[string]string{"0": "ns/d", "1": "ns/e", "2": "ns/f", "3": "ns/g"}
	mine := block("", "10.0.0.4/30", "node1", map[string]string{"0": "ns/a", "2": "ns/b"})
	mineFull := block("", "10.0.0.8/30", "node1", full)
	for _, test := range []struct {
		name   string
		survey api.Survey
		want   string // blocks; steps; result
	}{
		{"none", api.Survey{}, "; ; claims"},
		{"another's", api.Survey{Blocks: []*api.PoolState{block("", "10.0.0.4/30", "node2", nil)}}, "; ; claims"},
		{"of another space", api.Survey{Blocks: []*api.PoolState{block("blue", "10.0.0.4/30", "node1", nil)}}, "; ; claims"},
		{"free", api.Survey{Blocks: []*api.PoolState{block("", "10.0.0.4/30", "", nil)}}, "; ; claims"},
		{
			"the lowest",
			api.Survey{Divided: []*api.PoolState{guard("", "10.0.0.0/28")}, Blocks: []*api.PoolState{mineFull, revoked(mine)}},
			"10.0.0.4/30 10.0.0.8/30; 10.0.0.4 held by ns/a, 10.0.0.5 it is a gateway, 10.0.0.6 held by ns/b; next 10.0.0.7",
		},
		{
			"full",
			api.Survey{Blocks: []*api.PoolState{mineFull, block("", "10.0.0.0/30", "node2", nil)}},
			"10.0.0.8/30; 10.0.0.8 held by ns/d, 10.0.0.9 held by ns/e, 10.0.0.10 held by ns/f, 10.0.0.11 held by ns/g; claims",
		},
		{
			"nothing left",
			api.Survey{Blocks: []*api.PoolState{block("", "10.0.0.0/30", "a", nil), block("", "10.0.0.4/30", "b", nil), block("", "10.0.0.8/30", "c", nil), block("", "10.0.0.12/30", "d", nil)}},
			"; ; Could not allocate IP in range: ip: 10.0.0.1 / - 10.0.0.14 / range: 10.0.0.0/28 / excludeRanges: []: no block of 4 addresses is free; widen the range, make block_size smaller, or end attachments that are not needed",
		},
		{
			"used entry by entry",
			api.Survey{Pools: []*api.PoolState{{Name: "10.0.0.0-28"}}, Blocks: []*api.PoolState{mine}},
			"; ; the network has block_size, and IPPool 10.0.0.0-28 (used: 0) belongs to networks without block_size: the network's pods get no address; end the pods of those networks and delete the IPPool, or give this network another range or network_name",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := sourcesOf(t, network(t, "a", keys))[0]
			x := s.explainBlocks(&test.survey, "node1")
			var blocks, steps []string
			for _, b := range x.Blocks {
				blocks = append(blocks, b.Range.String())
			}
			for _, step := range x.Steps {
				steps = append(steps, fmt.Sprint(step.From, " ", step.Why))
			}
			result := x.Error
			if x.Next.IsValid() {
				result += "next " + x.Next.String()
			}
			if x.Claims {
				result += "claims"
			}
			if got := strings.Join([]string{strings.Join(blocks, " "), strings.Join(steps, ", "), result}, "; "); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestBlocksOfARangeHaveAnAddress(t *testing.T) {
	for keys, want := range map[string]string{
		`"range":"10.0.0.0/28","block_size":8`:                                                       "10.0.0.0/29 10.0.0.8/29",
		`"range":"10.0.0.0/27","block_size":4,"range_start":"10.0.0.7","range_end":"10.0.0.13"`:      "10.0.0.4/30 10.0.0.8/30 10.0.0.12/30",
		`"range":"10.0.0.0/28","block_size":4,"exclude":["10.0.0.4/29"],"gateway":"10.0.0.13"`:       "10.0.0.8/30 10.0.0.12/30",
		`"range":"10.0.0.0/28","block_size":4,"exclude":["10.0.0.1/32","10.0.0.2/31"]`:               "10.0.0.4/30 10.0.0.8/30 10.0.0.12/30",
		`"range":"10.0.0.0/30","block_size":2,"gateway":"10.0.0.1"`:                                  "10.0.0.2/31",
		`"range":"fd00::fff0/124","block_size":8`:                                                    "fd00::fff0/125 fd00::fff8/125",
		`"range":"255.255.255.240/28","block_size":8`:                                                "255.255.255.240/29 255.255.255.248/29",
		`"range":"10.0.0.0/29","block_size":4,"exclude":["10.0.0.0/29"]`:                             "",
		`"range":"10.0.0.0/28","block_size":8,"range_start":"10.0.0.1","range_end":"10.0.0.7"`:       "10.0.0.0/29",
		`"range":"10.0.0.0/16","block_size":4096,"range_start":"10.0.1.0","range_end":"10.0.16.200"`: "10.0.0.0/20 10.0.16.0/20",
	} {
		s := sourcesOf(t, network(t, "a", keys))[0]
		var got []string
		for b := range s.blocks() {
			got = append(got, b.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: blocks %v, want %s", keys, got, want)
		}
	}
}

func TestCheckComparesBlocksWithNodes(t *testing.T) {
	for nodes, want := range map[int]string{
		0: "",
		1: "",
		2: "warning: 2 nodes and 2 blocks of 8 addresses in 10.0.0.0/28: no node can have a second block",
		3: "error: 3 nodes and 2 blocks of 8 addresses in 10.0.0.0/28: not every node can have a block",
	} {
		k := &checker{nodes: make([]string, nodes)}
		k.network(network(t, "a", `"range":"10.0.0.0/28","block_size":8`))
		got := ""
		for _, v := range k.verdicts {
			got += v.Level + ": " + v.What
		}
		if got != want {
			t.Errorf("%d nodes: %q, want %q", nodes, got, want)
		}
	}
}

func TestCheckComparesANetworkWithItsPool(t *testing.T) {
	taken := map[string]api.Entry{"2": {PodRef: "ns/a"}}
	for _, test := range []struct {
		name, keys string
		pool       *api.PoolState // the IPPool 10.0.0.0-16
		want       string         // the only verdict; "" for none
	}{
		{"no pool yet", `"block_size":4`, nil, ""},
		{"divided", `"block_size":4`, &api.PoolState{BlockSize: 4}, ""},
		{"too large for one object", ``, nil, "10.0.0.0/16 has 65534 addresses, and one IPPool holds about 10000"},
		{"divided into others", `"block_size":8`, &api.PoolState{BlockSize: 4}, "the network has block_size 8, and IPPool 10.0.0.0-16 is divided into blocks of 4 addresses: the network's pods get no address"},
		{"used entry by entry", `"block_size":4`, &api.PoolState{Entries: taken}, "the network has block_size, and IPPool 10.0.0.0-16 (used: 1) belongs to networks without block_size: the network's pods get no address"},
		{"without blocks", `"range_end":"10.0.0.9"`, &api.PoolState{BlockSize: 4}, "the network has no block_size, and IPPool 10.0.0.0-16 is divided into blocks of 4 addresses: the network's pods get no address"},
		{"gateway of a pod", `"block_size":4,"gateway":"10.0.0.6"`, &api.PoolState{BlockSize: 4}, "the gateway 10.0.0.6 is held by ns/a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := block("", "10.0.0.4/30", "node1", map[string]string{"2": "ns/a"})
			k := &checker{pools: map[string]*api.PoolState{b.Name: b}}
			if test.pool != nil {
				test.pool.Name = "10.0.0.0-16"
				test.pool.Base, test.pool.Prefix = netip.MustParseAddr("10.0.0.0"), netip.MustParsePrefix("10.0.0.0/16")
				k.pools[test.pool.Name] = test.pool
			}
			s := sourcesOf(t, network(t, "a", strings.TrimSuffix(`"range":"10.0.0.0/16",`+test.keys, ",")))
			k.source(&s[0])
			switch {
			case test.want == "" && len(k.verdicts) > 0:
				t.Errorf("said: %+v", k.verdicts)
			case test.want != "" && (len(k.verdicts) != 1 || k.verdicts[0].What != test.want):
				t.Errorf("said %+v, want %q", k.verdicts, test.want)
			}
		})
	}
}

func TestUsageIsOfAllPools(t *testing.T) {
	pool := func(prefix string, entries int) *api.PoolState {
		p := netip.MustParsePrefix(prefix)
		state := &api.PoolState{Name: ipam.Pool{Prefix: p}.Name(), Base: p.Addr(), Prefix: p, Entries: map[string]api.Entry{}}
		for i := range entries {
			state.Entries[fmt.Sprint(i+1)] = api.Entry{PodRef: "ns/pod"}
		}
		return state
	}
	var got []string
	for _, v := range Usage(&api.Survey{
		Pools:   []*api.PoolState{pool("10.2.0.0/24", 7), pool("10.3.0.0/16", 0), pool("10.4.0.0/31", 2), pool("10.5.0.0/32", 0), pool("fd00::/64", 1)},
		Divided: []*api.PoolState{guard("", "10.0.0.0/16")},
		Blocks:  []*api.PoolState{block("", "10.0.0.4/30", "node1", map[string]string{"0": "ns/a", "2": "ns/b"})},
	}) {
		text := fmt.Sprint(v.Name, " ", v.Used, " of ", v.Capacity())
		if d := v.Divided; d != nil {
			text += fmt.Sprint(", ", d.Claimed, " of ", d.InRange)
		}
		got = append(got, text)
	}
	want := []string{"10.2.0.0-24 7 of 254", "10.3.0.0-16 0 of 10000", "10.4.0.0-31 2 of 2", "10.5.0.0-32 0 of 1", "fd00---64 1 of 10000", "10.0.0.0-16 2 of 65534, 1 of 16384"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
