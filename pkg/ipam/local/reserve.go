package local

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// reservations are the reserved addresses of an address space, as one pool sees them. A
// pool reserves an address against the other pools by a link to its record of the address.
// The link is named after the address.
//
// The links are changed under a separate lock. A process may take this lock while it holds
// a pool's lock, but not the other way round.
type reservations struct {
	space *statefile.Dir // the address space
	dir   *statefile.Dir // the directory "reserved" in space
	pool  string         // the name of the pool's directory in space
}

const (
	reservedDir  = "reserved"
	reservedLock = "reserved.lock"
)

func (r *reservations) target(addr netip.Addr) string {
	return "../" + r.pool + "/" + recordName(addr)
}

// owned reports whether this pool has the link for addr.
func (r *reservations) owned(addr netip.Addr) bool {
	now, err := r.dir.Readlink(addr.String())
	return err == nil && now == r.target(addr)
}

// elsewhere reports whether another pool holds addr. A link to a missing record
// does not count.
func (r *reservations) elsewhere(addr netip.Addr) bool {
	target, err := r.dir.Readlink(addr.String())
	if err != nil || target == r.target(addr) {
		return false
	}
	return r.space.Exists(strings.TrimPrefix(target, "../"))
}

// take reserves addr, whose record must exist already. It returns false if another pool has
// reserved addr.
func (r *reservations) take(ctx context.Context, addr netip.Addr) (bool, error) {
	lock, err := r.space.Lock(ctx, reservedLock)
	if err != nil {
		return false, err
	}
	defer release(lock)
	err = r.dir.Symlink(r.target(addr), addr.String())
	if errors.Is(err, fs.ErrExist) {
		if r.elsewhere(addr) {
			return false, nil
		}
		if r.owned(addr) {
			return true, nil
		}
		if err := r.dir.Remove(addr.String()); err != nil {
			return false, err
		}
		err = r.dir.Symlink(r.target(addr), addr.String())
	}
	return err == nil, failure.From(err, failure.IO, "cannot reserve %s in %s", addr, r.dir.Path()).
		Cure("make the directory writable for root and free space on its file system")
}

// free removes the reservation of addr if this pool has made it.
func (r *reservations) free(ctx context.Context, addr netip.Addr) error {
	if !r.owned(addr) {
		return nil
	}
	lock, err := r.space.Lock(ctx, reservedLock)
	if err != nil {
		return err
	}
	defer release(lock)
	if !r.owned(addr) {
		return nil
	}
	return r.dir.Remove(addr.String())
}

// addrs returns the reserved addresses of all pools of the address space.
func (r *reservations) addrs() ([]netip.Addr, error) {
	names, err := entries(r.dir)
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 0, len(names))
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs, nil
}

// tidy removes the reservations whose record does not exist.
func (r *reservations) tidy(ctx context.Context) error {
	addrs, err := r.addrs()
	if err != nil || len(addrs) == 0 {
		return err
	}
	lock, err := r.space.Lock(ctx, reservedLock)
	if err != nil {
		return err
	}
	defer release(lock)
	for _, a := range addrs {
		target, linkErr := r.dir.Readlink(a.String())
		if linkErr == nil && !r.space.Exists(strings.TrimPrefix(target, "../")) {
			err = errors.Join(err, r.dir.Remove(a.String()))
		}
	}
	return err
}
