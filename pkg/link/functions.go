package link

import (
	"bytes"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// withFunctions is RTEXT_FILTER_VF: the answer includes each virtual function.
const withFunctions = 1

// functionSettings are the attributes of a virtual function (IFLA_VF_*) that the
// kernel accepts in the form in which it reports them. VLAN and TX_RATE are left
// out: VLAN_LIST and RATE contain them.
var functionSettings = map[uint16]string{
	1: "MAC", 4: "spoof check", 5: "link state", 6: "rate", 7: "RSS query", 9: "trust", 10: "node GUID", 11: "port GUID", 12: "VLAN",
}

// Functions reads the settings of the link's virtual functions, each as the
// kernel's IFLA_VF_INFO. The kernel asks the driver for each of them, so call
// it only for a NIC that is lent with them.
func (n *Netns) Functions(index int) ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	req.AddData(header)
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(withFunctions|skipStats)))
	var functions [][]byte
	err := n.exchange(req, func(m []byte) {
		_, attrs, _ := nlattr.ParseMessage(bytes.Clone(m), unix.SizeofIfInfomsg)
		infos, _ := attrs.Nested(unix.IFLA_VFINFO_LIST)
		for _, info := range infos {
			all, _ := nlattr.Parse(info.Value)
			var settings nlattr.Attrs
			for _, a := range all {
				if functionSettings[a.Type] != "" {
					settings = append(settings, a)
				}
			}
			functions = append(functions, nlattr.Marshal(nil, settings))
		}
	})
	return functions, wrap(n.ifGone(err, index), "read virtual functions of link with index %d in netns %s", index, n.Path)
}

// RestoreFunctions restores the settings of the link's virtual functions, and
// returns those that still differ.
func (n *Netns) RestoreFunctions(index int, want [][]byte) []Changed {
	if len(want) == 0 {
		return nil
	}
	have, err := n.Functions(index)
	if err == nil && len(have) != len(want) {
		err = fmt.Errorf("there are %d, there were %d", len(have), len(want))
	}
	if err != nil {
		return []Changed{{"virtual functions", err}}
	}
	var changed []Changed
	for i := range want {
		was, _ := nlattr.Parse(want[i])
		is, _ := nlattr.Parse(have[i])
		for _, a := range was {
			if now, ok := is.Get(a.Type); !ok || bytes.Equal(now, a.Value) {
				continue
			}
			info := nlattr.Marshal(nil, nlattr.Attrs{a})
			list := nlattr.Marshal(nil, nlattr.Attrs{{Type: ifVFInfo, Flags: unix.NLA_F_NESTED, Value: info}})
			if err := n.setLink(index, nlattr.Attr{Type: unix.IFLA_VFINFO_LIST, Flags: unix.NLA_F_NESTED, Value: list}); err != nil {
				changed = append(changed, Changed{fmt.Sprintf("virtual function %d, %s", i, functionSettings[a.Type]), err})
			}
		}
	}
	return changed
}

// ifVFInfo is IFLA_VF_INFO of linux/if_link.h.
const ifVFInfo = 1
