package link

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// peers are the kinds of links of which Lower is not the link below but the peer:
// to delete one deletes both.
var peers = []string{"veth", "netkit", "vxcan"}

// Stacked returns the links of the namespace that lie on the link with this index,
// directly: macvlans, VLANs, tunnels, … If away is set, that link is in another
// namespace.
func (n *Netns) Stacked(index int, away bool) ([]*Link, error) {
	links, err := n.Links()
	return slices.DeleteFunc(links, func(l *Link) bool {
		return l.Lower != index || l.LowerAway != away || slices.Contains(peers, l.Kind)
	}), err
}

// fewLinks are deleted one by one. To delete a link takes the kernel some
// milliseconds (grace periods of RCU), and a group of links hardly more.
const fewLinks = 4

// DeleteAll deletes virtual links of a pod's namespace until limit is over, and
// returns how many it did not delete, with the error of the last. Not for a
// namespace of the host: if another program puts a link into the same group at
// that moment, that link is deleted as well.
func (n *Netns) DeleteAll(links []*Link, limit time.Duration) (left int, err error) {
	if len(links) > fewLinks && n.deleteGroup(links) == nil {
		return 0, nil
	}
	deadline := time.Now().Add(limit)
	for i, l := range links {
		if time.Now().After(deadline) {
			return left + len(links) - i, errors.Join(err, errors.New("there are too many"))
		}
		if deleteErr := n.Delete(l.Index); deleteErr != nil {
			left, err = left+1, deleteErr
		}
	}
	return left, err
}

// deleteGroup deletes the links by one request (rtnl_group_dellink). The kernel
// deletes none if one cannot be deleted.
func (n *Netns) deleteGroup(links []*Link) error {
	group := nl.Uint32Attr(1<<31 | rand.Uint32())
	for _, l := range links {
		if err := n.setLink(l.Index, attribute{kind: unix.IFLA_GROUP, value: group}); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	req := n.request(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, group))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
