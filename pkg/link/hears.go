package link

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HearsFor reports whether the link with this index accepts unicast frames for
// mac, beside its own address: the address is in its filter list. Macvlans on
// the link add theirs while they are up, in any namespace (macvlan_open,
// dev_uc_add).
func (n *Netns) HearsFor(index int, mac string) (bool, error) {
	entries, err := retryDump(func() ([]netlink.Neigh, error) { return n.handle.NeighList(index, unix.AF_BRIDGE) })
	if err != nil {
		return false, fmt.Errorf("list what link %d of netns %s hears: %w", index, n.Path, err)
	}
	return slices.ContainsFunc(entries, func(e netlink.Neigh) bool {
		return e.Flags&netlink.NTF_SELF != 0 && macText(e.HardwareAddr) == mac
	}), nil
}
