package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Restore restores the state s of l, which the caller has just read from n, changing
// only what differs. It continues after errors, and returns two kinds of them:
//
// err: the link itself is not as it was (name, altnames, alias, MTU, MAC, queue
// length, flags, settings, group, master, up). Another call may succeed.
//
// An error that wraps [ErrNotFound] means that the link has left.
//
// lost: an address, route, rule, neighbor or sysctl that the kernel no longer
// accepts, often because the host no longer has its prerequisite (a gateway
// that another NIC reached, a nexthop object), or the master, if it is gone.
// Another call will not help.
//
// The routes of routing daemons are not restored: they are the daemons' to bring back. So are
// the addresses of VRRP daemons, which count as lost.
//
// Queueing disciplines and filters (tc), the attributes of a bridge port, and
// the settings of ethtool are not in a snapshot. The kernel's usual changes to
// a link that goes down and up happen to this one too: the sysctl ipv6/conf/mtu
// is the link's MTU again, and there is a link-local address of its current
// MAC.
func (n *Netns) Restore(l *Link, s *Snapshot) (lost []error, err error) {
	index := l.Index
	// The pod may have given it its own name as an altname.
	extraErr := n.KeepAltNames(l, s.AltNames)
	// Sysctls are addressed by the name: if the link does not have its own
	// again, they may be another link's.
	name := s.Name
	renameErr := n.restoreName(l, s)
	if renameErr != nil {
		name = l.Name
	}
	errs := []error{extraErr, renameErr, n.addAltNames(l, s), n.restoreAttributes(l, s)}
	missing, err := n.restoreMaster(l, s)
	errs = append(errs, err)
	lost = append(lost, missing, n.restoreSysctls(index, name, s.Sysctls))
	n.adjustDevice(index, name, l.IsUp(), s.Device)
	if s.Up != l.IsUp() {
		set := n.SetUp
		if !s.Up {
			set = n.SetDown
		}
		errs = append(errs, wrap(set(index), "set %s up=%v", s.Name, s.Up))
	}
	// After the sysctls: a link that accepts no router advertisements has no token.
	lost = append(lost, n.restoreToken(l, s))
	addressed, virtual := s.withoutVirtual()
	lost = append(append(lost, n.replayAddresses(index, addressed, true)...), virtual...)
	lost = append(lost, n.ReplayRoutes(index, s.configured())...)
	lost = append(lost, n.replayRules(s)...)
	lost = append(lost, n.replayNeighbors(index, s)...)
	lost, err = slices.DeleteFunc(lost, func(e error) bool { return e == nil }), errors.Join(errs...)
	if len(lost) > 0 || err != nil {
		if left := n.stillThere(index); left != nil {
			return nil, left // nothing is lost: another call may find it
		}
	}
	return lost, err
}

// Renew sets on l, which the kernel has made in place of the snapshot's link, what a link keeps when it moves
// to another namespace, also its altnames. left are the settings of the device that still differ. l need not have
// the snapshot's name.
func (n *Netns) Renew(l *Link, s *Snapshot) (left []Changed, err error) {
	if err := n.restoreAttributes(l, s); err != nil {
		return nil, err
	}
	// The kernel or udev may have given it one of these names by itself.
	if err := n.addAltNames(l, s); err != nil {
		left = append(left, Changed{"altnames", err})
	}
	return append(left, n.RestoreDevice(l.Index, l.Name, s.Device)...), nil
}

// restoreSysctls sets the sysctls of the link with this index and name.
func (n *Netns) restoreSysctls(index int, name string, settings map[string]string) error {
	attrs, err := n.rawLink(index) // read anew, because a change of the MTU changes one of them
	if err != nil || attrs.Text(unix.IFLA_IFNAME) != name {
		return n.SetSysctls(name, settings)
	}
	return n.setSysctls(name, settings, conf(attrs))
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func (n *Netns) restoreName(l *Link, s *Snapshot) error {
	if l.Name == s.Name {
		return nil
	}
	return wrap(n.Rename(l.Index, s.Name), "rename %s to %s", l.Name, s.Name)
}

// addAltNames adds the altnames that l lacks, in the order of s.
func (n *Netns) addAltNames(l *Link, s *Snapshot) error {
	have := slices.DeleteFunc(slices.Clone(l.AltNames), func(name string) bool { return !slices.Contains(s.AltNames, name) })
	same := 0
	for same < len(have) && have[same] == s.AltNames[same] {
		same++
	}
	kept := &Link{Index: l.Index, Name: s.Name, AltNames: have}
	errs := []error{n.KeepAltNames(kept, s.AltNames[:same])}
	for _, want := range s.AltNames[same:] {
		errs = append(errs, wrap(n.handle.LinkAddAltName(ref(l.Index), want), "altname %s of %s", want, s.Name))
	}
	return errors.Join(errs...)
}

// altNamesAtOnce bounds the altnames in one request: an attribute has room for
// 64 KiB, and an altname takes up to 132 bytes (ALTIFNAMSIZ).
const altNamesAtOnce = 400

// KeepAltNames removes the altnames of l that are not in keep.
func (n *Netns) KeepAltNames(l *Link, keep []string) error {
	extra := slices.DeleteFunc(slices.Clone(l.AltNames), func(name string) bool { return slices.Contains(keep, name) })
	var errs []error
	for some := range slices.Chunk(extra, altNamesAtOnce) {
		switch err := n.removeAltNames(l.Index, some); {
		case err == nil:
			continue
		case errors.Is(err, ErrNotFound):
			return fmt.Errorf("remove altnames of %s: %w", l.Name, err)
		}
		// The kernel stops at the first that it does not find.
		for _, name := range some {
			if err := n.removeAltNames(l.Index, []string{name}); !errors.Is(err, unix.ENOENT) {
				errs = append(errs, wrap(err, "remove altname %s of %s", name, l.Name))
			}
		}
	}
	return errors.Join(errs...)
}

// removeAltNames removes the altnames in few requests: after each request with a
// change the kernel sends the whole list to all listeners (netdev_state_change).
func (n *Netns) removeAltNames(index int, names []string) error {
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	var list nlattr.Attrs
	for _, name := range names {
		list = append(list, nlattr.Attr{Type: unix.IFLA_ALT_IFNAME, Value: nl.ZeroTerminated(name)})
	}
	props := nlattr.Attr{Type: unix.IFLA_PROP_LIST, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, list)}
	return n.ifGone(n.replay(unix.RTM_DELLINKPROP, 0, header.Serialize(), nlattr.Attrs{props}), index)
}

