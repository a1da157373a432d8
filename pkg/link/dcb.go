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
	dcbIEEEAppTable = 3
	dcbIEEEApp      = 1
	dcbByDSCP       = 5 // IEEE_8021QAZ_APP_SEL_DSCP
	pfcEnabledAt    = 1 // in struct ieee_pfc: a bit for each priority
)

// DCB is the data center bridging of a link, as IEEE 802.1Qaz has it.
type DCB struct {
	// PFC are the priorities with priority flow control, ascending.
	PFC []int
	// DSCP reports whether the link maps DSCPs of packets to priorities. Drivers of RoCE NICs
	// then trust the DSCP, and else the priority in the VLAN tag (mlx5e_dcbnl_ieee_setapp).
	DSCP bool
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
	return found, wrap(err, "read data center bridging of %s in netns %s", name, n.Path)
}

func parseDCB(ieee nlattr.Attrs) *DCB {
	d := &DCB{}
	for _, a := range ieee {
		switch {
		case a.Type == dcbIEEEPFC && len(a.Value) > pfcEnabledAt:
			for priority := range 8 {
				if a.Value[pfcEnabledAt]&(1<<priority) != 0 {
					d.PFC = append(d.PFC, priority)
				}
			}
		case a.Type == dcbIEEEAppTable:
			table, _ := nlattr.Parse(a.Value)
			for _, app := range table {
				d.DSCP = d.DSCP || app.Type == dcbIEEEApp && len(app.Value) > 0 && app.Value[0] == dcbByDSCP
			}
		}
	}
	return d
}
