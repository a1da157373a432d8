package owners

import (
	"fmt"
	"strings"
)

// VRRP is an instance of keepalived.
type VRRP struct {
	NIC      string
	Priority int
	Address  string // the virtual one, with its prefix
	// Own and Peer are the hosts' own addresses, if they tell each other by unicast.
	Own, Peer string
}

// StartVRRP starts keepalived. The instance begins as backup, and leaves the address to another
// one that has it.
func (h *Host) StartVRRP(v VRRP) *Daemon {
	h.t.Helper()
	unicast := ""
	if v.Peer != "" {
		unicast = fmt.Sprintf("unicast_src_ip %s\nunicast_peer {\n%s\n}\n", v.Own, v.Peer)
	}
	conf := h.Write("keepalived.conf", fmt.Sprintf(`vrrp_instance V {
state BACKUP
nopreempt
version 3
advert_int 1
virtual_router_id 51
interface %s
priority %d
%svirtual_ipaddress {
%s
}
}
`, v.NIC, v.Priority, unicast, v.Address))
	return h.Start("usr/sbin/keepalived", "-f", conf, "-n", "-l", "-P", "-p", "/run/keepalived.pid", "-r", "/run/vrrp.pid")
}

// HasAddress waits until the host has the address on some NIC.
func (h *Host) HasAddress(d *Daemon, address string) {
	h.t.Helper()
	d.await(address, func() bool { return strings.Contains(h.IP("addr"), " "+address+" ") })
}
