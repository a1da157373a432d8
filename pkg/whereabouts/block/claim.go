package block

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"iter"
	"math/big"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const (
	// blindProbes is the number of blocks that a search asks the server for before it reads
	// which blocks are held. If the pool is not nearly full, one of these blocks is
	// probably free.
	blindProbes = 16
	// maxProbes bounds the number of blocks that one search asks the server for.
	// maxCandidates bounds the number of blocks that one search considers.
	maxProbes     = 4096
	maxCandidates = 1 << 16
)

// claim makes the node the holder of one more block that has an address for c. The block is
// one that this node began to claim or to return before, or one that no node holds.
func (p *pool) claim(ctx context.Context, c ipam.Claim) error {
	return p.alone(ctx, func() error {
		f, err := p.peek(ctx)
		if err != nil {
			return err
		}
		// Another process may have claimed a block while this process waited. If others
		// take all addresses of that block meanwhile, this process calls claim again.
		if p.hasFree(ctx, c, f) {
			return nil
		}
		if f.full(p.hosts(c), p.now()) {
			return p.fullError(c)
		}
		if err := p.guard(ctx, c); err != nil {
			return err
		}
		return p.probe(ctx, c, f)
	})
}

// peek returns the node's file as it is now.
func (p *pool) peek(ctx context.Context) (now *file, err error) {
	err = p.locked(ctx, func(f *file) (bool, error) {
		now = f
		return false, nil
	})
	return now, err
}

// hasFree reports whether a usable block has a free address for c. If c requests an
// address, it reports whether a usable block has that address, free or not.
func (p *pool) hasFree(ctx context.Context, c ipam.Claim, f *file) bool {
	usable := blocksFor(c, f.usable(p.now()))
	if c.Want.IsValid() {
		return slices.ContainsFunc(usable, func(b netip.Prefix) bool { return b.Contains(c.Want) })
	}
	var some bool
	c.Range, some = c.Range.Within(usable)
	return some && p.local.Status(ctx, []ipam.Claim{c}) == nil
}

// probe asks the server for one block after another, until the node holds one more.
func (p *pool) probe(ctx context.Context, c ipam.Claim, f *file) error {
	usable, hosts := f.usable(p.now()), p.hosts(c)
	asked, last := 0, f.Tried
	var held map[string]api.Holder // by name, nil until it is read
	for index, prefix := range p.candidates(hosts, f) {
		if err := ctx.Err(); err != nil {
			return failure.From(err, failure.TryAgain, "claiming a block of %s", p.Prefix).Cure("try again")
		}
		if slices.Contains(usable, prefix) {
			continue // the node holds it, and it is full
		}
		if _, some := hosts.Range.Within([]netip.Prefix{prefix}); !some {
			continue
		}
		if asked == blindProbes && held == nil {
			var err error
			if held, err = api.HeldBlocks(ctx, p.client); err != nil {
				p.warnIf(err)
				held = map[string]api.Holder{} // then the server is asked for each block
			}
		}
		last = index
		if holder, some := held[api.BlockName(p.Pool, prefix)]; some && f.find(prefix) == nil && !p.mineBefore(holder) {
			continue
		}
		if asked++; asked > maxProbes {
			break
		}
		ok, err := p.take(ctx, prefix, index)
		if ok || err != nil {
			return err
		}
		if c.Want.IsValid() {
			return failure.New(failure.IPAM, "the block %s of the requested address %s is already held", prefix, c.Want).
				Cure("ask for another address, or let the pool choose; to see which node holds the block, run railctl ipam show")
		}
	}
	if err := p.change(ctx, func(f *file) { f.Tried, f.Full, f.FullRange = last, p.now(), rangeText(hosts.Range) }); err != nil {
		return err
	}
	return p.fullError(c)
}

// fullError returns the error that the pool has no free block. Its text begins like the
// error of a range whose addresses are all taken, because users' alerts match that text.
func (p *pool) fullError(c ipam.Claim) error {
	return failure.From(fmt.Errorf("%w: none of the blocks of %d addresses that were tried is free", c.Range.Exhausted(), p.size), failure.IPAM, "").
		Cure("widen the range, make block_size smaller, or end attachments that are not needed: rail-agent returns a block that was empty for an hour")
}

