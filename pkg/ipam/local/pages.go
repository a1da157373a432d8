package local

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// pages are the pool's map: one file for each page that has ever had an address. The holder
// of the pool's lock changes the files in place, a byte at a time.
type pages struct {
	dir    *statefile.Dir
	loaded map[netip.Addr]*page
}

type page struct {
	bits *ipam.Page // as in the file
	// hidden has the addresses in bits and, in memory only, the hidden addresses of other
	// pools. It is nil while no address is hidden.
	hidden *ipam.Page
}

func pageName(base netip.Addr) string { return "map-" + base.String() }

// Page implements [ipam.Used].
func (m *pages) Page(base netip.Addr) (*ipam.Page, error) {
	p, err := m.load(base)
	if err != nil {
		return nil, err
	}
	if p.hidden != nil {
		return p.hidden, nil
	}
	return p.bits, nil
}

// load reads a page. A file that is missing or has the wrong size counts as an
// empty page.
func (m *pages) load(base netip.Addr) (*page, error) {
	if p, ok := m.loaded[base]; ok {
		return p, nil
	}
	var data [ipam.PageBytes]byte
	f, err := m.dir.OpenFile(pageName(base), os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, mapError(err, m.dir)
	default:
		info, err := f.Stat()
		if err == nil && info.Size() == ipam.PageBytes {
			_, err = f.ReadAt(data[:], 0)
		}
		f.Close()
		if err != nil {
			return nil, mapError(err, m.dir)
		}
	}
	p := &page{bits: ipam.ParsePage(&data)}
	m.loaded[base] = p
	return p, nil
}

// take marks addr as taken. An error is ignored, because in the map a taken address may
// look free.
func (m *pages) take(addr netip.Addr) { _ = m.mark(addr, true) }

// free marks addr as free.
func (m *pages) free(addr netip.Addr) error { return m.mark(addr, false) }

// mark changes the page in memory, even if the file cannot be written.
func (m *pages) mark(addr netip.Addr, taken bool) error {
	base, i := ipam.PageBase(addr), ipam.PageIndex(addr)
	p, err := m.load(base)
	if err != nil {
		return err
	}
	if p.hidden != nil {
		p.hidden.Set(i, taken)
	}
	if p.bits.Taken(i) == taken {
		return nil
	}
	p.bits.Set(i, taken)
	f, err := m.open(base)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte{p.bits.Byte(i / 8)}, int64(i/8))
	return mapError(err, m.dir)
}

// hide excludes addr, which another pool holds, from the choices of this call.
func (m *pages) hide(addr netip.Addr) error {
	p, err := m.load(ipam.PageBase(addr))
	if err != nil {
		return err
	}
	if p.hidden == nil {
		copied := *p.bits
		p.hidden = &copied
	}
	p.hidden.Set(ipam.PageIndex(addr), true)
	return nil
}

// open opens a page's file for writing, with the size of a page.
func (m *pages) open(base netip.Addr) (*os.File, error) {
	f, err := m.dir.OpenFile(pageName(base), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, mapError(err, m.dir)
	}
	info, err := f.Stat()
	if err == nil && info.Size() != ipam.PageBytes {
		err = errors.Join(f.Truncate(0), f.Truncate(ipam.PageBytes))
	}
	if err != nil {
		f.Close()
		return nil, mapError(err, m.dir)
	}
	return f, nil
}

// rebuild makes the pages that begin at bases equal to taken. It writes only
// wrong bytes, because the files are sparse.
func (m *pages) rebuild(taken *ipam.Set, bases map[netip.Addr]bool) error {
	m.loaded = map[netip.Addr]*page{}
	for base := range bases {
		bits := new(ipam.Page)
		if p, _ := taken.Page(base); p != nil {
			*bits = *p
		}
		was, err := m.load(base)
		if err != nil {
			return err
		}
		if err := m.rewrite(base, was.bits, bits); err != nil {
			return err
		}
		was.bits = bits
	}
	return nil
}

// rewrite writes the bytes of a page that differ between was and is.
func (m *pages) rewrite(base netip.Addr, was, is *ipam.Page) error {
	f, err := m.open(base)
	if err != nil {
		return err
	}
	defer f.Close()
	old, now := was.Bytes(), is.Bytes()
	for i := 0; i < len(now); i++ {
		from := i
		for i < len(now) && old[i] != now[i] {
			i++
		}
		if i > from {
			if _, err := f.WriteAt(now[from:i], int64(from)); err != nil {
				return mapError(err, m.dir)
			}
		}
	}
	return nil
}

func mapError(err error, dir *statefile.Dir) error {
	return failure.From(err, failure.IO, "map of the addresses in %s", dir.Path()).Cure("make the directory writable for root and free space on its file system")
}
