package ibaddr

import (
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

// ParseGID reads the text of sysfs.
func ParseGID(s string) (GID, error) {
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

// ReadGIDs reads the GID table of a port, whose directory in sysfs is port. If want is not nil,
// ReadGIDs returns only the entries with that value. The table of a port that does not exist has the
// size 0.
func ReadGIDs(port string, want *GID) (GIDTable, error) {
	files, err := os.ReadDir(filepath.Join(port, "gids"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0 {
		return GIDTable{}, nil
	}
	t := GIDTable{Size: len(files)}
	if err == nil {
		t.Entries, err = readEntries(port, files, want)
	}
	if err != nil {
		return GIDTable{}, err
	}
	slices.SortFunc(t.Entries, func(a, b GIDEntry) int { return a.Index - b.Index })
	return t, nil
}

func readEntries(port string, files []fs.DirEntry, want *GID) ([]GIDEntry, error) {
	// The directory may have hundreds of files, and a caller that waits reads them repeatedly. So
	// the path to the directory is resolved only once.
	dir, err := os.Open(filepath.Join(port, "gids"))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var entries []GIDEntry
	for _, file := range files {
		gid, err := readGID(int(dir.Fd()), file.Name())
		if err != nil {
			return nil, err
		}
		if gid.IsZero() || want != nil && gid != *want {
			continue
		}
		e, err := readEntry(port, file.Name(), gid)
		if err != nil {
			return nil, err
		}
		if e != nil {
			entries = append(entries, *e)
		}
	}
	if _, err := os.Lstat(port); err != nil {
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
	return ParseGID(strings.TrimSpace(string(text[:n])))
}

// readEntry returns the entry of a GID, or nil if the entry was removed meanwhile.
func readEntry(port, name string, gid GID) (*GIDEntry, error) {
	index, err := strconv.Atoi(name)
	if err != nil {
		return nil, err
	}
	kind, err := readLine(filepath.Join(port, "gid_attrs", "types", name))
	if err != nil {
		return nil, notGone(err)
	}
	netdev, err := readLine(filepath.Join(port, "gid_attrs", "ndevs", name))
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

func readLine(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}