func (n *Netns) restoreAttributes(l *Link, s *Snapshot) error {
	attrs, err := n.attrsOf(l)
	if err != nil {
		return err
	}
	errs := []error{wrap(n.restoreBroadcast(l, attrs, s), "link-layer broadcast address of %s", s.Name)}
	r := ref(l.Index)
	if l.Alias != s.Alias {
		errs = append(errs, wrap(n.handle.LinkSetAlias(r, s.Alias), "alias of %s", s.Name))
	}
	if want := s.macFor(l); want != "" && macText(l.MAC) != want {
		mac, err := net.ParseMAC(want)
		if err == nil {
			err = n.restoreMAC(l, mac)
		}
		errs = append(errs, wrap(err, "MAC of %s", s.Name))
	}
	changed, err := n.restoreIPoIB(l, attrs, s)
	errs = append(errs, wrap(err, "IPoIB mode of %s", s.Name))
	if l.MTU != s.MTU || changed {
		errs = append(errs, wrap(n.SetMTU(l.Index, s.MTU), "MTU of %s", s.Name))
	}
	if l.TxQueueLen != s.TxQueueLen {
		errs = append(errs, wrap(n.handle.LinkSetTxQLen(r, s.TxQueueLen), "queue length of %s", s.Name))
	}
	if l.Group != s.Group {
		errs = append(errs, wrap(n.handle.LinkSetGroup(r, int(s.Group)), "group of %s", s.Name))
	}
	if flagsOf(l.Flags) != s.Flags {
		errs = append(errs, wrap(n.setFlags(l.Index, s.Flags), "flags of %s", s.Name))
	}
	errs = append(errs, wrap(n.restoreSettings(l.Index, attrs, s.Settings), "settings of %s", s.Name))
	return errors.Join(errs...)
}

// restoreMAC sets the MAC. Most drivers take one only while the link is down (eth_prepare_mac_addr_change), and an earlier
// try, or a manager of the host, may have set it up.
func (n *Netns) restoreMAC(l *Link, mac net.HardwareAddr) error {
	err := n.SetMAC(l.Index, mac)
	if !l.IsUp() || !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := n.SetDown(l.Index); err != nil {
		return err
	}
	return errors.Join(n.SetMAC(l.Index, mac), n.SetUp(l.Index))
}

// macFor returns the MAC that l is to have: the snapshot's, and for an InfiniBand interface with another
// queue pair the one with the same GUID.
func (s *Snapshot) macFor(l *Link) string {
	if s.IPoIB == nil || s.MAC == "" {
		return s.MAC
	}
	return macText(addressLike(l.MAC, parseMAC(s.MAC)))
}

// restoreMaster adds the link to its bridge, bond, … again, or returns in
// missing what it lacks.
func (n *Netns) restoreMaster(l *Link, s *Snapshot) (missing, err error) {
	if s.Master == "" || l.Master != 0 {
		return nil, nil
	}
	master, err := n.ByName(s.Master)
	switch {
	case errors.Is(err, ErrNotFound):
		return wrap(err, "master of %s", s.Name), nil
	case err == nil:
		err = n.handle.LinkSetMasterByIndex(ref(l.Index), master.Index)
	}
	return nil, wrap(err, "master %s of %s", s.Master, s.Name)
}

func (n *Netns) setFlags(index int, f Flags) error {
	return n.changeFlags(index, settableFlags, f.raw())
}

// changeFlags sets those of the link's flags that are in which.
func (n *Netns) changeFlags(index int, which, flags uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	msg.Change = which
	msg.Flags = flags
	req.AddData(msg)
	return n.ifGone(n.execute(req), index)
}

