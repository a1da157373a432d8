package rdma

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// GID is the value of an entry in a port's GID table. Its text has the form in sysfs: eight full
// groups, "0000:0000:0000:0000:0000:ffff:0a00:0001".
type GID [16]byte

// GIDOf returns the GID of an address. For an IPv6 address that is the address itself. For an IPv4
// address it is the address mapped to IPv6 (ipv6_addr_set_v4mapped in the kernel's roce_gid_mgmt).
// If an IPv4 address has a peer, the kernel uses the peer instead (ifa_address in addr_event).
func GIDOf(ip netip.Addr) GID { return ip.As16() }

// EntriesOf returns how many entries of a port's GID table the kernel makes for a link with this
// number of addresses: one entry of each RoCE type for each address, and for the IPv6 link-local
// address, which a link without IPv6 lacks. The link may be any link on the port's NIC, in any
// namespace. The kernel makes the entries in both RDMA modes, even if the link's pod has no RDMA
// (roce_gid_mgmt).
func EntriesOf(addresses int) int { return 2 * (addresses + 1) }

// IsZero reports whether g is the value of an empty entry.
func (g GID) IsZero() bool { return g == GID{} }

// Addr returns the address of the GID.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// Interface returns the interface identifier, which is the GUID of an InfiniBand port.
func (g GID) Interface() GUID { return GUID(binary.BigEndian.Uint64(g[8:])) }

func (g GID) String() string {
	digits := hex.EncodeToString(g[:])
	groups := make([]string, 0, 8)
	for i := 0; i < len(digits); i += 4 {
		groups = append(groups, digits[i:i+4])
	}
	return strings.Join(groups, ":")
}

// parseGID reads the text of sysfs.
func parseGID(s string) (GID, error) {
	ip, err := netip.ParseAddr(s)
	// A zone or a dotted IPv4 address would be an address, but not a GID.
	if err != nil || !ip.Is6() || ip.Zone() != "" || strings.Contains(s, ".") {
		return GID{}, fmt.Errorf("%q is not a GID", s)
	}
	return ip.As16(), nil
}

// GIDType is the protocol of an entry, by its name in sysfs.
type GIDType string

// The types that Linux has. On Ethernet each address has one entry of each RoCE type. The first
// type also stands for plain InfiniBand.
const (
	RoCEv1 GIDType = "IB/RoCE v1"
	RoCEv2 GIDType = "RoCE v2"
)

// GIDEntry is an entry of a port's GID table that is in use.
type GIDEntry struct {
	Index  int
	GID    GID
	Type   GIDType
	Netdev string // the interface with the address, by its name in its own namespace; empty on InfiniBand
}

// GIDTable is the GID table of a port.
type GIDTable struct {
	Size    int
	Entries []GIDEntry // the entries in use, by index
}

// Free returns the number of unused entries. A link takes [EntriesOf] of them.
func (t GIDTable) Free() int { return t.Size - len(t.Entries) }

// GIDs reads the GID table of a port from the namespace's sysfs, because
// netlink does not have it. The error wraps [ErrNotFound] if the namespace has
// no such device or port.
func (c *Core) GIDs(d Device, port uint32) (GIDTable, error) {
	var t GIDTable
	err := c.inNetns(func() error { return c.steady(d, func() (err error) { t, err = c.gids(d, port, nil); return err }) })
	return t, err
}

