package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// listRules returns the policy rules of the namespace, for both families. The library does not read
// the actions of the rules.
func listRules(n *netns.Netns) ([]netlink.Rule, error) {
	all, err := nlsocket.RetryDump(func() ([]netlink.Rule, error) { return n.Handle().RuleList(netlink.FAMILY_ALL) })
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the kernel has no rules (CONFIG_IP_MULTIPLE_TABLES)
	}
	if err != nil {
		return nil, fmt.Errorf("list rules of netns %s: %w", n.Path, err)
	}
	return all, nil
}

// sameRule reports whether have, a rule that the kernel listed, is the rule want. It compares
// family, priority, table, source and interface, which are enough to tell the rules of pods'
// interfaces apart.
func sameRule(have, want netlink.Rule) bool {
	source := func(r netlink.Rule) string {
		if r.Src == nil {
			return ""
		}
		return r.Src.String()
	}
	return have.Family == want.Family && have.Priority == want.Priority && have.Table == want.Table &&
		have.OifName == want.OifName && source(have) == source(want)
}

// MissingRules returns the rules that the namespace does not have.
func MissingRules(n *netns.Netns, rules []netlink.Rule) ([]netlink.Rule, error) {
	have, err := listRules(n)
	if err != nil {
		return nil, err
	}
	var missing []netlink.Rule
	for _, want := range rules {
		if !slices.ContainsFunc(have, func(r netlink.Rule) bool { return sameRule(r, want) }) {
			missing = append(missing, want)
		}
	}
	return missing, nil
}

// RulesOfInterface returns the policy rules of an interface, which may no longer exist. These are
// the rules with this priority for packets that leave by the interface, and the rules for single
// source addresses that lead to the same tables and have this priority or the next one.
func RulesOfInterface(n *netns.Netns, ifName string, priority int) ([]netlink.Rule, error) {
	all, err := listRules(n)
	if err != nil {
		return nil, err
	}
	tables := map[int]bool{}
	for _, r := range all {
		if r.OifName == ifName && r.Priority == priority {
			tables[r.Table] = true
		}
	}
	single := func(r netlink.Rule) bool {
		if r.Src == nil || r.OifName != "" {
			return false
		}
		ones, bits := r.Src.Mask.Size()
		return ones == bits
	}
	return slices.DeleteFunc(all, func(r netlink.Rule) bool {
		byInterface := r.OifName == ifName && r.Priority == priority
		bySource := single(r) && (r.Priority == priority || r.Priority == priority+1)
		return !tables[r.Table] || !byInterface && !bySource
	}), nil
}

// DeleteRules deletes policy rules. It continues after an error. A rule that the namespace
// does not have is not an error.
func DeleteRules(n *netns.Netns, rules []netlink.Rule) error {
	var errs []error
	for _, r := range rules {
		if err := n.Handle().RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) {
			errs = append(errs, fmt.Errorf("delete %v in netns %s: %w", r, n.Path, err))
		}
	}
	return errors.Join(errs...)
}

// TableUsed reports whether the namespace has a route in the table.
func TableUsed(n *netns.Netns, table int) (bool, error) {
	found, err := nlsocket.RetryDump(func() ([]netlink.Route, error) {
		return n.Handle().RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return false, fmt.Errorf("list routes of table %d in netns %s: %w", table, n.Path, err)
	}
	return len(found) > 0, nil
}

// HasRuleFor reports whether a rule of the namespace leads to one of the tables. The kernel's own
// rules lead to the tables local, main and default.
func HasRuleFor(n *netns.Netns, tables []int) (bool, error) {
	all, err := listRules(n)
	return slices.ContainsFunc(all, func(r netlink.Rule) bool { return slices.Contains(tables, r.Table) }), err
}

// SetAddressMetric sets the metric of the route that the kernel adds to the main table for the
// address ip (IFA_RT_PRIORITY). The link must have that address. The kernel keeps the metric when
// the link goes down and up.
func SetAddressMetric(n *netns.Netns, index int, ip *net.IPNet, metric int) error {
	addrs, err := ListAddresses(n, index)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(addrs, func(a netlink.Addr) bool {
		// If an address has a peer, the library puts the prefix length beside the peer.
		return a.IPNet.String() == ip.String() || a.Peer != nil && a.IPNet.IP.Equal(ip.IP) && a.Peer.Mask.String() == ip.Mask.String()
	})
	if i < 0 {
		return fmt.Errorf("metric of address %s: %w", ip, unix.EADDRNOTAVAIL)
	}
	ones, _ := ip.Mask.Size()
	header := make([]byte, unix.SizeofIfAddrmsg)
	header[0], header[1], header[3] = unix.AF_INET6, byte(ones), byte(addrs[i].Scope)
	local, remote := ip.IP.To16(), ip.IP.To16()
	if peer := addrs[i].Peer; peer != nil { // without the peer the kernel would add a second address
		remote = peer.IP.To16()
	}
	if ip.IP.To4() != nil {
		header[0], local, remote = unix.AF_INET, local.To4(), remote.To4()
	}
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	attrs := nlattr.Attrs{
		{Type: unix.IFA_LOCAL, Value: local},
		{Type: unix.IFA_ADDRESS, Value: remote},
		{Type: unix.IFA_RT_PRIORITY, Value: nl.Uint32Attr(uint32(metric))},
		// Without the flags IPv6 would remove the flags that the address has.
		{Type: unix.IFA_FLAGS, Value: nl.Uint32Attr(uint32(addrs[i].Flags) &^ (unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED))},
	}
	return failure.Context(IfGone(n, n.Request(unix.RTM_NEWADDR, unix.NLM_F_REPLACE, header, attrs), index), "metric of address %s", ip)
}

// Rules returns the policy rules that select by source, lead to one of tables, and cover one of
// addrs: these are the rules for the addresses of an interface.
func Rules(n *netns.Netns, addrs []*net.IPNet, tables []int) ([]netlink.Rule, error) {
	all, err := listRules(n)
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

// AddRules adds policy rules. It leaves existing rules unchanged.
func AddRules(n *netns.Netns, rules []netlink.Rule) error {
	for _, r := range rules {
		if err := n.Handle().RuleAdd(&r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("rule %v in netns %s: %w", r, n.Path, err)
		}
	}
	return nil
}