// replay sends one message back to the kernel.
func (n *Netns) replay(kind, flags int, header []byte, attrs nlattr.Attrs) error {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.AddRawData(nlattr.Marshal(header, attrs))
	return n.execute(req)
}

// ReplayAddresses adds the snapshot's addresses to the link. It returns the
// kernel's errors.
func (n *Netns) ReplayAddresses(index int, s *Snapshot) []error {
	return n.replayAddresses(index, s, false)
}

// replayAddresses adds the snapshot's addresses. If settled, those IPv6
// addresses that had passed duplicate address detection are valid at once: the
// kernel refuses routes with a tentative source, and without a cable the check
// never begins.
func (n *Netns) replayAddresses(index int, s *Snapshot, settled bool) []error {
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
		if err := n.ifGone(n.replayAddress(header, attrs, settled), index); err != nil {
			failures = append(failures, lost(err, "address", r.Text, s))
		}
	}
	return failures
}

// replayAddress adds one address. An existing one stays unchanged: the kernel
// added it when the link went up (link-local), or a router has announced it
// since, with a newer lifetime.
func (n *Netns) replayAddress(header []byte, attrs nlattr.Attrs, settled bool) error {
	flags := addressFlags(header, attrs)
	const checked = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_OPTIMISTIC | unix.IFA_F_NODAD
	skipDAD := settled && header[0] == unix.AF_INET6 && flags&checked == 0
	first := attrs
	if skipDAD {
		first = withFlags(attrs, flags|unix.IFA_F_NODAD)
	}
	err := n.replay(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header, first)
	if errors.Is(err, unix.EEXIST) {
		if !skipDAD {
			return nil
		}
		// The flag itself may be that of a process killed before the next step.
		skipDAD, err = n.isUnchecked(header, attrs)
	}
	if err != nil || !skipDAD {
		return err
	}
	// Clears the flag "without detection".
	return n.replay(unix.RTM_NEWADDR, unix.NLM_F_REPLACE, header, withFlags(attrs, flags))
}

// isUnchecked reports whether the address has the flag "without detection". The
// kernel's own addresses never have it.
func (n *Netns) isUnchecked(header []byte, attrs nlattr.Attrs) (bool, error) {
	ip, _ := attrs.Get(unix.IFA_ADDRESS)
	addrs, err := n.addrs(int(binary.NativeEndian.Uint32(header[4:])))
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

// age subtracts the passed time from the lifetimes of an address
// (IFA_CACHEINFO: preferred, valid, in seconds) and reports whether it is still
// valid. An infinite lifetime stays.
func age(header []byte, attrs nlattr.Attrs, passed time.Duration) (nlattr.Attrs, bool) {
	info, ok := attrs.Get(unix.IFA_CACHEINFO)
	if !ok || len(info) < 8 {
		return attrs, true
	}
	attrs = attrs.Without(unix.IFA_CACHEINFO)
	aged := slices.Clone(info)
	if addressFlags(header, attrs)&unix.IFA_F_DEPRECATED != 0 {
		// IPv4 reports every address with an infinite lifetime as preferred.
		binary.NativeEndian.PutUint32(aged, 0)
	}
	if binary.NativeEndian.Uint32(aged[4:]) == foreverLife && binary.NativeEndian.Uint32(aged) == foreverLife {
		return attrs, true
	}
	for _, at := range []int{0, 4} {
		if left := binary.NativeEndian.Uint32(aged[at:]); left != foreverLife {
			binary.NativeEndian.PutUint32(aged[at:], left-min(left, uint32(max(passed.Seconds(), 0))))
		}
	}
	if binary.NativeEndian.Uint32(aged[4:]) == 0 {
		return nil, false
	}
	return append(attrs, nlattr.Attr{Type: unix.IFA_CACHEINFO, Value: aged}), true
}

func (n *Netns) replayNeighbors(index int, s *Snapshot) []error {
	var failures []error
	for _, r := range s.Neighbors {
		header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofNdMsg)
		if err == nil {
			binary.NativeEndian.PutUint32(header[4:], uint32(index))
			err = n.replay(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, header,
				attrs.Without(unix.NDA_CACHEINFO, unix.NDA_PROBES))
		}
		if err != nil {
			failures = append(failures, lost(err, "neighbor", r.Text, s))
		}
	}
	return failures
}

// Rules returns the policy rules that select by source, point at one of tables,
// and cover one of addrs: the rules of an interface's addresses.
func (n *Netns) Rules(addrs []*net.IPNet, tables []int) ([]netlink.Rule, error) {
	all, err := n.rules()
	if err != nil {
		return nil, err
	}
	var found []netlink.Rule
	for _, r := range all {
		if r.Src == nil || !slices.Contains(tables, r.Table) {
			continue
		}
		if slices.ContainsFunc(addrs, func(a *net.IPNet) bool { return r.Src.Contains(a.IP) }) {
			found = append(found, r)
		}
	}
	return found, nil
}

// AddRules adds policy rules; existing ones are left unchanged.
func (n *Netns) AddRules(rules []netlink.Rule) error {
	for _, r := range rules {
		if err := n.handle.RuleAdd(&r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("rule %v in netns %s: %w", r, n.Path, err)
		}
	}
	return nil
}
