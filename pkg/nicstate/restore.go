package nicstate

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/link/settings"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Restore restores the state s of l, which the caller must have just read from n. It changes only what differs. It continues
// after errors, and returns two kinds of errors:
//
// err: the link itself is not in its former state (name, altnames, alias, MTU, MAC, queue length, flags, settings, group,
// master, up). Another call may succeed. If err wraps [link.ErrNotFound], the link has left.
//
// lost: an address, route, rule, neighbor or sysctl that the kernel no longer accepts, often because the host no longer has what
// the object needs (a gateway that was reached by another NIC, a nexthop object). A master that is gone is lost as well. Another
// call will not help.
//
// Restore leaves the routes of routing daemons to the daemons. It also leaves the addresses of VRRP daemons to the daemons, but
// it returns these addresses as lost.
//
// Queueing disciplines and filters (tc) and the attributes of a bridge port are not in a snapshot. The kernel's usual changes to
// a link that goes down and up happen to l as well: the sysctl ipv6/conf/mtu is the link's MTU again, and the link has a
// link-local address made from its current MAC.
func Restore(n *netns.Netns, l *link.Link, s *Snapshot) (lost []error, err error) {
	index := l.Index
	// The pod may have given the link one of the link's own names as an altname.
	extraErr := link.KeepAltNames(n, l, s.AltNames)
	// Sysctls are found by the name of the link. If the link does not have its own name again, the
	// name may lead to another link's sysctls.
	name := s.Name
	renameErr := restoreName(n, l, s)
	if renameErr != nil {
		name = l.Name
	}
	errs := []error{extraErr, renameErr, addAltNames(n, l, s), restoreAttributes(n, l, s)}
	missing, err := restoreMaster(n, l, s)
	errs = append(errs, err)
	lost = append(lost, missing, restoreSysctls(n, index, name, s.Sysctls))
	device.Adjust(n, index, name, l.IsUp(), s.Device)
	if s.Up != l.IsUp() {
		set := link.SetUp
		if !s.Up {
			set = link.SetDown
		}
		errs = append(errs, failure.Context(set(n, index), "set %s up=%v", s.Name, s.Up))
	}
	// After the sysctls, because a link that accepts no router advertisements has no token.
	lost = append(lost, failure.Context(settings.RestoreToken(n, l.Index, s.Token), "IPv6 token of %s", s.Name))
	addressed, virtual := s.withoutVirtual()
	lost = append(append(lost, replayAddresses(n, index, addressed, true)...), virtual...)
	lost = append(lost, ReplayRoutes(n, index, s.configured())...)
	lost = append(lost, replayRules(n, s)...)
	lost = append(lost, replayNeighbors(n, index, s)...)
	lost, err = slices.DeleteFunc(lost, func(e error) bool { return e == nil }), errors.Join(errs...)
	if len(lost) > 0 || err != nil {
		if left := link.StillThere(n, index); left != nil {
			return nil, left // nothing is lost: another call may find the link
		}
	}
	return lost, err
}

// Renew is for a link l that the kernel has made in place of the snapshot's link. It sets on l what a link keeps when it moves
// to another namespace, and the altnames. left are the settings of the device that still differ. l need not have the snapshot's
// name.
func Renew(n *netns.Netns, l *link.Link, s *Snapshot) (left []link.Changed, err error) {
	if err := restoreAttributes(n, l, s); err != nil {
		return nil, err
	}
	// The kernel or udev may already have given the link one of these names.
	if err := addAltNames(n, l, s); err != nil {
		left = append(left, link.Changed{Setting: "altnames", Err: err})
	}
	return append(left, device.Restore(n, l.Index, l.Name, s.Device)...), nil
}

// restoreSysctls sets the sysctls of the link with this index and name.
func restoreSysctls(n *netns.Netns, index int, name string, want map[string]string) error {
	attrs, err := link.ReadAttrs(n, index) // read again, because a change of the MTU changes a sysctl
	if err != nil || attrs.Text(unix.IFLA_IFNAME) != name {
		return sysctl.Set(n, name, want)
	}
	return sysctl.SetKnowing(n, name, want, sysctl.OfAttrs(attrs))
}

func restoreName(n *netns.Netns, l *link.Link, s *Snapshot) error {
	if l.Name == s.Name {
		return nil
	}
	return failure.Context(link.Rename(n, l.Index, s.Name), "rename %s to %s", l.Name, s.Name)
}

