package report

import (
	"fmt"
	"iter"
	"math/big"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Divided describes the blocks of a pool that is divided into blocks.
type Divided struct {
	BlockSize int      `json:"blockSize"` // addresses
	InRange   *big.Int `json:"inRange"`   // blocks of the whole network
	Claimed   int      `json:"claimed"`   // blocks that a node holds
	Freed     int      `json:"freed"`     // blocks that no node holds any more
	Blocks    []Block  `json:"blocks"`    // claimed and freed ones, by address
}

// Block is a part of a pool whose addresses one node assigns.
type Block struct {
	Name    string       `json:"name"` // of its IPPool
	Range   netip.Prefix `json:"range"`
	State   string       `json:"state"`
	Node    string       `json:"node,omitempty"`    // the node that holds the block
	Revoked bool         `json:"revoked,omitempty"` // see [api.Block]
	Used    int          `json:"used"`              // entries that the node's rail-agent has published
}

// The states of a [Block].
const (
	StateClaimed = "claimed" // a node holds it
	StateFree    = "free"
)

func newBlock(p *api.PoolState) Block {
	b := Block{
		Name: p.Name, Range: p.Prefix, State: StateFree,
		Node: p.Block.Node, Revoked: p.Block.Revoked != "", Used: len(p.Entries),
	}
	if p.Block.Claim != "" {
		b.State = StateClaimed
	}
	return b
}

// Problem returns what is wrong with the block, or "".
func (b *Block) Problem() string {
	if b.Revoked {
		return "revoked: the Node is gone, or was rebooted and has not taken the block again"
	}
	return ""
}

// isBlockOf reports whether p, which is a block, is a block of pool.
func isBlockOf(p *api.PoolState, pool ipam.Pool) bool {
	return pool.Prefix.Overlaps(p.Prefix) && p.Name == api.BlockName(pool, p.Prefix)
}

// blocksOf returns the blocks of pool among all blocks, by address.
func blocksOf(pool ipam.Pool, all []*api.PoolState) []*api.PoolState {
	blocks := slices.DeleteFunc(slices.Clone(all), func(p *api.PoolState) bool { return !isBlockOf(p, pool) })
	slices.SortFunc(blocks, func(a, b *api.PoolState) int { return a.Prefix.Addr().Compare(b.Prefix.Addr()) })
	return blocks
}

// poolOf returns the pool that a guard marks as divided. The part of the guard's name
// before the network is the address space, perhaps followed by [ipam.HostNode]. It has no
// node, because node slices are never divided.
func poolOf(guard *api.PoolState) ipam.Pool {
	pool := ipam.Pool{Prefix: guard.Prefix}
	if host := ipam.HostPool(pool); guard.Name == host.Name() || strings.HasSuffix(guard.Name, "-"+host.Name()) {
		pool = host
	}
	pool.Space = strings.TrimSuffix(strings.TrimSuffix(guard.Name, pool.Name()), "-")
	return pool
}

// dividedPools returns the pools that are divided into blocks, by name. It also returns an
// error if there are blocks that belong to none of these pools. A block of host parts is
// shown in the pool of each rail.
func dividedPools(survey *api.Survey) ([]*Pool, error) {
	var views []*Pool
	known := map[string]bool{}
	for _, guard := range survey.Divided {
		pool := poolOf(guard)
		if guard.SameHost {
			pool = ipam.HostPool(pool)
		}
		v := newDivided(guard)
		for _, b := range blocksOf(pool, survey.Blocks) {
			known[b.Name] = true
			v.add(onRail(b, guard))
		}
		if poolOf(guard).Node == "" {
			views = append(views, v)
		}
	}
	lost := slices.DeleteFunc(slices.Clone(survey.Blocks), func(b *api.PoolState) bool { return known[b.Name] })
	if len(lost) > 0 {
		return views, fmt.Errorf("%s without the IPPool of the whole range, for example IPPool %s: delete such blocks when no pod uses their addresses", plural(len(lost), "block"), lost[0].Name)
	}
	return views, nil
}

// onRail returns b as a block of the pool that has this guard. With sameHost, b is a block
// of host parts, and onRail returns the corresponding block of the rail's pool. Without
// sameHost it returns b unchanged.
func onRail(b, guard *api.PoolState) *api.PoolState {
	if !guard.SameHost {
		return b
	}
	moved := *b
	moved.Prefix = ipam.MovePrefix(b.Prefix, guard.Prefix)
	moved.Base = moved.Prefix.Addr()
	return &moved
}

// newDivided returns a pool without its blocks and networks.
func newDivided(guard *api.PoolState) *Pool {
	v := newPool(guard)
	v.Divided = &Divided{BlockSize: guard.BlockSize, Blocks: []Block{}}
	addresses := new(big.Int).Lsh(big.NewInt(1), uint(guard.Prefix.Addr().BitLen()-guard.Prefix.Bits()))
	v.Divided.InRange = addresses.Rsh(addresses, sizeBits(guard.BlockSize))
	return v
}

// add adds a block, with the entries that its node has published.
func (v *Pool) add(p *api.PoolState) {
	b, entries := newBlock(p), newPool(p)
	v.Divided.Blocks = append(v.Divided.Blocks, b)
	if b.State == StateClaimed {
		v.Divided.Claimed++
	} else {
		v.Divided.Freed++
	}
	if want := blockAt(p.Prefix.Addr(), v.Divided.BlockSize); p.Prefix != want {
		entries.Problems = append(entries.Problems, fmt.Sprintf("it does not have %d addresses", v.Divided.BlockSize))
	}
	if why := b.Problem(); why != "" {
		entries.Problems = append(entries.Problems, why)
	}
	for _, problem := range entries.Problems {
		v.Problems = append(v.Problems, fmt.Sprintf("block %s: %s", p.Prefix, problem))
	}
	v.Used += entries.Used
	v.Placeholders += entries.Placeholders
	if v.Free.Sub(v.Free, big.NewInt(int64(entries.Used))); v.Free.Sign() < 0 {
		v.Free.SetInt64(0)
	}
	v.Holders = append(v.Holders, publishedIn(p)...)
}

// publishedIn returns the holders of a block's addresses, by address.
func publishedIn(p *api.PoolState) []Holder {
	var all []Holder
	for key, e := range p.Entries {
		if addr, err := p.Addr(key); err == nil && e.PodRef != "" {
			all = append(all, Holder{Address: addr, PodRef: e.PodRef, IfName: e.IfName, ContainerID: e.ContainerID, Block: p.Prefix, Node: p.Block.Node})
		}
	}
	slices.SortFunc(all, func(a, b Holder) int { return a.Address.Compare(b.Address) })
	return all
}

// sizeBits returns how many low bits of an address differ within a block of size addresses.
func sizeBits(size int) uint { return uint(bits.TrailingZeros(uint(size))) }

// blockAt returns the block of size addresses that contains addr.
func blockAt(addr netip.Addr, size int) netip.Prefix {
	block, _ := addr.Prefix(addr.BitLen() - int(sizeBits(size)))
	return block
}

// blocks returns the blocks that contain at least one address which the range assigns, by
// address. The network must have block_size.
func (s *source) blocks() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for addr := s.Range.First(); addr.IsValid(); {
			next, ok := s.Range.Next(addr)
			if !ok {
				return
			}
			block := blockAt(next, s.network.Conf.BlockSize)
			part, ok := s.Range.Within([]netip.Prefix{block})
			if !ok || !yield(block) {
				return
			}
			addr = part.Last().Next()
		}
	}
}

