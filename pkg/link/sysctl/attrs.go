package sysctl

import (
	"encoding/binary"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// The kernel's description of a link contains most of its sysctls, which are some ninety files, as
// arrays of 32-bit numbers (inet_fill_link_af, ipv6_store_devconf). Reading the sysctls from there
// needs no further system call.

// From linux/if_link.h: the arrays, in IFLA_AF_SPEC.
const (
	inetConf  = 1 // IFLA_INET_CONF, in AF_INET
	inet6Conf = 2 // IFLA_INET6_CONF, in AF_INET6
)

// confs are the groups of sysctls, with the names of their files in the order of the kernel's
// numbers (IPV4_DEVCONF_* of linux/ip.h, DEVCONF_* of linux/ipv6.h). A setting is left out if its
// file shows it in another form than the array.
var confs = map[string]struct {
	family, array uint16
	names         []string
}{
	"ipv4/conf": {unix.AF_INET, inetConf, []string{
		"forwarding", "mc_forwarding", "proxy_arp", "accept_redirects", "secure_redirects", "send_redirects", "shared_media",
		"rp_filter", "accept_source_route", "bootp_relay", "log_martians", "tag", "arp_filter", "medium_id", "disable_xfrm",
		"disable_policy", "force_igmp_version", "arp_announce", "arp_ignore", "promote_secondaries", "arp_accept", "arp_notify",
		"accept_local", "src_valid_mark", "proxy_arp_pvlan", "route_localnet", "igmpv2_unsolicited_report_interval",
		"igmpv3_unsolicited_report_interval", "ignore_routes_with_linkdown", "drop_unicast_in_l2_multicast",
		"drop_gratuitous_arp", "bc_forwarding", "arp_evict_nocarrier",
	}},
	"ipv6/conf": {unix.AF_INET6, inet6Conf, []string{
		"forwarding", "hop_limit", "mtu", "accept_ra", "accept_redirects", "autoconf", "dad_transmits", "router_solicitations",
		"", "", "use_tempaddr", "temp_valid_lft",
		"temp_prefered_lft", //nolint:misspell // the kernel's name
		"regen_max_retry", "max_desync_factor", "max_addresses",
		"force_mld_version", "accept_ra_defrtr", "accept_ra_pinfo", "accept_ra_rtr_pref", "", "accept_ra_rt_info_max_plen",
		"proxy_ndp", "optimistic_dad", "accept_source_route", "mc_forwarding", "disable_ipv6", "accept_dad", "force_tllao",
		"ndisc_notify", "", "", "suppress_frag_ndisc", "accept_ra_from_local", "use_optimistic", "accept_ra_mtu", "",
		"use_oif_addrs_only", "accept_ra_min_hop_limit", "ignore_routes_with_linkdown", "drop_unicast_in_l2_multicast",
		"drop_unsolicited_na", "keep_addr_on_down", "", "seg6_enabled", "seg6_require_hmac", "enhanced_dad", "addr_gen_mode",
		"disable_policy", "accept_ra_rt_info_min_plen", "ndisc_tclass", "rpl_seg_enabled",
	}},
}

// OfAttrs returns the sysctls in the attributes of a link, for example "ipv4/conf/arp_ignore" →
// "1". The result may also contain settings that have no file.
func OfAttrs(attrs nlattr.Attrs) map[string]string {
	found := map[string]string{}
	all, _ := attrs.Nested(unix.IFLA_AF_SPEC) // an empty attribute has none
	for group, c := range confs {
		family, _ := all.Nested(c.family)
		numbers, _ := family.Get(c.array)
		for i, name := range c.names {
			if name != "" && 4*i+4 <= len(numbers) {
				found[group+"/"+name] = strconv.Itoa(int(int32(binary.NativeEndian.Uint32(numbers[4*i:]))))
			}
		}
	}
	return found
}
