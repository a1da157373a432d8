package api

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// The sizes of pools differ: a pool that the whole cluster uses may have 1.5 MB, and each of thousands of node slices 10 kB.
const (
	firstPools = 20       // pools of the first page
	poolsPage  = 16 << 20 // bytes of one page, approximately
)

// Holding is an entry of a pool that names an address and a holder, together with the
// reservation of the address.
type Holding struct {
	Pool *PoolState
	Key  string
	Addr netip.Addr
	Entry
	// Reservation is the holder's own reservation of the address, or nil. Foreign is
	// another holder's reservation of the address, or nil. Foreign is set only if it is
	// known that the reservation is of the same address space.
	Reservation, Foreign *Reservation
	// Missing is the name of the reservation that this entry lacks, although other entries
	// of the pool have reservations. It is "" if no reservation is missing.
	Missing string
}

// Survey is the content of the cluster's address store. [Inspect] reads the reservations
// first and then the pools, and an ADD writes the entry first and then the reservation. So
// a reservation without an entry does not belong to an ADD that is still running. Holdings
// has no addresses of blocks: only the node that holds a block knows which of its addresses
// are taken.
type Survey struct {
	Pools    []*PoolState // by name, without those that are divided into blocks
	Divided  []*PoolState // pools that are divided into blocks, by name
	Blocks   []*PoolState // by name
	Holdings []Holding    // by pool and address
	// Loose are the reservations without an entry, by name. Claimed reports, for the name
	// of each loose reservation, whether the entry of another holder has its address.
	Loose   []*Reservation
	Claimed map[string]bool
	// Errors are the errors about objects that cannot be read. The survey has all other
	// objects.
	Errors []error
}

// Inspect reads all pools and reservations of client's namespace.
func Inspect(ctx context.Context, client *kube.Client) (*Survey, error) {
	s := &Survey{Claimed: map[string]bool{}}
	reserved := map[string]*Reservation{}
	_, err := client.List(ctx, Reservations(client.Namespace()), kube.ListOptions{}, func(item []byte) error {
		r := new(Reservation)
		if err := json.Unmarshal(item, r); err != nil {
			s.Errors = append(s.Errors, err)
			return nil
		}
		reserved[r.Metadata.Name] = r
		return nil
	})
	if err != nil {
		return nil, err
	}
	pools := map[string]*PoolState{} // a list that was started again may contain a pool twice
	_, err = client.List(ctx, Pools(client.Namespace()), kube.ListOptions{Limit: firstPools, PageBytes: poolsPage}, func(item []byte) error {
		p, err := ParsePool(item)
		if err != nil {
			s.Errors = append(s.Errors, err)
			return nil
		}
		pools[p.Name] = p
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range slices.SortedFunc(maps.Values(pools), func(a, b *PoolState) int { return cmp.Compare(a.Name, b.Name) }) {
		switch {
		case p.Block != nil:
			s.Blocks = append(s.Blocks, p)
		case p.BlockSize > 0:
			s.Divided = append(s.Divided, p)
		default:
			s.Pools = append(s.Pools, p)
		}
	}
	s.pair(reserved)
	return s, nil
}

// pair assigns the reservations to the entries.
func (s *Survey) pair(reserved map[string]*Reservation) {
	paired := map[string]bool{}
	for _, p := range s.Pools {
		spaces, held := p.spaces(), p.holdings()
		known := map[string]bool{} // the spaces of the pool's reservations
		for i := range held {
			h := &held[i]
			for _, space := range spaces {
				name := (ipam.Pool{Space: space}).ReservationName(h.Addr)
				if r := reserved[name]; r != nil && r.Spec.BelongsTo(h.Owner()) {
					h.Reservation = r
					paired[name], known[space] = true, true
					break
				}
			}
		}
		for i := range held {
			held[i].lacks(spaces, known, reserved, s.Claimed)
		}
		s.Holdings = append(s.Holdings, held...)
	}
	for _, name := range slices.Sorted(maps.Keys(reserved)) {
		if !paired[name] {
			s.Loose = append(s.Loose, reserved[name])
		}
	}
}

// lacks sets Foreign or Missing for an entry without a reservation of its own. The pool's
// name alone does not show which part of it is the address space and which is the node. The
// space is known only if the name has neither part, or if other entries of the pool have
// reservations.
func (h *Holding) lacks(spaces []string, known map[string]bool, reserved map[string]*Reservation, claimed map[string]bool) {
	for _, space := range spaces {
		name := (ipam.Pool{Space: space}).ReservationName(h.Addr)
		claimed[name] = true
		if h.Reservation != nil || !known[space] && len(spaces) > 1 {
			continue
		}
		if r := reserved[name]; r != nil {
			h.Foreign = r
		} else if known[space] && len(known) == 1 {
			h.Missing = name
		}
	}
}

// spaces returns the possible address spaces of the pool. The name of a pool is
// "[space-][node-]network". The part before the network is the space, the node, or both,
// and each of the two may contain dashes.
func (p *PoolState) spaces() []string {
	head, ok := strings.CutSuffix(p.Name, ipam.Pool{Prefix: p.Prefix}.Name())
	head, dashed := strings.CutSuffix(head, "-")
	if !ok || !dashed {
		return []string{""}
	}
	found := []string{head}
	for i := strings.LastIndexByte(head, '-'); i > 0; i = strings.LastIndexByte(head[:i], '-') {
		found = append(found, head[:i])
	}
	return append(found, "")
}

// holdings returns the entries that name an address and a holder, by address.
func (p *PoolState) holdings() []Holding {
	var held []Holding
	for key, e := range p.Entries {
		if e.PodRef == "" {
			continue
		}
		if addr, err := p.Addr(key); err == nil {
			held = append(held, Holding{Pool: p, Key: key, Addr: addr, Entry: e})
		}
	}
	slices.SortFunc(held, func(a, b Holding) int { return a.Addr.Compare(b.Addr) })
	return held
}
