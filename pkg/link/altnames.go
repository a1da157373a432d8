package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// altNamesAtOnce bounds the altnames in one request: an attribute has room for
// 64 KiB, and an altname takes up to 132 bytes (ALTIFNAMSIZ).
const altNamesAtOnce = 400

// KeepAltNames removes the altnames of l that are not in keep.
func KeepAltNames(n *netns.Netns, l *Link, keep []string) error {
	extra := slices.DeleteFunc(slices.Clone(l.AltNames), func(name string) bool { return slices.Contains(keep, name) })
	var errs []error
	for some := range slices.Chunk(extra, altNamesAtOnce) {
		switch err := removeAltNames(n, l.Index, some); {
		case err == nil:
			continue
		case errors.Is(err, ErrNotFound):
			return fmt.Errorf("remove altnames of %s: %w", l.Name, err)
		}
		// The kernel stops at the first name that it does not find.
		for _, name := range some {
			if err := removeAltNames(n, l.Index, []string{name}); !errors.Is(err, unix.ENOENT) {
				errs = append(errs, failure.Context(err, "remove altname %s of %s", name, l.Name))
			}
		}
	}
	return errors.Join(errs...)
}

// removeAltNames removes all names in one request. After each request that changes something, the
// kernel sends the whole list of altnames to all listeners (netdev_state_change).
func removeAltNames(n *netns.Netns, index int, names []string) error {
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	var list nlattr.Attrs
	for _, name := range names {
		list = append(list, nlattr.Attr{Type: unix.IFLA_ALT_IFNAME, Value: nl.ZeroTerminated(name)})
	}
	props := nlattr.Attr{Type: unix.IFLA_PROP_LIST, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, list)}
	return IfGone(n, n.Request(unix.RTM_DELLINKPROP, 0, header.Serialize(), nlattr.Attrs{props}), index)
}
