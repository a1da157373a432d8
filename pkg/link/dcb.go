package link

import (
	"bytes"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// From linux/dcbnl.h, which golang.org/x/sys does not have.
const (
	dcbHeaderLength = 4 // struct dcbmsg
	dcbIEEEGet      = 21
	dcbIfName       = 1
	dcbIEEE         = 13
	dcbIEEEPFC      = 2
	pfcEnabledAt    = 1 // in struct ieee_pfc: a bit for each priority
)

// DCB is the data center bridging of a link, as IEEE 802.1Qaz has it. Which field of a packet
// the link trusts is not part of it: the kernel forgets its table of applications when the link
// moves to another network namespace (dcbnl_flush_dev), and the hardware does not.
type DCB struct {
	// PFC are the priorities with priority flow control, ascending.
	PFC []int
}

// DCB returns the data center bridging of the link, nil if its driver has none.
func (n *Netns) DCB(name string) (*DCB, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETDCB, 0)
	req.AddRawData([]byte{unix.AF_UNSPEC, dcbIEEEGet, 0, 0})
	req.AddRawData(nl.NewRtAttr(dcbIfName, nl.ZeroTerminated(name)).Serialize())
	var found *DCB
	err := n.exchange(req, func(m []byte) {
		_, attrs, _ := nlattr.ParseMessage(bytes.Clone(m), dcbHeaderLength)
		ieee, _ := attrs.Nested(dcbIEEE)
		found = parseDCB(ieee)
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil //nolint:nilnil // no data center bridging is no error
	}
	return found, wrap(n.ifNameGone(err, name), "read data center bridging of %s in netns %s", name, n.Path)
}

func parseDCB(ieee nlattr.Attrs) *DCB {
	d := &DCB{}
	for _, a := range ieee {
		if a.Type != dcbIEEEPFC || len(a.Value) <= pfcEnabledAt {
			continue
		}
		for priority := range 8 {
			if a.Value[pfcEnabledAt]&(1<<priority) != 0 {
				d.PFC = append(d.PFC, priority)
			}
		}
	}
	return d
}