// mismatch returns how the pool's IPPool, p, is used in another way than the network would
// use it, and the cure. It returns "" if there is no mismatch, or if p is nil.
func (s *source) mismatch(p *api.PoolState) (what, cure string) {
	size := s.network.Conf.BlockSize
	switch {
	case p != nil && size != 0 && p.BlockSize == size && p.SameHost != (s.SameHost != nil):
		return fmt.Sprintf("the network and IPPool %s differ in sameHost: the network's pods get no address", p.Name),
			"give all networks of this range the same value of sameHost, or give this network another range or network_name"
	case p == nil || p.BlockSize == size:
		return "", ""
	case size == 0:
		return fmt.Sprintf("the network has no block_size, and IPPool %s is divided into blocks of %d addresses: the network's pods get no address", p.Name, p.BlockSize),
			"give all networks of this range the same block_size, or give this network another range or network_name"
	case p.BlockSize == 0:
		return fmt.Sprintf("the network has block_size, and IPPool %s (used: %d) belongs to networks without block_size: the network's pods get no address", p.Name, len(p.Entries)),
			"end the pods of those networks and delete the IPPool, or give this network another range or network_name"
	}
	return fmt.Sprintf("the network has block_size %d, and IPPool %s is divided into blocks of %d addresses: the network's pods get no address", size, p.Name, p.BlockSize),
		"give all networks of this range the same block_size"
}
