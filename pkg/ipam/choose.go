package ipam

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"net/netip"
)

const (
	// pageAddrs is the number of addresses in a [Page]. The addresses of a page differ only
	// in their last 16 bits.
	pageAddrs = 1 << 16
	// PageBytes is the size of a [Page] as bytes.
	PageBytes = pageAddrs / 8
)

// Page is a set of taken addresses among 65536 neighboring ones. The zero value
// is empty.
type Page struct {
	taken [pageAddrs / 64]uint64
	// full has a bit for each word of taken. The bit is set if the word has no free
	// address, so that a search skips 4096 addresses in one step.
	full [pageAddrs / 64 / 64]uint64
}

// PageBase returns the first address of a's page, which identifies the page.
func PageBase(a netip.Addr) netip.Addr {
	p, _ := a.Prefix(a.BitLen() - 16)
	return p.Addr()
}

// PageIndex returns the index of a in its page.
func PageIndex(a netip.Addr) int {
	s := a.As16()
	return int(binary.BigEndian.Uint16(s[14:]))
}

// pageAddr returns the address at index in the page that begins at base.
func pageAddr(base netip.Addr, index int) netip.Addr {
	s := base.AsSlice()
	binary.BigEndian.PutUint16(s[len(s)-2:], uint16(index))
	a, _ := netip.AddrFromSlice(s)
	return a
}

// ParsePage reads a page from its bytes: index i is bit i%8 of byte i/8.
func ParsePage(data *[PageBytes]byte) *Page {
	p := new(Page)
	for word := range p.taken {
		p.taken[word] = binary.LittleEndian.Uint64(data[word*8:])
		p.summarize(word)
	}
	return p
}

// Bytes returns the page as the bytes that [ParsePage] reads.
func (p *Page) Bytes() *[PageBytes]byte {
	data := new([PageBytes]byte)
	for word, taken := range p.taken {
		binary.LittleEndian.PutUint64(data[word*8:], taken)
	}
	return data
}

// Byte returns byte i of [Page.Bytes].
func (p *Page) Byte(i int) byte { return byte(p.taken[i/8] >> (i % 8 * 8)) }

// Set marks the address at index as taken, or as free if taken is false.
func (p *Page) Set(index int, taken bool) {
	if taken {
		p.taken[index/64] |= 1 << (index % 64)
	} else {
		p.taken[index/64] &^= 1 << (index % 64)
	}
	p.summarize(index / 64)
}

func (p *Page) summarize(word int) {
	if p.taken[word] == math.MaxUint64 {
		p.full[word/64] |= 1 << (word % 64)
	} else {
		p.full[word/64] &^= 1 << (word % 64)
	}
}

// Taken reports whether the address at index is taken.
func (p *Page) Taken(index int) bool { return p.taken[index/64]>>(index%64)&1 == 1 }

// Or returns a page with the addresses that are taken in p or in q.
func (p *Page) Or(q *Page) *Page {
	sum := new(Page)
	for i := range sum.taken {
		sum.taken[i] = p.taken[i] | q.taken[i]
		sum.summarize(i)
	}
	return sum
}

// nextFree returns the lowest free index that is not below from, or pageAddrs if there is
// none.
func (p *Page) nextFree(from int) int {
	word := from / 64
	if free := ^p.taken[word] >> (from % 64); free != 0 {
		return from + bits.TrailingZeros64(free)
	}
	word++ // the first word with a free address from here on
	for group := word / 64; group < len(p.full); group++ {
		open := ^p.full[group]
		if group == word/64 {
			open &= math.MaxUint64 << (word % 64)
		}
		if open != 0 {
			word = group*64 + bits.TrailingZeros64(open)
			return word*64 + bits.TrailingZeros64(^p.taken[word])
		}
	}
	return pageAddrs
}

// Used has the taken addresses. Page returns the page that begins at base, or
// nil if none of its addresses is taken.
type Used interface {
	Page(base netip.Addr) (*Page, error)
}

// Choose returns the lowest address of r that is not taken, or an *[ExhaustedError] if
// there is none. It also returns errors of used.
func Choose(r *Range, used Used) (netip.Addr, error) { return ChooseFrom(r, used, r.First()) }

// ChooseFrom is like [Choose], but passes over the addresses below from.
func ChooseFrom(r *Range, used Used, from netip.Addr) (netip.Addr, error) {
	addr, ok := r.Next(from)
	for ok {
		base := PageBase(addr)
		page, err := used.Page(base)
		if err != nil {
			return netip.Addr{}, err
		}
		if page == nil {
			return addr, nil
		}
		free := page.nextFree(PageIndex(addr))
		if free == PageIndex(addr) {
			return addr, nil
		}
		if free < pageAddrs {
			addr, ok = r.Next(pageAddr(base, free))
			continue
		}
		following := pageAddr(base, pageAddrs-1).Next()
		if !following.IsValid() {
			break
		}
		addr, ok = r.Next(following)
	}
	return netip.Addr{}, r.Exhausted()
}

// ChooseAfter returns the lowest free address after last. If there is none, or if last is
// the zero Addr, it returns the same as [Choose].
func ChooseAfter(r *Range, used Used, last netip.Addr) (netip.Addr, error) {
	if next := last.Next(); next.IsValid() {
		addr, err := ChooseFrom(r, used, next)
		if full := (*ExhaustedError)(nil); !errors.As(err, &full) {
			return addr, err
		}
	}
	return Choose(r, used)
}

// Set is a set of addresses in memory. The zero value is empty and ready. It
// implements [Used] and is not safe for concurrent use.
type Set struct{ pages map[netip.Addr]*Page }

// Page returns a page, which the caller must not change.
func (s *Set) Page(base netip.Addr) (*Page, error) { return s.pages[base], nil }

// Add puts an address into the set.
func (s *Set) Add(a netip.Addr) {
	base := PageBase(a)
	if s.pages[base] == nil {
		if s.pages == nil {
			s.pages = map[netip.Addr]*Page{}
		}
		s.pages[base] = new(Page)
	}
	s.pages[base].Set(PageIndex(a), true)
}

// Has reports whether an address is in the set.
func (s *Set) Has(a netip.Addr) bool {
	page := s.pages[PageBase(a)]
	return page != nil && page.Taken(PageIndex(a))
}
