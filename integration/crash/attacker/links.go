package attacker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From linux/if_link.h and linux/rtnetlink.h; package unix lacks them.
const (
	newLinkProp, delLinkProp = 108, 109 // RTM_…LINKPROP
	maxAltname               = 127      // ALTIFNAMSIZ without its end
	fits                     = 490      // names of that length in one attribute
)

func (a *attacker) word(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[a.IntN(36)]
	}
	return string(b)
}

func (a *attacker) rail() string { return a.rails[a.IntN(len(a.rails))] }

// altNames adds altnames to the interface, or removes them.
func altNames(kind, index int, names ...string) error {
	flags := unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_APPEND
	if kind == delLinkProp {
		flags = 0
	}
	list := nl.NewRtAttr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, nil)
	for _, name := range names {
		list.AddRtAttr(unix.IFLA_ALT_IFNAME, append([]byte(name), 0))
	}
	return request(kind, flags, index, 0, 0, list)
}

func (a *attacker) someAltNames(link target) error {
	return altNames(newLinkProp, link.index, []string{a.rail(), a.word(1 + a.IntN(maxAltname)), a.word(20), "enp3s0np0"}[a.IntN(4)])
}

func (a *attacker) maxAltNames(link target) error {
	names := make([]string, fits)
	for i := range names {
		names[i] = fmt.Sprintf("%03d", i) + a.word(maxAltname-3)
	}
	return altNames(newLinkProp, link.index, names...)
}

// dropAltNames removes an altname that the host gave the NIC, if it has one.
func (a *attacker) dropAltNames(link target) error {
	return altNames(delLinkProp, link.index, fmt.Sprintf("enp%ds0np0", a.IntN(8)))
}

func (a *attacker) rename(link target) error {
	return change(link.index, 0, 0, text(unix.IFLA_IFNAME, a.word(2+a.IntN(13))))
}

func (a *attacker) renameAsRail(link target) error {
	return change(link.index, 0, 0, text(unix.IFLA_IFNAME, a.rail()))
}

// exchange swaps the names of two interfaces.
func (a *attacker) exchange(link target) error {
	links := interfaces()
	if len(links) == 0 {
		return unix.ENODEV // the last one has just been taken from the pod
	}
	other := links[a.IntN(len(links))]
	if other == link {
		return nil
	}
	for _, step := range []target{{"aside", other.index}, {other.name, link.index}, {link.name, other.index}} {
		if err := change(step.index, 0, 0, text(unix.IFLA_IFNAME, step.name)); err != nil {
			return err
		}
	}
	return nil
}

func (a *attacker) alias(link target) error {
	alias := []string{a.rail(), "rail-cni", a.word(255), "", "net1", "../" + a.rail(), "a b\nc"}[a.IntN(7)]
	return change(link.index, 0, 0, nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
}

func (a *attacker) hardware() []byte {
	return []byte{2, 0x66, 0x66, byte(a.IntN(256)), byte(a.IntN(256)), byte(a.IntN(256))}
}

func (a *attacker) broadcast(link target) error {
	return change(link.index, 0, 0, nl.NewRtAttr(unix.IFLA_BROADCAST, a.hardware()))
}

// mac sets a random address, or that of one of the host's NICs.
func (a *attacker) mac(link target) error {
	mac := a.hardware()
	if a.IntN(3) == 0 {
		mac = []byte{2, 0, 0, 0, 3, byte(a.IntN(8))}
	}
	return change(link.index, 0, 0, nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
}

func (a *attacker) number(link target, kind int, values ...uint32) error {
	return change(link.index, 0, 0, attribute(kind, values[a.IntN(len(values))]))
}

func (a *attacker) mtu(link target) error {
	return a.number(link, unix.IFLA_MTU, 68, 1280, 1500, 4000, 8999, 9000, 65535)
}

func (a *attacker) queueLength(link target) error {
	return a.number(link, unix.IFLA_TXQLEN, 0, 1, 1000, 1<<31-1)
}

func (a *attacker) group(link target) error { return a.number(link, unix.IFLA_GROUP, 1, 7, 1<<31) }

func (a *attacker) linkMode(link target) error {
	return change(link.index, 0, 0, nl.NewRtAttr(unix.IFLA_LINKMODE, []byte{byte(a.IntN(2))}))
}

func (a *attacker) protoDown(link target) error {
	return change(link.index, 0, 0, nl.NewRtAttr(unix.IFLA_PROTO_DOWN, []byte{1}))
}

func (a *attacker) carrier(link target) error {
	return change(link.index, 0, 0, nl.NewRtAttr(unix.IFLA_CARRIER, []byte{byte(a.IntN(2))}))
}

// segments sets the largest segments that the kernel makes of and for its
// packets.
func (a *attacker) segments(link target) error {
	kinds := []int{unix.IFLA_GSO_MAX_SIZE, unix.IFLA_GSO_MAX_SEGS, unix.IFLA_GRO_MAX_SIZE, unix.IFLA_GSO_IPV4_MAX_SIZE, unix.IFLA_GRO_IPV4_MAX_SIZE}
	return a.number(link, kinds[a.IntN(len(kinds))], 1, 100, 4000, 65000)
}

func (a *attacker) flags(link target) error {
	all := []uint32{
		unix.IFF_UP, unix.IFF_PROMISC, unix.IFF_ALLMULTI, unix.IFF_NOARP, unix.IFF_MULTICAST,
		unix.IFF_DEBUG, unix.IFF_DYNAMIC, unix.IFF_PORTSEL, unix.IFF_NOTRAILERS, unix.IFF_AUTOMEDIA,
	}
	flag := all[a.IntN(len(all))]
	return change(link.index, uint32(a.IntN(2))*flag, flag)
}

// addressGeneration sets how the kernel generates IPv6 addresses.
func (a *attacker) addressGeneration(link target) error {
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, nil)
	inet6 := spec.AddRtAttr(unix.AF_INET6|unix.NLA_F_NESTED, nil)
	if a.IntN(2) == 0 {
		inet6.AddRtAttr(8, []byte{byte(a.IntN(4))}) // IFLA_INET6_ADDR_GEN_MODE
	} else {
		inet6.AddRtAttr(7, append(make([]byte, 8), 0, 0, 0, 0, 0, 0, 0, 7)) // IFLA_INET6_TOKEN
	}
	return change(link.index, 0, 0, spec)
}

// sysctls sets one of the interface's sysctls.
func (a *attacker) sysctls(link target) error {
	all := []string{
		"ipv4/conf/%s/rp_filter=1", "ipv4/conf/%s/forwarding=1", "ipv4/conf/%s/arp_announce=2", "ipv4/conf/%s/proxy_arp=1",
		"ipv4/conf/%s/disable_policy=1", "ipv6/conf/%s/disable_ipv6=1", "ipv6/conf/%s/disable_ipv6=0", "ipv6/conf/%s/accept_ra=2",
		"ipv6/conf/%s/mtu=1280", "ipv4/neigh/%s/gc_stale_time=5", "ipv6/neigh/%s/retrans_time_ms=3000",
	}
	path, value, _ := strings.Cut(fmt.Sprintf(all[a.IntN(len(all))], link.name), "=")
	return os.WriteFile(filepath.Join("/proc/sys/net", path), []byte(value), 0)
}
