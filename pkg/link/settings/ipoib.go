package settings

import (
	"encoding/binary"
	"errors"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// ReadIPoIB returns the settings of an InfiniBand interface, with the interface's children in
// the same namespace.
func ReadIPoIB(attrs nlattr.Attrs, v *link.View) *link.IPoIB {
	s := link.IPoIBOf(attrs)
	if s == nil {
		return nil
	}
	for _, l := range v.Links {
		if l.IsIPoIBChild() && l.Lower == v.Link.Index {
			s.Children = append(s.Children, l.QueuePair())
		}
	}
	return s
}

// RestoreIPoIB sets the mode and umcast of l to those of want, where attrs differ. It reports whether it has changed
// the link: a change of the mode sets the MTU.
//
// It writes the files in sysfs, because a change of the mode by netlink can leave two tasks with the RTNL:
// ipoib_set_mode releases the RTNL and may not get it again, and ipoib_changelink does not tell its caller (Linux
// 6.12). A child that was made by netlink has no such files.
func RestoreIPoIB(n *netns.Netns, l *link.Link, attrs nlattr.Attrs, want *link.IPoIB) (changed bool, err error) {
	have := link.IPoIBOf(attrs)
	if want == nil || have == nil || have.Mode == want.Mode && have.Umcast == want.Umcast {
		return false, nil
	}
	if l.IsIPoIBChild() {
		return true, setIPoIB(n, l.Index, want)
	}
	dir, err := link.OpenSysfs(n, l.Index)
	if err != nil {
		return false, err
	}
	defer unix.Close(dir)
	if have.Mode != want.Mode {
		err = netns.WriteSetting(dir, "mode", map[bool]string{false: "datagram\n", true: "connected\n"}[want.Connected()])
	}
	if have.Umcast != want.Umcast {
		err = errors.Join(err, netns.WriteSetting(dir, "umcast", strconv.Itoa(int(want.Umcast))+"\n"))
	}
	return true, err
}

// setIPoIB sets the mode and umcast of a child.
func setIPoIB(n *netns.Netns, index int, want *link.IPoIB) error {
	data := nlattr.Attrs{
		{Type: nl.IFLA_IPOIB_MODE, Value: binary.NativeEndian.AppendUint16(nil, want.Mode)},
		{Type: nl.IFLA_IPOIB_UMCAST, Value: binary.NativeEndian.AppendUint16(nil, want.Umcast)},
	}
	info := nlattr.Attrs{
		{Type: unix.IFLA_INFO_KIND, Value: []byte(link.KindIPoIB + "\x00")},
		{Type: unix.IFLA_INFO_DATA, Value: nlattr.Marshal(nil, data)},
	}
	return link.Set(n, index, nlattr.Attr{Type: unix.IFLA_LINKINFO, Value: nlattr.Marshal(nil, info)})
}