// addAltNames adds the altnames that l lacks, in the order of s.
func addAltNames(n *netns.Netns, l *link.Link, s *Snapshot) error {
	have := slices.DeleteFunc(slices.Clone(l.AltNames), func(name string) bool { return !slices.Contains(s.AltNames, name) })
	same := 0
	for same < len(have) && have[same] == s.AltNames[same] {
		same++
	}
	kept := &link.Link{Index: l.Index, Name: s.Name, AltNames: have}
	errs := []error{link.KeepAltNames(n, kept, s.AltNames[:same])}
	for _, want := range s.AltNames[same:] {
		errs = append(errs, failure.Context(n.Handle().LinkAddAltName(link.Ref(l.Index), want), "altname %s of %s", want, s.Name))
	}
	return errors.Join(errs...)
}

func restoreAttributes(n *netns.Netns, l *link.Link, s *Snapshot) error {
	attrs, err := link.AttrsOf(n, l)
	if err != nil {
		return err
	}
	errs := []error{failure.Context(settings.RestoreBroadcast(n, l, attrs, s.Broadcast), "link-layer broadcast address of %s", s.Name)}
	r := link.Ref(l.Index)
	if l.Alias != s.Alias {
		errs = append(errs, failure.Context(n.Handle().LinkSetAlias(r, s.Alias), "alias of %s", s.Name))
	}
	if want := s.macFor(l); want != "" && link.MACText(l.MAC) != want {
		mac, err := net.ParseMAC(want)
		if err == nil {
			err = restoreMAC(n, l, mac)
		}
		errs = append(errs, failure.Context(err, "MAC of %s", s.Name))
	}
	changed, err := settings.RestoreIPoIB(n, l, attrs, s.IPoIB)
	errs = append(errs, failure.Context(err, "IPoIB mode of %s", s.Name))
	if l.MTU != s.MTU || changed {
		errs = append(errs, failure.Context(link.SetMTU(n, l.Index, s.MTU), "MTU of %s", s.Name))
	}
	if l.TxQueueLen != s.TxQueueLen {
		errs = append(errs, failure.Context(n.Handle().LinkSetTxQLen(r, s.TxQueueLen), "queue length of %s", s.Name))
	}
	if l.Group != s.Group {
		errs = append(errs, failure.Context(n.Handle().LinkSetGroup(r, int(s.Group)), "group of %s", s.Name))
	}
	if l.SettableFlags() != s.Flags {
		errs = append(errs, failure.Context(link.SetFlags(n, l.Index, s.Flags), "flags of %s", s.Name))
	}
	errs = append(errs, failure.Context(settings.Restore(n, l.Index, attrs, s.Settings), "settings of %s", s.Name))
	return errors.Join(errs...)
}

// restoreMAC sets the MAC. Most drivers accept a MAC only while the link is down (eth_prepare_mac_addr_change), but an earlier
// try, or a network manager of the host, may have set the link up.
func restoreMAC(n *netns.Netns, l *link.Link, mac net.HardwareAddr) error {
	err := link.SetMAC(n, l.Index, mac)
	if !l.IsUp() || !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := link.SetDown(n, l.Index); err != nil {
		return err
	}
	return errors.Join(link.SetMAC(n, l.Index, mac), link.SetUp(n, l.Index))
}

// macFor returns the MAC that l must have. That is the snapshot's MAC. For an InfiniBand interface with another queue pair, it
// is l's address with the snapshot's GUID.
func (s *Snapshot) macFor(l *link.Link) string {
	if s.IPoIB == nil || s.MAC == "" {
		return s.MAC
	}
	return link.MACText(link.AddressLike(l.MAC, link.ParseMAC(s.MAC)))
}

// restoreMaster adds the link to its bridge, bond, … again. If that master is gone, it returns the
// error as missing.
func restoreMaster(n *netns.Netns, l *link.Link, s *Snapshot) (missing, err error) {
	if s.Master == "" || l.Master != 0 {
		return nil, nil
	}
	master, err := link.ByName(n, s.Master)
	switch {
	case errors.Is(err, link.ErrNotFound):
		return failure.Context(err, "master of %s", s.Name), nil
	case err == nil:
		err = n.Handle().LinkSetMasterByIndex(link.Ref(l.Index), master.Index)
	}
	return nil, failure.Context(err, "master %s of %s", s.Master, s.Name)
}

// ReplayAddresses adds the snapshot's addresses to the link. It returns the
// kernel's errors.
func ReplayAddresses(n *netns.Netns, index int, s *Snapshot) []error {
	return replayAddresses(n, index, s, false)
}

