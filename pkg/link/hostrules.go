package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// fibRuleInvert is the flag of a rule for what does not match (FIB_RULE_INVERT of
// linux/fib_rules.h).
const fibRuleInvert = 2

// ruleFacts decide whether a rule is one of a link's addresses.
type ruleFacts struct {
	source   *net.IPNet // nil for any, or all but one
	table    uint32
	priority uint32
	protocol byte
}

func factsOfRule(header []byte, attrs nlattr.Attrs) ruleFacts {
	f := ruleFacts{table: tableOf(header, attrs)} // in the place of a route's
	f.priority, _ = attrs.Uint32(nl.FRA_PRIORITY)
	if by, ok := attrs.Get(nl.FRA_PROTOCOL); ok && len(by) == 1 {
		f.protocol = by[0]
	}
	if ip, ok := attrs.Get(nl.FRA_SRC); ok && header[2] > 0 && binary.NativeEndian.Uint32(header[8:])&fibRuleInvert == 0 {
		f.source = &net.IPNet{IP: ip, Mask: net.CIDRMask(int(header[2]), 8*len(ip))}
	}
	return f
}

// snapshotRules returns the policy rules of the link's addresses, as [Netns.Rules] chooses them. The
// kernel keeps them during a loan, but a network manager deletes its own when the link
// leaves, and adds them again only if it configures the link itself. Those of routing daemons are the
// daemons' to bring back.
func (n *Netns) snapshotRules(s *Snapshot, v *View) ([]Replay, error) {
	own := slices.DeleteFunc(slices.Clone(v.addresses), func(m []byte) bool {
		header, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		return err != nil || s.isVirtual(header, attrs) // another host may have it at the return
	})
	sources, tables := globalAddresses(own), tablesOf(v.routes)
	if len(sources) == 0 {
		return nil, nil
	}
	msgs, err := n.dump(unix.RTM_GETRULE, &nl.RtMsg{}, func(m []byte) bool {
		header, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if err != nil || !ofIP(header) {
			return false
		}
		f := factsOfRule(header, attrs)
		return f.source != nil && slices.Contains(tables, f.table) && !isRoutingDaemon(f.protocol) &&
			slices.ContainsFunc(sources, f.source.Contains)
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // the kernel has no rules (CONFIG_IP_MULTIPLE_TABLES)
	}
	if err != nil {
		return nil, fmt.Errorf("list rules of netns %s: %w", n.Path, err)
	}
	var found []Replay
	for _, m := range msgs {
		header, attrs, _ := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		f := factsOfRule(header, attrs)
		found = append(found, Replay{Text: fmt.Sprintf("%d from %v table %d", f.priority, f.source, f.table), Raw: m})
	}
	return found, nil
}

// globalAddresses returns the addresses of a link that are valid beyond it.
func globalAddresses(msgs [][]byte) (found []net.IP) {
	for _, m := range msgs {
		header, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err != nil || header[3] != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		found = append(found, addressOf(header, attrs).IP)
	}
	return found
}

// tablesOf returns the tables that the routes are in.
func tablesOf(routes [][]byte) (tables []uint32) {
	for _, m := range routes {
		header, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if err != nil {
			continue
		}
		if table := tableOf(header, attrs); !slices.Contains(tables, table) {
			tables = append(tables, table)
		}
	}
	return tables
}

// replayRules adds those of the snapshot's rules that the namespace no longer has.
func (n *Netns) replayRules(s *Snapshot) (lost []error) {
	for _, r := range s.Rules {
		header, attrs, err := nlattr.ParseMessage(slices.Clone(r.Raw), unix.SizeofRtMsg)
		if err == nil {
			binary.NativeEndian.PutUint32(header[8:], 0) // its flags are state
			err = n.replay(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header, attrs)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			lost = append(lost, wrap(err, "rule %s of %s", r.Text, s.Name))
		}
	}
	return lost
}
