package link

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// settings are further numbers of a link that a pod can change, and that
// survive a move: how ip-link(8) calls them, and their attribute. A NIC that
// came home in mode "dormant" would never be used again.
var settings = []struct {
	name string
	kind uint16
}{
	{"linkmode", unix.IFLA_LINKMODE},
	{"gso_max_size", unix.IFLA_GSO_MAX_SIZE},
	{"gso_max_segs", unix.IFLA_GSO_MAX_SEGS},
	{"gro_max_size", unix.IFLA_GRO_MAX_SIZE},
	{"gso_ipv4_max_size", unix.IFLA_GSO_IPV4_MAX_SIZE},
	{"gro_ipv4_max_size", unix.IFLA_GRO_IPV4_MAX_SIZE},
}

// readSettings gives those of the settings that the kernel tells.
func (n *Netns) readSettings(index int) (map[string]uint32, error) {
	req := n.request(unix.RTM_GETLINK, unix.NLM_F_ACK)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	req.AddData(header)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err == nil && len(msgs) != 1 {
		err = errMessage
	}
	if err != nil {
		return nil, fmt.Errorf("read link with index %d in netns %s: %w", index, n.Path, err)
	}
	_, attrs, err := parseMessage(msgs[0], unix.SizeofIfInfomsg)
	if err != nil {
		return nil, err
	}
	found := map[string]uint32{}
	for _, s := range settings {
		switch v, _ := attrs.get(s.kind); len(v) {
		case 1:
			found[s.name] = uint32(v[0])
		case 4:
			found[s.name] = binary.NativeEndian.Uint32(v)
		}
	}
	return found, nil
}

// restoreSettings sets those that differ.
func (n *Netns) restoreSettings(index int, want map[string]uint32) error {
	if len(want) == 0 {
		return nil
	}
	have, err := n.readSettings(index)
	if err != nil {
		return err
	}
	req := n.request(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	req.AddData(header)
	differs := false
	for _, s := range settings {
		wanted, ok := want[s.name]
		if now, known := have[s.name]; !ok || !known || now == wanted {
			continue
		}
		value := nl.Uint32Attr(wanted)
		if s.kind == unix.IFLA_LINKMODE {
			value = []byte{byte(wanted)}
		}
		req.AddData(nl.NewRtAttr(int(s.kind), value))
		differs = true
	}
	if !differs {
		return nil
	}
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
