package device

import (
	"bytes"
	"cmp"
	"errors"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// From linux/dcbnl.h, which golang.org/x/sys does not have. The library has no helper for these
// messages.
const (
	dcbHeaderLength = 4 // struct dcbmsg
	dcbIEEESet      = 20
	dcbIEEEGet      = 21
	dcbSetDCBX      = 23
	dcbIEEEDelete   = 27
	dcbIfName       = 1
	dcbIEEE         = 13
	dcbDCBX         = 14
	dcbIEEEETS      = 1
	dcbIEEEPFC      = 2
	dcbIEEEApps     = 3
	dcbIEEEMaxrate  = 7
	dcbBuffer       = 10
	dcbTrust        = 11
	dcbRewrite      = 12
	pfcEnabledAt    = 1 // in struct ieee_pfc: a bit for each priority
	appLength       = 4 // struct dcb_app
	appSelectorPCP  = 255
)

// DCB is the data center bridging of a link, as defined in IEEE 802.1Qaz.
type DCB struct {
	// PFC has the priorities with priority flow control, in ascending order.
	PFC []int
}

// ReadDCB returns the data center bridging of the link, or nil if the link's driver has none.
func ReadDCB(n *netns.Netns, name string) (*DCB, error) {
	answer, err := askDCB(n, unix.RTM_GETDCB, dcbIEEEGet, name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil //nolint:nilnil // no data center bridging is no error
	}
	if err != nil {
		return nil, failure.Context(link.IfNameGone(n, err, name), "read data center bridging of %s in netns %s", name, n.Path)
	}
	ieee, _ := answer.Nested(dcbIEEE)
	return parseDCB(ieee), nil
}

// askDCB sends a message of data center bridging about the link with this name, and returns the
// attributes of the answer. The kernel looks for the link in the namespace of the socket. To change
// something, the sender needs CAP_NET_ADMIN in the initial user namespace: dcb_doit calls
// netlink_capable, before and after Linux 5.2, and not netlink_net_capable. So a pod with its own
// user namespace can change nothing.
func askDCB(n *netns.Netns, kind int, command uint8, name string, attrs ...nlattr.Attr) (answer nlattr.Attrs, err error) {
	req := nl.NewNetlinkRequest(kind, 0)
	req.AddRawData(nlattr.Marshal([]byte{unix.AF_UNSPEC, command, 0, 0}, append(nlattr.Attrs{{Type: dcbIfName, Value: nl.ZeroTerminated(name)}}, attrs...)))
	var damage error
	err = n.Exchange(req, func(m []byte) {
		_, answer, damage = nlattr.ParseMessage(bytes.Clone(m), dcbHeaderLength)
	})
	return answer, cmp.Or(err, damage)
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

// dcbSetting is a setting of dcb(8), which is an attribute of DCB_ATTR_IEEE.
type dcbSetting struct {
	name string
	kind uint16
	// size is the size of the struct. If only the first bytes of the struct are settings, set is
	// the number of these bytes.
	set, size int
	apps      bool // the setting is a table of struct dcb_app
}

// dcbMode is the name of the DCBX mode. The mode has a separate attribute and a separate command.
const dcbMode = "mode"

// dcbSettings are in the order in which they are restored: the buffers depend on the settings above
// them.
var dcbSettings = []dcbSetting{
	{name: "ETS", kind: dcbIEEEETS},
	{name: "PFC", kind: dcbIEEEPFC, set: 8, size: 136}, // struct ieee_pfc ends in counters
	{name: "rates", kind: dcbIEEEMaxrate},
	{name: "buffers", kind: dcbBuffer, set: 40, size: 44}, // struct dcbnl_buffer ends in the total size
	{name: "applications", kind: dcbIEEEApps, apps: true},
	{name: "trust", kind: dcbTrust},
	{name: "rewriting", kind: dcbRewrite, apps: true},
}

// readDCB returns the settings of data center bridging by their names. It returns nil for a driver
// without data center bridging, which costs one message.
func readDCB(n *netns.Netns, name string) map[string][]byte {
	answer, err := askDCB(n, unix.RTM_GETDCB, dcbIEEEGet, name)
	if err != nil {
		return nil
	}
	return dcbSettingsOf(answer)
}

func dcbSettingsOf(answer nlattr.Attrs) map[string][]byte {
	ieee, _ := answer.Nested(dcbIEEE)
	found := map[string][]byte{}
	if mode, ok := answer.Get(dcbDCBX); ok {
		found[dcbMode] = mode
	}
	for _, s := range dcbSettings {
		value, ok := ieee.Get(s.kind)
		switch {
		case !ok:
			continue
		case s.apps:
			value = slices.Concat(appsIn(value)...)
		case len(value) == s.size:
			value = value[:s.set]
		}
		if len(value) <= maxKept {
			found[s.name] = value
		}
	}
	return found
}

// appsIn returns the entries of a table (struct dcb_app), sorted. The kernel has the entries in the
// order in which they were added.
func appsIn(table []byte) [][]byte {
	attrs, _ := nlattr.Parse(table)
	var apps [][]byte
	for _, a := range attrs {
		if len(a.Value) == appLength {
			apps = append(apps, a.Value)
		}
	}
	slices.SortFunc(apps, bytes.Compare)
	return apps
}

// appTable returns an attribute with a table of these entries.
func appTable(kind uint16, apps [][]byte) nlattr.Attr {
	const ofIEEE, ofDCB = 1, 2 // DCB_ATTR_IEEE_APP, DCB_ATTR_DCB_APP
	var attrs nlattr.Attrs
	for _, app := range apps {
		a := nlattr.Attr{Type: ofIEEE, Value: app}
		if app[0] == appSelectorPCP {
			a.Type = ofDCB
		}
		attrs = append(attrs, a)
	}
	return nlattr.Attr{Type: kind, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, attrs)}
}

// setDCB changes an attribute of DCB_ATTR_IEEE. If the driver refuses, the answer has the low byte
// of the error number.
func setDCB(n *netns.Netns, command uint8, name string, a nlattr.Attr) error {
	answer, err := askDCB(n, unix.RTM_SETDCB, command, name,
		nlattr.Attr{Type: dcbIEEE, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, nlattr.Attrs{a})})
	if refused, ok := answer.Uint(dcbIEEE); err == nil && ok && refused != 0 {
		return unix.Errno(-int8(refused))
	}
	return err
}