// candidates returns the blocks in the order in which this node tries them. First come the
// blocks that a killed process left behind, and then all blocks. The order of all blocks
// differs from node to node, so that nodes that start together seldom try the same block.
// Each block comes with the value for [file.Tried] with which a later search continues at
// that block.
func (p *pool) candidates(c ipam.Claim, f *file) iter.Seq2[uint64, netip.Prefix] {
	length := p.Prefix.Addr().BitLen() - bits.Len(uint(p.size)) + 1
	return func(yield func(uint64, netip.Prefix) bool) {
		if c.Want.IsValid() {
			only, _ := c.Want.Prefix(length)
			yield(f.Tried, only)
			return
		}
		for _, e := range f.Blocks {
			if e.State != held && !yield(f.Tried, e.Prefix) {
				return
			}
		}
		first, _ := c.Range.First().Prefix(length)
		n := count(first, c.Range.Last())
		sum := fnv.New64a()
		fmt.Fprint(sum, p.self.Node, " ", p.Pool.Name())
		start, step := sum.Sum64()%n, max(1, sum.Sum64()>>32%n)
		for gcd(step, n) != 1 { // with gcd 1 the steps reach each block once
			step++
		}
		for i := range min(n, maxCandidates) {
			index := (f.Tried + i) % n
			if !yield(index, nth(first, (start+index*step)%n)) {
				return
			}
		}
	}
}

// count returns the number of blocks from first to the block that contains last, but at
// most 2^32.
func count(first netip.Prefix, last netip.Addr) uint64 {
	const maxBlocks = 1 << 32
	n := new(big.Int).Sub(number(last), number(first.Addr()))
	n.Rsh(n, hostBits(first))
	if !n.IsUint64() || n.Uint64() >= maxBlocks {
		return maxBlocks
	}
	return n.Uint64() + 1
}

// nth returns the block that is n blocks after first.
func nth(first netip.Prefix, n uint64) netip.Prefix {
	sum := new(big.Int).Lsh(new(big.Int).SetUint64(n), hostBits(first))
	sum.Add(sum, number(first.Addr()))
	addr, _ := netip.AddrFromSlice(sum.FillBytes(first.Addr().AsSlice()))
	return netip.PrefixFrom(addr, first.Bits())
}

func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

func hostBits(p netip.Prefix) uint { return uint(p.Addr().BitLen() - p.Bits()) }

func gcd(a, b uint64) uint64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// take makes the node the holder of a block, and returns false if another node holds it.
// The file has the claim before the server has it, so if the process is killed in between,
// the next claim finds the block. index is the new value of [file.Tried].
func (p *pool) take(ctx context.Context, prefix netip.Prefix, index uint64) (bool, error) {
	asked := p.now()
	e := entry{Prefix: prefix, Claim: rand.Text(), State: claiming, Confirmed: asked}
	err := p.change(ctx, func(f *file) {
		f.Tried = index
		old := f.find(prefix)
		switch {
		case old == nil:
		case old.State == returning: // a late return must not free the new claim
			e.Former = old.Claim
		default:
			e.Claim, e.Former = old.Claim, old.Former
		}
		f.set(e)
	})
	if err != nil {
		return false, err
	}
	ok, err := p.takeOnServer(ctx, e)
	if failure.KindOf(err) == failure.BadRecord { // an object that is not a block, or a damaged one
		p.warnIf(err)
		ok, err = false, nil
	}
	if err != nil {
		return false, err // the server may know the claim
	}
	return ok, p.change(ctx, func(f *file) {
		if !ok {
			f.drop(prefix)
			return
		}
		f.set(entry{Prefix: prefix, Claim: e.Claim, State: held, Confirmed: asked})
		f.Silent, f.Full = 0, 0
	})
}

func (p *pool) takeOnServer(ctx context.Context, e entry) (bool, error) {
	self, name := p.self, api.BlockName(p.Pool, e.Prefix)
	self.Claim = e.Claim
	made, err := api.CreateBlock(ctx, p.client, name, e.Prefix, self)
	if made || err != nil {
		return made, err
	}
	now, err := api.ReadBlock(ctx, p.client, name)
	if err != nil || now == nil { // nil: it was deleted just now
		return false, err
	}
	if now.Prefix != e.Prefix {
		return false, failure.New(failure.BadRecord, "IPPool %s has the range %s, want %s", name, now.Prefix, e.Prefix).
			Cure("delete the IPPool when no pod uses its addresses")
	}
	has := now.Block.Claim
	switch {
	case has == e.Claim && now.Block.Revoked == "": // the answer to an earlier request was lost
		return true, nil
	case has != e.Claim && has != "" && has != e.Former && !p.mineBefore(now.Block.Holder):
		return false, nil
	}
	if ok, err := api.TakeBlock(ctx, p.client, name, *now.Block, self); ok || err != nil {
		return ok, err
	}
	// Another node was quicker, or an answer was lost and the repeated patch was refused.
	now, err = api.ReadBlock(ctx, p.client, name)
	return err == nil && now != nil && now.Block.Claim == e.Claim && now.Block.Revoked == "", err
}

// mineBefore reports whether the holder is this node in an earlier boot. The pods of that
// boot no longer exist. It returns false for a claim of this boot that the node's file does
// not have: the state directory was removed, and pods may have addresses of that block.
func (p *pool) mineBefore(h api.Holder) bool {
	return h.Node == p.self.Node && h.Machine == p.self.Machine && h.Boot != p.self.Boot
}
