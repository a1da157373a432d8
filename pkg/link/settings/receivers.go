package settings

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Receivers counts the users for whom the kernel makes a link receive more than its own packets:
// packet sockets, bridges, links above it, and its own flags each count as one user.
type Receivers struct {
	Promiscuous  uint32 `json:"promiscuous,omitempty"`  // IFLA_PROMISCUITY
	AllMulticast uint32 `json:"allMulticast,omitempty"` // IFLA_ALLMULTI, Linux 6.0
}

// ReceiversOf returns what the kernel reports.
func ReceiversOf(attrs nlattr.Attrs) Receivers {
	promiscuous, _ := attrs.Uint32(unix.IFLA_PROMISCUITY)
	all, _ := attrs.Uint32(unix.IFLA_ALLMULTI)
	return Receivers{promiscuous, all}
}

// MoreReceivers returns the modes that have more users on the link than before. A pod can
// cause such users by bugs of the kernel, and no request removes them. A packet socket that is
// closed while the link moves stays counted: packet_release first removes the socket from the list
// that packet_notifier reads, and only then waits for the lock. A macvlan in passthru mode stays
// counted as well (macvlan_stop).
func MoreReceivers(n *netns.Netns, index int, before *Receivers) []link.Changed {
	if before == nil { // upstream's plugin lent the NIC
		return nil
	}
	attrs, err := link.ReadAttrs(n, index)
	if err != nil {
		return []link.Changed{{Setting: "promiscuous mode", Err: err}}
	}
	now := ReceiversOf(attrs)
	var more []link.Changed
	for _, m := range []struct {
		mode        string
		now, before uint32
	}{{"promiscuous mode", now.Promiscuous, before.Promiscuous}, {"all-multicast mode", now.AllMulticast, before.AllMulticast}} {
		if m.now > m.before {
			more = append(more, link.Changed{Setting: m.mode, Err: fmt.Errorf("the kernel counts %d users of the mode, and counted %d before: if no program of the host listens on the NIC, only a reload of the driver ends the mode", int32(m.now), m.before)})
		}
	}
	return more
}