// setApps changes the table from have to want. It deletes entries first: a driver that allows one
// priority for each value replaces the old entry of a value by itself.
func setApps(n *netns.Netns, name string, kind uint16, want, have []byte) error {
	wanted, now := slices.Collect(slices.Chunk(want, appLength)), slices.Collect(slices.Chunk(have, appLength))
	without := func(all, those [][]byte) [][]byte {
		return slices.DeleteFunc(slices.Clone(all), func(app []byte) bool {
			return len(app) != appLength || slices.ContainsFunc(those, func(other []byte) bool { return bytes.Equal(other, app) })
		})
	}
	var errs []error
	set := func(command byte, apps [][]byte) {
		// One message for each entry: the kernel stops at the first entry that the driver refuses.
		for app := range slices.Chunk(apps, 1) {
			errs = append(errs, setDCB(n, command, name, appTable(kind, app)))
		}
	}
	set(dcbIEEEDelete, without(now, wanted))
	set(dcbIEEESet, without(wanted, now))
	return errors.Join(errs...)
}

// adjustDCB sets the settings that differ from want. It returns the names of these settings, each
// with the kernel's error if the kernel refused.
func adjustDCB(n *netns.Netns, name string, want map[string][]byte) map[string]error {
	differed := map[string]error{}
	if len(want) == 0 {
		return differed
	}
	have := readDCB(n, name)
	if mode, ok := want[dcbMode]; ok && !bytes.Equal(mode, have[dcbMode]) {
		answer, err := askDCB(n, unix.RTM_SETDCB, dcbSetDCBX, name, nlattr.Attr{Type: dcbDCBX, Value: mode})
		if refused, _ := answer.Uint(dcbDCBX); err == nil && refused != 0 {
			err = unix.EINVAL // dcbnl_setdcbx returns no reason
		}
		differed["DCB "+dcbMode] = err
	}
	for _, s := range dcbSettings {
		value, ok := want[s.name]
		if !ok || bytes.Equal(value, have[s.name]) {
			continue
		}
		var err error
		if s.apps {
			err = setApps(n, name, s.kind, value, have[s.name])
		} else {
			whole := append(slices.Clone(value), make([]byte, max(0, s.size-len(value)))...)
			err = setDCB(n, dcbIEEESet, name, nlattr.Attr{Type: s.kind, Value: whole})
		}
		differed["DCB "+s.name] = err
	}
	return differed
}

// ForgetApplications deletes the entries that the link has in the tables of data center bridging
// (which priority a DSCP value gets, and the reverse). When a link moves to another namespace, the
// kernel forgets its tables (dcbnl_flush_dev), but the hardware does not. So what a pod added to
// the tables can only be deleted in the pod. ForgetApplications does nothing if the link had no
// tables when s was taken.
func ForgetApplications(n *netns.Netns, name string, s *Settings) {
	if s == nil || s.DCB == nil {
		return
	}
	have := readDCB(n, name)
	for _, t := range dcbSettings {
		if t.apps && len(have[t.name]) > 0 {
			_ = setApps(n, name, t.kind, nil, have[t.name]) // an error is ignored: the driver may have none of the entries
		}
	}
}
