package link

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HearsFor reports whether the link with this index accepts unicast frames for
// mac, beside its own address: the address is in its unicast filter list. Macvlans
// on the link add theirs while they are up, in any namespace (macvlan_open,
// dev_uc_add).
//
// The list of multicast addresses does not count: a pod can add any address to that of
// its macvlan (SIOCADDMULTI), which the kernel copies to the link below. It could keep
// the addresses of dead pods by their MACs.
func (n *Netns) HearsFor(index int, mac string) (bool, error) {
	// The kernel lists the addresses of both lists alike (ndo_dflt_fdb_dump).
	entries, err := retryDump(func() ([]netlink.Neigh, error) { return n.handle.NeighList(index, unix.AF_BRIDGE) })
	if err != nil {
		return false, fmt.Errorf("list what link %d of netns %s hears: %w", index, n.Path, err)
	}
	heard := 0
	for _, e := range entries {
		if e.Flags&netlink.NTF_SELF != 0 && macText(e.HardwareAddr) == mac {
			heard++
		}
	}
	if heard != 1 {
		return heard > 0, nil // in none, or in both
	}
	multicast, err := n.hasMulticast(index, mac)
	return !multicast && err == nil, err
}

// hasMulticast reports whether mac is in the list of multicast addresses of the link
// with this index (dev_mc_seq_show).
func (n *Netns) hasMulticast(index int, mac string) (bool, error) {
	var list []byte
	err := n.Do(func() (err error) {
		list, err = os.ReadFile("/proc/thread-self/net/dev_mcast")
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list multicast addresses in netns %s: %w", n.Path, err)
	}
	for line := range strings.Lines(string(list)) {
		// Index, name, references, users, address.
		if f := strings.Fields(line); len(f) == 5 && f[0] == strconv.Itoa(index) && f[4] == strings.ReplaceAll(mac, ":", "") {
			return true, nil
		}
	}
	return false, nil
}
