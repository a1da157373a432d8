package nicstate

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// fibRuleInvert is the flag of a rule that applies to what does not match (FIB_RULE_INVERT of
// linux/fib_rules.h).
const fibRuleInvert = 2

// ruleFacts are the facts that decide whether a rule belongs to the addresses of a link.
type ruleFacts struct {
	source   *net.IPNet // nil if the rule is for any source, or for all sources except one
	table    uint32
	priority uint32
	protocol byte
}

func factsOfRule(header []byte, attrs nlattr.Attrs) ruleFacts {
	f := ruleFacts{table: routes.Table(header, attrs)} // a rule has its table where a route has its table
	f.priority, _ = attrs.Uint32(nl.FRA_PRIORITY)
	if proto, ok := attrs.Get(nl.FRA_PROTOCOL); ok && len(proto) == 1 {
		f.protocol = proto[0]
	}
	if ip, ok := attrs.Get(nl.FRA_SRC); ok && header[2] > 0 && binary.NativeEndian.Uint32(header[8:])&fibRuleInvert == 0 {
		f.source = &net.IPNet{IP: ip, Mask: net.CIDRMask(int(header[2]), 8*len(ip))}
	}
	return f
}

// snapshotRules returns the policy rules of the link's addresses, which it chooses as [link.Rules]
// does. The kernel keeps these rules during a loan. But a network manager deletes its own rules when
// the link leaves, and adds them again only if it configures the link itself. The rules of routing
// daemons are not returned: the daemons add them again.
//
// kept are the other rules that name the link, or a source in the subnet of one of its addresses.
// Addresses of VRRP do not count, because another host may have them when the link returns.
func snapshotRules(n *netns.Netns, s *Snapshot, v *link.View) (found, kept []Replay, err error) {
	addresses := slices.DeleteFunc(slices.Clone(v.RawAddresses), func(m []byte) bool {
		header, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		return err != nil || s.isVirtual(header, attrs)
	})
	sources, tables := globalAddresses(addresses), tablesOf(v.RawRoutes)
	_, err = rawRules(n, func(header []byte, attrs nlattr.Attrs) bool {
		f := factsOfRule(header, attrs)
		if isRoutingDaemon(f.protocol) {
			return false
		}
		r := Replay{Text: ruleText(header, attrs), Raw: nlattr.Marshal(slices.Clone(header), attrs)}
		switch {
		case f.source != nil && slices.Contains(tables, f.table) && slices.ContainsFunc(sources, f.source.Contains):
			found = append(found, r)
		case attrs.Text(unix.FRA_IIFNAME) == v.Link.Name, attrs.Text(unix.FRA_OIFNAME) == v.Link.Name, isFrom(addresses, header, attrs):
			kept = append(kept, r)
		}
		return false
	})
	return found, kept, err
}

// rawRules returns the policy rules for which wanted returns true, as payloads of RTM_NEWRULE.
func rawRules(n *netns.Netns, wanted func(header []byte, attrs nlattr.Attrs) bool) ([][]byte, error) {
	found, err := n.Dump(unix.RTM_GETRULE, &nl.RtMsg{}, func(m []byte) bool {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		return err == nil && nlattr.IsIP(h) && wanted(h, attrs)
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the kernel has no rules (CONFIG_IP_MULTIPLE_TABLES)
	}
	return found, failure.Context(err, "list rules of netns %s", n.Path)
}

// globalAddresses returns the addresses of a link that are valid beyond the link.
func globalAddresses(msgs [][]byte) (found []net.IP) {
	for _, m := range msgs {
		header, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err != nil || header[3] != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		found = append(found, link.AddressOf(header, attrs).IP)
	}
	return found
}

// tablesOf returns the tables of the routes.
func tablesOf(messages [][]byte) (tables []uint32) {
	for _, m := range messages {
		header, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if err != nil {
			continue
		}
		if table := routes.Table(header, attrs); !slices.Contains(tables, table) {
			tables = append(tables, table)
		}
	}
	return tables
}

// replayRules adds the snapshot's rules that the namespace no longer has.
func replayRules(n *netns.Netns, s *Snapshot) []error {
	var failures []error
	for _, r := range s.Rules {
		header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofRtMsg)
		if err == nil {
			binary.NativeEndian.PutUint32(header[8:], 0) // the flags of a rule are state
			err = n.Request(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header, attrs)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			failures = append(failures, lost(err, "rule", r.Text, s))
		}
	}
	return failures
}

// isFrom reports whether the rule's source is one of the addresses, or is in the subnet of one of
// them.
func isFrom(addresses [][]byte, rule []byte, attrs nlattr.Attrs) bool {
	const srcLen = 2
	source, ok := attrs.Get(unix.FRA_SRC)
	return ok && slices.ContainsFunc(addresses, func(m []byte) bool {
		header, addrAttrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err != nil || header[0] != rule[0] || rule[srcLen] < header[1] {
			return false
		}
		local, ok := addrAttrs.Get(unix.IFA_LOCAL)
		if !ok {
			local, _ = addrAttrs.Get(unix.IFA_ADDRESS)
		}
		p := prefix{family: header[0]}
		return p.match(local, header[1]) == p.match(source, header[1])
	})
}

// ruleKey returns the content of a rule, without its state.
func ruleKey(header []byte, attrs nlattr.Attrs) string {
	settings := slices.Clone(attrs.Without(unix.FRA_PAD))
	slices.SortStableFunc(settings, func(a, b nlattr.Attr) int { return cmp.Compare(a.Type, b.Type) })
	key := slices.Clone(header)
	binary.NativeEndian.PutUint32(key[8:], binary.NativeEndian.Uint32(header[8:])&fibRuleInvert)
	return string(nlattr.Marshal(key, settings))
}

// ruleText returns a rule in the form of ip-rule(8), with the parts that a reader needs.
func ruleText(header []byte, attrs nlattr.Attrs) string {
	var b bytes.Buffer
	b.WriteString("from ")
	if source, ok := attrs.Get(unix.FRA_SRC); ok {
		fmt.Fprintf(&b, "%s/%d", ipText(source), header[2])
	} else {
		b.WriteString("all")
	}
	if to, ok := attrs.Get(unix.FRA_DST); ok {
		fmt.Fprintf(&b, " to %s/%d", ipText(to), header[1])
	}
	for _, one := range []struct {
		name string
		kind uint16
	}{{"iif", unix.FRA_IIFNAME}, {"oif", unix.FRA_OIFNAME}} {
		if name := attrs.Text(one.kind); name != "" {
			fmt.Fprintf(&b, " %s %s", one.name, name)
		}
	}
	fmt.Fprintf(&b, " lookup %d priority %d", attrs.Int(unix.FRA_TABLE), attrs.Int(unix.FRA_PRIORITY))
	return b.String()
}
