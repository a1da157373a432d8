package link

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Probe asks the kernel about macvlans in namespaces that cannot be searched, because they
// have no path. The zero value is ready to use. It makes a netns of its own when it first
// needs one; Close ends that.
type Probe struct {
	once sync.Once
	ns   *Netns
	err  error
}

// Close ends the probe's netns, if there is one.
func (p *Probe) Close() { p.ns.Close() }

// MacvlanIsUp reports whether a macvlan with this MAC is up on the link of n with this
// index, in any namespace. It makes a macvlan of the same MAC: the kernel sets that up
// only if no other is up (macvlan_addr_busy). While it runs, setting up another macvlan
// with this MAC fails: the caller makes sure that no attachment has the MAC, and asks
// [Netns.Accepts] first. Where the probe cannot have a netns of its own, for example
// because /proc/sys is read-only, MacvlanIsUp returns true.
func (p *Probe) MacvlanIsUp(n *Netns, index int, mac net.HardwareAddr) (bool, error) {
	p.once.Do(func() { p.ns, p.err = newNetns() })
	if p.err != nil {
		return true, nil //nolint:nilerr // see above
	}
	name := fmt.Sprintf("probe%08x", rand.Uint32()) // not that of a link of n: kernels before 6.2 refuse it
	err := n.CreateMacvlan(p.ns, Macvlan{Name: name, Master: index, Mode: "bridge", MAC: mac})
	if errors.Is(err, unix.EBUSY) {
		return false, nil // the link belongs to an ipvlan, a bridge or a bond, so it has no macvlans
	}
	if err != nil {
		return false, fmt.Errorf("make a macvlan %s on link %d of netns %s, to see whether another is up: %w", mac, index, n.Path, err)
	}
	l, err := p.ns.ByName(name)
	if err != nil {
		return false, err
	}
	err = p.ns.SetUp(l.Index)
	deleted := p.ns.Delete(l.Index)
	if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EBUSY) {
		return true, deleted
	}
	return false, errors.Join(err, deleted)
}

// onePiece is a number of entries that surely fit into one message of a dump.
const onePiece = 50

// Accepts reports whether the link with this index accepts frames for mac, in addition to those for its own address:
// mac is in one of its filter lists (ndo_dflt_fdb_dump). Children on the link add their MACs while they are up
// (macvlan_open). But a pod with a macvlan can add any address (SIOCADDMULTI, PACKET_MR_UNICAST): see
// [Probe.MacvlanIsUp]. If the lists are so long that the kernel sends them in pieces, between which they can change,
// Accepts returns true.
func (n *Netns) Accepts(index int, mac net.HardwareAddr) (bool, error) {
	entries, err := retryDump(func() ([]netlink.Neigh, error) { return n.handle.NeighList(index, unix.AF_BRIDGE) })
	if err != nil {
		return false, fmt.Errorf("list addresses that link %d of netns %s accepts: %w", index, n.Path, err)
	}
	if len(entries) == 0 {
		return false, n.stillThere(index)
	}
	if len(entries) > onePiece {
		return true, nil
	}
	for _, e := range entries {
		if e.Flags&netlink.NTF_SELF != 0 && macText(e.HardwareAddr) == mac.String() {
			return true, nil
		}
	}
	return false, nil
}

// newNetns makes a network namespace without a path, which ends with the last file that
// is open on it. Its links have no IPv6, so they send nothing when they are set up.
func newNetns() (n *Netns, err error) {
	var all sync.WaitGroup
	all.Go(func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with this function
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a network namespace: %w", err)
			return
		}
		err = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // the kernel has no IPv6
		}
		if err == nil {
			n, err = CurrentNetns()
		}
	})
	all.Wait()
	return n, err
}