// gids reads the table. If want is not nil, gids returns only the entries with that value.
func (c *Core) gids(d Device, port uint32, want *GID) (GIDTable, error) {
	at := filepath.Join("class/infiniband", d.Name, "ports", strconv.Itoa(int(port)))
	names, err := c.list(filepath.Join(at, "gids"))
	if err == nil && len(names) == 0 {
		return GIDTable{}, fmt.Errorf("%w %s with port %d in netns %s", ErrNotFound, d.Name, port, c.ns.Path)
	}
	t := GIDTable{Size: len(names)}
	if err == nil {
		t.Entries, err = c.gidEntries(at, names, want)
	}
	if err != nil {
		return GIDTable{}, failure.Wrap(err, failure.IO, "read the GIDs of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
	}
	slices.SortFunc(t.Entries, func(a, b GIDEntry) int { return a.Index - b.Index })
	return t, nil
}

// portGUID returns the GUID of an InfiniBand port, which is the interface identifier of entry 0 of
// the port's GID table.
func (c *Core) portGUID(d Device, port uint32) (GUID, error) {
	var gid GID
	err := c.inNetns(func() error {
		return c.steady(d, func() error {
			text, err := c.readSys(filepath.Join("class/infiniband", d.Name, "ports", strconv.Itoa(int(port)), "gids/0"))
			if err == nil {
				gid, err = parseGID(text)
			}
			return err
		})
	})
	return gid.Interface(), failure.Wrap(err, failure.IO, "read the GUID of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
}

func (c *Core) gidEntries(at string, names []string, want *GID) ([]GIDEntry, error) {
	root, err := c.sys()
	if err != nil {
		return nil, err
	}
	// The directory may have hundreds of files, and a caller that waits reads them repeatedly. So
	// the path to the directory is resolved only once.
	dir, err := os.Open(filepath.Join(root, at, "gids"))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var entries []GIDEntry
	for _, name := range names {
		gid, err := readGID(int(dir.Fd()), name)
		if err != nil {
			return nil, err
		}
		if gid.IsZero() || want != nil && gid != *want {
			continue
		}
		e, err := c.gidEntry(at, name, gid)
		if err != nil {
			return nil, err
		}
		if e != nil {
			entries = append(entries, *e)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, at)); err != nil {
		return nil, err // the device left meanwhile, so entries that seemed to be removed may exist
	}
	return entries, nil
}

// readGID reads one file of a port's gids. It returns zero if the file no longer exists.
func readGID(dir int, name string) (GID, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return GID{}, notGone(err)
	}
	defer unix.Close(fd)
	var text [64]byte
	n, err := unix.Read(fd, text[:])
	if err != nil {
		return GID{}, notGone(err)
	}
	return parseGID(strings.TrimSpace(string(text[:n])))
}

// gidEntry returns the entry of a GID, or nil if the entry was removed meanwhile.
func (c *Core) gidEntry(at, name string, gid GID) (*GIDEntry, error) {
	index, err := strconv.Atoi(name)
	if err != nil {
		return nil, err
	}
	kind, err := c.readSys(filepath.Join(at, "gid_attrs", "types", name))
	if err != nil {
		return nil, notGone(err)
	}
	netdev, err := c.readSys(filepath.Join(at, "gid_attrs", "ndevs", name))
	if notGone(err) != nil {
		return nil, err
	}
	return &GIDEntry{Index: index, GID: gid, Type: GIDType(kind), Netdev: netdev}, nil
}

// notGone returns err, the error of a read, or nil if err means that the entry no longer exists:
// the kernel answers EINVAL or ENODEV for an attribute of an empty entry.
func notGone(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// errNoGID is wrapped if no GID of a port matches.
var errNoGID = errors.New("no such GID")

// FindGID returns the RoCE v2 entry for an address of the interface netdev, which may be in any
// namespace: in shared mode one table has the GIDs of all pods on a port. The error wraps errNoGID
// if there is no such entry. It names the other interfaces that have the address.
func (c *Core) FindGID(d Device, port uint32, ip netip.Addr, netdev string) (GIDEntry, error) {
	want := GIDOf(ip)
	var t GIDTable
	err := c.inNetns(func() error { return c.steady(d, func() (err error) { t, err = c.gids(d, port, &want); return err }) })
	if err != nil {
		return GIDEntry{}, err
	}
	return pickGID(t, d, port, ip, netdev)
}

func pickGID(t GIDTable, d Device, port uint32, ip netip.Addr, netdev string) (GIDEntry, error) {
	var mine []GIDEntry
	var others []string
	for _, e := range t.Entries {
		switch {
		case e.GID != GIDOf(ip) || e.Type != RoCEv2:
		case e.Netdev == netdev:
			mine = append(mine, e)
		default:
			others = append(others, fmt.Sprintf("%q (index %d)", e.Netdev, e.Index))
		}
	}
	switch {
	case len(mine) == 1:
		return mine[0], nil
	case len(mine) > 1:
		// The interface of each pod may be called "net1". If two such interfaces on one port have
		// the same address, nobody can tell to which an entry belongs.
		return GIDEntry{}, failure.New(failure.Mismatch, "%s port %d: two interfaces named %q have the address %s (GID indexes %d and %d)",
			d.Name, port, netdev, ip, mine[0].Index, mine[1].Index).
			Cure("give each pod its own address")
	case len(others) > 0:
		return GIDEntry{}, fmt.Errorf("%w: %s port %d has the address %s as GID of %s, not of %q",
			errNoGID, d.Name, port, ip, strings.Join(others, " and "), netdev)
	}
	return GIDEntry{}, fmt.Errorf("%w: %s port %d has no RoCE v2 GID for the address %s of %q", errNoGID, d.Name, port, ip, netdev)
}

// AwaitGID is like [Core.FindGID], but waits for the entry until ctx ends: the kernel adds the GIDs
// of an address some time after the address (roce_gid_mgmt works in a queue).
func (c *Core) AwaitGID(ctx context.Context, d Device, port uint32, ip netip.Addr, netdev string) (GIDEntry, error) {
	var found GIDEntry
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
	return GIDEntry{}, failure.From(last, failure.TryAgain, "wait for a GID (%v)", err).Cure("%s", c.gidCure(d, port))
}

// gidCure returns a cure for the likely reason why a GID is missing.
func (c *Core) gidCure(d Device, port uint32) string {
	t, err := c.GIDs(d, port)
	if err == nil && t.Free() < 2 {
		return fmt.Sprintf("use fewer addresses on this NIC, because the table is full (%d of %d entries)", len(t.Entries), t.Size)
	}
	return "check whether the address belongs to another RDMA port; if the address's prefix length was changed, the kernel removed the GID, so set the interface down and up"
}