// replayAddresses adds the snapshot's addresses. If settled is true, IPv6 addresses that had passed
// duplicate address detection are valid at once: the kernel refuses routes with a tentative source,
// and without a cable the detection never begins.
func replayAddresses(n *netns.Netns, index int, s *Snapshot, settled bool) []error {
	var failures []error
	for _, r := range s.Addresses {
		header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofIfAddrmsg)
		if err != nil {
			failures = append(failures, lost(err, "address", r.Text, s))
			continue
		}
		binary.NativeEndian.PutUint32(header[4:], uint32(index))
		attrs, alive := age(header, attrs, time.Since(s.Taken))
		if !alive {
			continue
		}
		if err := link.IfGone(n, replayAddress(n, header, attrs, settled), index); err != nil {
			failures = append(failures, lost(err, "address", r.Text, s))
		}
	}
	return failures
}

// replayAddress adds one address. An existing address stays unchanged: the kernel added it when the
// link went up (link-local), or a router has announced it since, with a newer lifetime.
func replayAddress(n *netns.Netns, header []byte, attrs nlattr.Attrs, settled bool) error {
	flags := link.AddressFlags(header, attrs)
	const checked = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_OPTIMISTIC | unix.IFA_F_NODAD
	skipDAD := settled && header[0] == unix.AF_INET6 && flags&checked == 0
	first := attrs
	if skipDAD {
		first = withFlags(attrs, flags|unix.IFA_F_NODAD)
	}
	err := n.Request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header, first)
	if errors.Is(err, unix.EEXIST) {
		if !skipDAD {
			return nil
		}
		// An earlier process may have set the flag, and been killed before the next step.
		skipDAD, err = isUnchecked(n, header, attrs)
	}
	if err != nil || !skipDAD {
		return err
	}
	// Clears the flag "without detection".
	return n.Request(unix.RTM_NEWADDR, unix.NLM_F_REPLACE, header, withFlags(attrs, flags))
}

// isUnchecked reports whether the address has the flag "without detection". The
// kernel's own addresses never have it.
func isUnchecked(n *netns.Netns, header []byte, attrs nlattr.Attrs) (bool, error) {
	ip, _ := attrs.Get(unix.IFA_ADDRESS)
	addrs, err := link.ListAddresses(n, int(binary.NativeEndian.Uint32(header[4:])))
	return slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
		return a.IP.Equal(ip) && a.Flags&unix.IFA_F_NODAD != 0
	}), err
}

func withFlags(attrs nlattr.Attrs, flags uint32) nlattr.Attrs {
	return append(attrs.Without(unix.IFA_FLAGS),
		nlattr.Attr{Type: unix.IFA_FLAGS, Value: binary.NativeEndian.AppendUint32(nil, flags)})
}

// foreverLife is the kernel's "no end" (INFINITY_LIFE_TIME of include/net/addrconf.h).
const foreverLife = ^uint32(0)

// age subtracts the time passed from the lifetimes of an address (IFA_CACHEINFO: preferred, valid,
// in seconds). It reports whether the address is still valid. An infinite lifetime does not change.
func age(header []byte, attrs nlattr.Attrs, passed time.Duration) (nlattr.Attrs, bool) {
	info, ok := attrs.Get(unix.IFA_CACHEINFO)
	if !ok || len(info) < 8 {
		return attrs, true
	}
	attrs = attrs.Without(unix.IFA_CACHEINFO)
	aged := slices.Clone(info)
	if link.AddressFlags(header, attrs)&unix.IFA_F_DEPRECATED != 0 {
		// The kernel reports every IPv4 address that has an infinite lifetime as preferred.
		binary.NativeEndian.PutUint32(aged, 0)
	}
	if binary.NativeEndian.Uint32(aged[4:]) == foreverLife && binary.NativeEndian.Uint32(aged) == foreverLife {
		return attrs, true
	}
	for _, off := range []int{0, 4} {
		if left := binary.NativeEndian.Uint32(aged[off:]); left != foreverLife {
			binary.NativeEndian.PutUint32(aged[off:], left-min(left, uint32(max(passed.Seconds(), 0))))
		}
	}
	if binary.NativeEndian.Uint32(aged[4:]) == 0 {
		return nil, false
	}
	return append(attrs, nlattr.Attr{Type: unix.IFA_CACHEINFO, Value: aged}), true
}

func replayNeighbors(n *netns.Netns, index int, s *Snapshot) []error {
	var failures []error
	for _, r := range s.Neighbors {
		header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofNdMsg)
		if err == nil {
			binary.NativeEndian.PutUint32(header[4:], uint32(index))
			err = n.Request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, header,
				attrs.Without(unix.NDA_CACHEINFO, unix.NDA_PROBES))
		}
		if err != nil {
			failures = append(failures, lost(err, "neighbor", r.Text, s))
		}
	}
	return failures
}
