package rdma

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// GIDs reads the GID table of a port from the namespace's sysfs, because
// netlink does not have it. The error wraps [ErrNotFound] if the namespace has
// no such device or port.
func (c *Core) GIDs(d Device, port uint32) (ibaddr.GIDTable, error) {
	var t ibaddr.GIDTable
	err := c.inNetns(func() error { return c.steady(d, func() (err error) { t, err = c.gids(d, port, nil); return err }) })
	return t, err
}

// gids reads the table. If want is not nil, gids returns only the entries with that value.
func (c *Core) gids(d Device, port uint32, want *ibaddr.GID) (t ibaddr.GIDTable, err error) {
	if dir := portDir(d, port); filepath.IsLocal(dir) {
		var root string
		if root, err = c.sys(); err == nil {
			t, err = ibaddr.ReadGIDs(filepath.Join(root, dir), want)
		}
	}
	if err == nil && t.Size == 0 {
		return ibaddr.GIDTable{}, fmt.Errorf("%w %s with port %d in netns %s", ErrNotFound, d.Name, port, c.ns.Path)
	}
	return t, failure.Wrap(err, failure.IO, "read the GIDs of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
}

// PortGUID returns the GUID of an InfiniBand port, which is the interface identifier of entry 0 of
// the port's GID table.
func (c *Core) PortGUID(d Device, port uint32) (ibaddr.GUID, error) {
	var gid ibaddr.GID
	err := c.inNetns(func() error {
		return c.steady(d, func() error {
			text, err := c.readSys(filepath.Join(portDir(d, port), "gids/0"))
			if err == nil {
				gid, err = ibaddr.ParseGID(text)
			}
			return err
		})
	})
	return gid.Interface(), failure.Wrap(err, failure.IO, "read the GUID of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
}

// errNoGID is wrapped if no GID of a port matches.
var errNoGID = errors.New("no such GID")

// FindGID returns the RoCE v2 entry for an address of the interface netdev, which may be in any
// namespace: in shared mode one table has the GIDs of all pods on a port. The error wraps errNoGID
// if there is no such entry. It names the other interfaces that have the address.
func (c *Core) FindGID(d Device, port uint32, ip netip.Addr, netdev string) (ibaddr.GIDEntry, error) {
	want := ibaddr.GIDOf(ip)
	var t ibaddr.GIDTable
	err := c.inNetns(func() error { return c.steady(d, func() (err error) { t, err = c.gids(d, port, &want); return err }) })
	if err != nil {
		return ibaddr.GIDEntry{}, err
	}
	return pickGID(t, d, port, ip, netdev)
}

func pickGID(t ibaddr.GIDTable, d Device, port uint32, ip netip.Addr, netdev string) (ibaddr.GIDEntry, error) {
	var entries []ibaddr.GIDEntry
	var others []string
	for _, e := range t.Entries {
		switch {
		case e.GID != ibaddr.GIDOf(ip) || e.Type != ibaddr.RoCEv2:
		case e.Netdev == netdev:
			entries = append(entries, e)
		default:
			others = append(others, fmt.Sprintf("%q (index %d)", e.Netdev, e.Index))
		}
	}
	switch {
	case len(entries) == 1:
		return entries[0], nil
	case len(entries) > 1:
		// The interface of each pod may be called "net1". If two such interfaces on one port have
		// the same address, nobody can tell to which an entry belongs.
		return ibaddr.GIDEntry{}, failure.New(failure.Mismatch, "%s port %d: two interfaces named %q have the address %s (GID indexes %d and %d)",
			d.Name, port, netdev, ip, entries[0].Index, entries[1].Index).
			Cure("give each pod its own address")
	case len(others) > 0:
		return ibaddr.GIDEntry{}, fmt.Errorf("%w: %s port %d has the address %s as GID of %s, not of %q",
			errNoGID, d.Name, port, ip, strings.Join(others, " and "), netdev)
	}
	return ibaddr.GIDEntry{}, fmt.Errorf("%w: %s port %d has no RoCE v2 GID for the address %s of %q", errNoGID, d.Name, port, ip, netdev)
}

// AwaitGID is like [Core.FindGID], but waits for the entry until ctx ends: the kernel adds the GIDs
// of an address some time after the address (roce_gid_mgmt works in a queue).
func (c *Core) AwaitGID(ctx context.Context, d Device, port uint32, ip netip.Addr, netdev string) (ibaddr.GIDEntry, error) {
	var found ibaddr.GIDEntry
	var last error
	err := await(ctx, func() (bool, error) {
		found, last = c.FindGID(d, port, ip, netdev)
		if errors.Is(last, errNoGID) || errors.Is(last, ErrNotFound) {
			return false, nil
		}
		return last == nil, last
	})
	if err == nil || last == nil || !errors.Is(last, errNoGID) && !errors.Is(last, ErrNotFound) {
		return found, err
	}
	return ibaddr.GIDEntry{}, failure.From(last, failure.TryAgain, "wait for a GID (%v)", err).Cure("%s", c.gidCure(d, port))
}

// gidCure returns a cure for the likely reason why a GID is missing.
func (c *Core) gidCure(d Device, port uint32) string {
	t, err := c.GIDs(d, port)
	if err == nil && t.Free() < 2 {
		return fmt.Sprintf("use fewer addresses on this NIC, because the table is full (%d of %d entries)", len(t.Entries), t.Size)
	}
	return "check whether the address belongs to another RDMA port; if the address's prefix length was changed, the kernel removed the GID, so set the interface down and up"
}

// WatchGIDs returns a GIDWatch that has seen the table as it is now. The caller must close the
// GIDWatch. The error wraps [ErrNotFound] if the namespace has no such device or port.
func (c *Core) WatchGIDs(d Device, port uint32) (*ibaddr.GIDWatch, error) {
	t, err := c.GIDs(d, port)
	if err != nil {
		return nil, err
	}
	var w *ibaddr.GIDWatch
	err = c.inNetns(func() error {
		root, err := c.sys()
		if err == nil {
			w, err = ibaddr.WatchGIDs(filepath.Join(root, portDir(d, port)), t)
		}
		return c.ifGone(err, d)
	})
	if err != nil {
		return nil, failure.Wrap(err, failure.IO, "open the GIDs of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
	}
	return w, nil
}
