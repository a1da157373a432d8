package whereabouts

import "fmt"

// Reasons that several divergences share.
const (
	gatewayKept = "no pod may get the address of the network's gateway, except with `\"allow_gateway\": true`"

	boundsInSlices = "with slices, v0.9.4 ignores the bounds; rail-cni applies the bounds to the whole range"
)

const plain = `{"range":"10.0.0.0/24"}`

var twoPods = []step{add(1), add(2), del(1), del(2)}

func pool(name, cidr, allocations string) existing {
	return existing{pools, fmt.Sprintf(`{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool",
		"metadata":{"name":%q,"labels":{"team":"net"}},"spec":{"range":%q,"allocations":%s}}`, name, cidr, allocations)}
}

func reservation(name, podref string) existing {
	return reservationOf(name, podref, `,"ifname":"net1"`)
}

func reservationOf(name, podref, more string) existing {
	return existing{reservations, fmt.Sprintf(`{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"OverlappingRangeIPReservation",
		"metadata":{"name":%q},"spec":{"podref":%q%s}}`, name, podref, more)}
}

func slicePool(name, cidr, allocations string) existing {
	return existing{slicePools, fmt.Sprintf(`{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"NodeSlicePool",
		"metadata":{"name":%q},"spec":{"range":%q,"sliceSize":"/26"},"status":{"allocations":%s}}`, name, cidr, allocations)}
}

func entry(pod int, ifname string) string {
	id, _ := identity(pod)
	return fmt.Sprintf(`{"id":%q,"podref":"apps/pod-%d","ifname":%q}`, id, pod, ifname)
}

// foreign returns reservations of other pods for 10.0.0.1 to 10.0.0.n.
func foreign(n int) (all []existing) {
	for i := range n {
		all = append(all, reservation(fmt.Sprint("10.0.0.", i+1), "apps/other"))
	}
	return all
}

const (
	slicedIPAM = `{"range":"10.0.0.0/16","node_slice_size":"/26"}`
	node1Slice = `[{"nodeName":"node0","sliceRange":"10.0.0.0/26"},{"nodeName":"node1","sliceRange":"10.0.0.64/26"}]`
)

var sliced = []existing{slicePool("net", "10.0.0.0/16", node1Slice)}

var scenarios = []scenario{
	// The range.
	{key: "range", what: "CIDR: lowest first, freed addresses first again", ipam: plain, steps: []step{add(1), add(2), del(1), add(3), del(2), del(3)}},
	{key: "range", what: "host bits name the network", ipam: `{"range":"192.168.2.225/28"}`, steps: twoPods},
	{key: "range", what: "start-end", ipam: `{"range":"10.0.0.5-10.0.0.6/24"}`, steps: []step{add(1), add(2), add(3)}, says: "Could not allocate IP in range"},
	{key: "range", what: "start-end beats range_start and range_end", ipam: `{"range":"10.0.0.5-10.0.0.6/24","range_start":"10.0.0.9","range_end":"10.0.0.20"}`, steps: twoPods},
	{key: "range", what: "start-end of IPv6", ipam: `{"range":"2001:db8::5-2001:db8::6/64"}`, steps: []step{add(1), add(2), add(3)}, says: "Could not allocate IP in range"},
	{key: "range", what: "start outside the network of end", ipam: `{"range":"10.0.1.5-10.0.0.6/24"}`, steps: []step{add(1)}, says: "invalid range start for CIDR"},
	{key: "range", what: "start that is no address", ipam: `{"range":"x-10.0.0.6/24"}`, steps: []step{add(1)}, says: "invalid range start IP"},
	{key: "range", what: "blanks round the dash", ipam: `{"range":"10.0.0.5 - 10.0.0.6/24"}`, steps: []step{add(1)}, says: "invalid range start IP"},
	{key: "range", what: "leading zeros", ipam: `{"range":"010.000.000.000/24"}`, steps: twoPods},
	{key: "range", what: "/30 has two addresses", ipam: `{"range":"10.0.0.0/30"}`, steps: []step{add(1), add(2), add(3), del(1), add(3)}, says: "Could not allocate IP in range: ip: 10.0.0.1 / - 10.0.0.2 / range: 10.0.0.0/30 / excludeRanges: []"},
	{
		key: "range", what: "/31", ipam: `{"range":"10.0.0.0/31"}`, steps: []step{add(1)}, says: "has no usable IP addresses, it is too small",
		because: "v0.9.4 leaves an empty pool behind; rail-cni refuses the configuration before it writes anything",
	},
	{
		key: "range", what: "IPv6 /127", ipam: `{"range":"2001:db8::/127"}`, steps: []step{add(1)}, says: "has no usable IP addresses, it is too small",
		because: "v0.9.4 leaves an empty pool behind; rail-cni refuses the configuration before it writes anything",
	},
	{key: "range", what: "IPv6", ipam: `{"range":"2001:db8:480:603d::/64"}`, steps: twoPods},
	{key: "range", what: "IPv6 in another spelling", ipam: `{"range":"2001:DB8:0:0::0/64"}`, steps: twoPods},
	{key: "range", what: "IPv6, address that ends in a colon", ipam: `{"range":"2001:db8:480:603d::/64","range_start":"2001:db8:480:603d:304:403::"}`, steps: twoPods},
	{
		key: "range", what: "IPv6, more than 64 bits from the network", ipam: `{"range":"2001:db8::/32","range_start":"2001:db8:1::1"}`, steps: []step{add(1), add(2), del(2), del(1)},
		because: "v0.9.4 writes the key of a different address (the lower 64 bits of the distance), and its DEL does not remove the reservation",
	},
	{key: "range", what: "addresses that end in .255 and .0", ipam: `{"range":"10.0.0.0/16","range_start":"10.0.0.255"}`, steps: twoPods},
	{key: "range", what: "none: success without address", ipam: `{}`, steps: []step{add(1), del(1)}},
	{key: "range", what: "no CIDR", ipam: `{"range":"10.0.0.0"}`, steps: []step{add(1)}, says: "invalid CIDR 10.0.0.0"},
	{key: "range", what: "wrong JSON type", ipam: `{"range":7}`, steps: []step{add(1)}},

	{key: "range_start", what: "first address", ipam: `{"range":"10.0.0.0/24","range_start":"10.0.0.100"}`, steps: twoPods},
	{key: "range_start", what: "no address: ignored", ipam: `{"range":"10.0.0.0/24","range_start":"x"}`, steps: twoPods},
	{key: "range_start", what: "the network itself", ipam: `{"range":"10.0.0.0/24","range_start":"10.0.0.0"}`, steps: twoPods},
	{key: "range_start", what: "outside the range: ignored", ipam: `{"range":"10.0.0.0/24","range_start":"10.0.1.7"}`, steps: twoPods},
	{key: "range_start", what: "of the other family: ignored", ipam: `{"range":"10.0.0.0/24","range_start":"2001:db8::7"}`, steps: twoPods},
	{key: "range_end", what: "last address", ipam: `{"range":"10.0.0.0/24","range_end":"10.0.0.2"}`, steps: []step{add(1), add(2), add(3)}, says: "Could not allocate IP in range: ip: 10.0.0.1 / - 10.0.0.2 / range: 10.0.0.0/24"},
	{key: "range_end", what: "before range_start: ignored", ipam: `{"range":"10.0.0.0/24","range_start":"10.0.0.9","range_end":"10.0.0.5"}`, steps: twoPods},
	{key: "range_end", what: "outside the range: ignored", ipam: `{"range":"10.0.0.0/24","range_start":"10.0.0.9","range_end":"10.0.7.5"}`, steps: twoPods},

	{key: "exclude", what: "CIDR", ipam: `{"range":"10.0.0.0/24","exclude":["10.0.0.0/29"]}`, steps: twoPods},
	{key: "exclude", what: "single addresses", ipam: `{"range":"10.0.0.0/24","exclude":["10.0.0.1","10.0.0.3/32"]}`, steps: twoPods},
	{key: "exclude", what: "blocks that touch", ipam: `{"range":"10.0.0.0/24","exclude":["10.0.0.0/30","10.0.0.4/30","10.0.0.9"]}`, steps: twoPods},
	{key: "exclude", what: "IPv6", ipam: `{"range":"2001:db8::/64","exclude":["2001:db8::/120"]}`, steps: twoPods},
	{
		key: "exclude", what: "all of the range", ipam: `{"range":"10.0.0.0/24","exclude":["10.0.0.0/24"]}`, steps: []step{add(1)}, says: "Could not allocate IP in range: ip: 10.0.0.1 / - 10.0.0.254 / range: 10.0.0.0/24 / excludeRanges: [10.0.0.0/24]",
		because: "v0.9.4 leaves an empty pool behind; rail-cni creates a pool only together with its first address",
	},
	{
		key: "exclude", what: "dash range", ipam: `{"range":"10.0.0.0/24","exclude":["10.0.0.1-10.0.0.5"]}`, steps: []step{add(1)},
		because: "v0.9.4 leaves an empty pool behind; rail-cni refuses the configuration before it writes anything",
	},
	{
		key: "exclude", what: "leading zeros", ipam: `{"range":"10.0.0.0/24","exclude":["10.0.0.01"]}`, steps: []step{add(1)},
		because: "v0.9.4 leaves an empty pool behind; rail-cni refuses the configuration before it writes anything",
	},
	{key: "exclude", what: "of another network: no effect", ipam: `{"range":"10.0.0.0/24","exclude":["10.9.0.0/24"]}`, steps: twoPods},

	{key: "ipRanges", what: "one", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"}]}`, steps: twoPods},
	{key: "ipRanges", what: "dual stack", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"2001:db8::/64"}]}`, steps: twoPods},
	{key: "ipRanges", what: "after range", ipam: `{"range":"10.0.0.0/24","ipRanges":[{"range":"10.1.0.0/24"},{"range":"2001:db8::/64"}]}`, steps: twoPods},
	{
		key: "ipRanges", what: "bounds and exclude of their own", ipam: `{"ipRanges":[{"range":"10.0.0.0/24","range_start":"10.0.0.8","range_end":"10.0.0.9"},{"range":"10.1.0.0/24","exclude":["10.1.0.0/28"]}]}`,
		steps: []step{add(1), add(2), del(1), del(2)},
	},
	{key: "ipRanges", what: "exclude beside it does not concern it", ipam: `{"exclude":["10.0.0.0/28"],"ipRanges":[{"range":"10.0.0.0/24"}]}`, steps: twoPods},
	{key: "ipRanges", what: "start-end", ipam: `{"ipRanges":[{"range":"10.0.0.5-10.0.0.9/24"}]}`, steps: twoPods},
	{key: "ipRanges", what: "bound that is no address", ipam: `{"ipRanges":[{"range":"10.0.0.0/24","range_start":"x"}]}`, steps: []step{add(1)}},
	{
		key: "ipRanges", what: "the second is full", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.1.0.0/30"}]}`, steps: []step{add(1), add(2), add(3)}, says: "Could not allocate IP in range",
		because: "when ADD fails, v0.9.4 keeps the address of the first range; rail-cni keeps no address",
	},
	{
		key: "ipRanges", what: "the same pool twice", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.0.0.7/24"}]}`, steps: []step{add(1)},
		because: "v0.9.4 assigns the same address twice to one interface; rail-cni refuses the configuration",
	},
	{
		key: "ipRanges", what: "one inside the other", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.0.0.0/16"}]}`, steps: []step{add(1), del(1)},
		because: "v0.9.4 assigns the same address twice to one interface",
	},
	{
		key: "ipRanges", what: "DEL when the first range's entry is gone", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.1.0.0/24"}]}`,
		existing: []existing{pool("10.1.0.0-24", "10.1.0.0/24", `{"1":`+entry(1, "net1")+`}`), reservation("10.1.0.1", "apps/pod-1")}, steps: []step{del(1)},
		because: "v0.9.4 stops at the first range without an address of the pod; rail-cni frees the addresses of every range",
	},

	// Gateway, routes, DNS.
	{key: "gateway", what: "outside what is handed out", ipam: `{"range":"10.0.0.0/24","gateway":"10.0.0.254"}`, steps: twoPods},
	{key: "gateway", what: "in another network", ipam: `{"range":"10.0.0.0/24","gateway":"10.9.0.1"}`, steps: twoPods},
	{key: "gateway", what: "leading zeros", ipam: `{"range":"10.0.0.0/24","gateway":"010.000.000.254"}`, steps: twoPods},
	{key: "gateway", what: "excluded by the config as well", ipam: `{"range":"10.0.0.0/24","gateway":"10.0.0.1","exclude":["10.0.0.1"]}`, steps: twoPods},
	{key: "gateway", what: "the lowest address", ipam: `{"range":"10.0.0.0/24","gateway":"10.0.0.1"}`, steps: twoPods, because: gatewayKept},
	{key: "gateway", what: "of IPv6, the lowest address", ipam: `{"range":"2001:db8::/64","gateway":"2001:db8::1"}`, steps: twoPods, because: gatewayKept},
	{
		key: "allocation", what: "rotate: the freed address is not the next one", ipam: `{"range":"10.0.0.0/24","allocation":"rotate"}`, steps: []step{add(1), del(1), add(2)},
		because: "only rail-cni has this key; v0.9.4 assigns the lowest address",
	},
	{key: "allow_gateway", what: "true: the gateway is handed out", ipam: `{"range":"10.0.0.0/24","gateway":"10.0.0.1","allow_gateway":true}`, steps: twoPods},
	{
		key: "gateway", what: "with addresses of both families", ipam: `{"gateway":"10.0.0.254","ipRanges":[{"range":"10.0.0.0/24"},{"range":"2001:db8::/64"}]}`, steps: []step{add(1)},
		because: "an IPv6 address cannot have an IPv4 gateway",
	},
	{key: "gateway", what: "no address", ipam: `{"range":"10.0.0.0/24","gateway":"x"}`, steps: []step{add(1)}, says: "couldn't parse gateway IP: x"},
	{key: "gateway", what: "with a prefix length", ipam: `{"range":"10.0.0.0/24","gateway":"10.0.0.1/24"}`, steps: []step{add(1)}, says: "couldn't parse gateway IP: 10.0.0.1/24"},
	{key: "routes", what: "verbatim", ipam: `{"range":"10.0.0.0/24","routes":[{"dst":"0.0.0.0/0"},{"dst":"10.8.0.0/16","gw":"10.9.0.1"},{"dst":"2001:db8::/32"}]}`, steps: twoPods},
	{key: "routes", what: "a next hop of the range", ipam: `{"range":"10.0.0.0/24","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]}`, steps: twoPods, because: gatewayKept},
	{key: "routes", what: "destination that is no network", ipam: `{"range":"10.0.0.0/24","routes":[{"dst":"x"}]}`, steps: []step{add(1)}},
	{key: "dns", what: "verbatim", ipam: `{"range":"10.0.0.0/24","dns":{"nameservers":["10.0.0.53"],"domain":"d","search":["a","b"],"options":["ndots:2"]}}`, steps: twoPods},

	// Static addresses.
	{key: "addresses", what: "after those of ranges", ipam: `{"range":"10.0.0.0/24","addresses":[{"address":"10.2.0.7/16","gateway":"10.2.0.1"},{"address":"2001:db8::7/64"}]}`, steps: twoPods},
	{key: "addresses", what: "alone", ipam: `{"addresses":[{"address":"10.2.0.7/16"}]}`, steps: twoPods},
	{key: "addresses", what: "without prefix length", ipam: `{"addresses":[{"address":"10.2.0.7"}]}`, steps: []step{add(1)}, says: "invalid CIDR in addresses 10.2.0.7"},
	{key: "addresses", what: "leading zeros", ipam: `{"addresses":[{"address":"010.002.000.007/16"}]}`, steps: []step{add(1)}},
	{key: "addresses", what: "two of a family at 0.2.0", ipam: `{"addresses":[{"address":"10.2.0.7/16"},{"address":"10.3.0.7/16"}]}`, steps: []step{add(1).at("0.2.0")}, says: "does not support more than 1 address per family"},
	{key: "CNI_ARGS", what: "IP", ipam: plain, steps: []step{add(1).with("+IP=10.5.0.3/24")}},
	{key: "CNI_ARGS", what: "IP list and GATEWAY", ipam: `{"addresses":[{"address":"10.2.0.7/16"}]}`, steps: []step{add(1).with("+IP=10.5.0.3/24, 2001:db8::3/64;GATEWAY=10.5.0.1,10.2.0.1,2001:db8::1")}},
	{key: "CNI_ARGS", what: "IP without prefix length", ipam: plain, steps: []step{add(1).with("+IP=10.5.0.3")}, says: "invalid CIDR 10.5.0.3"},
	{key: "CNI_ARGS", what: "GATEWAY that is no address", ipam: plain, steps: []step{add(1).with("+IP=10.5.0.3/24;GATEWAY=x")}, says: "invalid gateway address"},
	{key: "CNI_ARGS", what: "unknown key", ipam: plain, steps: []step{add(1).with("FOO=1;K8S_POD_NAMESPACE=apps;K8S_POD_NAME=pod-1")}},
	{key: "CNI_ARGS", what: "unknown key with IgnoreUnknown", ipam: plain, steps: []step{add(1).with("+FOO=1"), del(1).with("+FOO=1")}},
	{key: "CNI_ARGS", what: "no pod name", ipam: plain, steps: []step{add(1).with("IgnoreUnknown=1"), del(1).with("IgnoreUnknown=1")}, says: "no pod name"},

	// Versions of results.
	{key: "cniVersion", what: "0.1.0", ipam: `{"range":"10.0.0.0/24","routes":[{"dst":"10.8.0.0/16"}]}`, steps: []step{add(1).at("0.1.0"), del(1).at("0.1.0")}},
	{key: "cniVersion", what: "0.2.0, dual stack", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"2001:db8::/64"}]}`, steps: []step{add(1).at("0.2.0")}},
	{key: "cniVersion", what: "0.3.1", ipam: plain, steps: []step{add(1).at("0.3.1"), del(1).at("0.3.1")}},
	{key: "cniVersion", what: "0.4.0", ipam: plain, steps: []step{add(1).at("0.4.0"), del(1).at("0.4.0")}},
	{key: "cniVersion", what: "1.1.0", ipam: plain, steps: []step{add(1).at("1.1.0"), del(1).at("1.1.0")}},
	{key: "cniVersion", what: "0.2.0 without any address", ipam: `{}`, steps: []step{add(1).at("0.2.0")}},
	{
		key: "cniVersion", what: "two ranges of a family at 0.2.0", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.1.0.0/24"}]}`, steps: []step{add(1).at("0.2.0")},
		because: "such a result can have only one address, and v0.9.4 allocates a second one that the pod never gets",
	},

	// Address spaces.
	{key: "network_name", what: "prefix of pools and reservations", ipam: `{"range":"10.0.0.0/24","network_name":"blue"}`, steps: twoPods},
	{key: "network_name", what: "each has its own addresses", steps: []step{add(1).conf(plain), add(2).conf(`{"range":"10.0.0.0/24","network_name":"blue"}`), add(3).conf(`{"range":"10.0.0.0/24","network_name":"green"}`)}},
	{key: "network_name", what: "of IPv6", ipam: `{"range":"2001:db8::/64","network_name":"blue"}`, steps: twoPods},
	{key: "network_name", what: "no valid name", ipam: `{"range":"10.0.0.0/24","network_name":"Not_Valid"}`, steps: []step{add(1)}},
	{key: "enable_overlapping_ranges", what: "default: an address is one pod's in all pools", steps: []step{add(1).conf(plain), add(2).conf(`{"range":"10.0.0.0/16"}`), add(3).conf(plain), del(1).conf(plain), del(2).conf(`{"range":"10.0.0.0/16"}`)}},
	{key: "enable_overlapping_ranges", what: "true", ipam: `{"range":"10.0.0.0/24","enable_overlapping_ranges":true}`, steps: twoPods},
	{key: "enable_overlapping_ranges", what: "false: no reservations", ipam: `{"range":"10.0.0.0/24","enable_overlapping_ranges":false}`, steps: twoPods},
	{key: "enable_overlapping_ranges", what: "false: pools do not see each other", steps: []step{add(1).conf(`{"range":"10.0.0.0/24","enable_overlapping_ranges":false}`), add(2).conf(`{"range":"10.0.0.0/16","enable_overlapping_ranges":false}`)}},
	{key: "enable_overlapping_ranges", what: "of the flat file: no effect", ipam: plain, files: map[string]string{"flat": `{"enable_overlapping_ranges":false}`}, steps: twoPods},
	{
		key: "enable_overlapping_ranges", what: "two interfaces of a pod in pools that overlap", steps: []step{add(1).conf(plain), add(1).on("net2").conf(`{"range":"10.0.0.0/16"}`)},
		because: "v0.9.4 gives both interfaces the same address",
	},
	{key: "enable_overlapping_ranges", what: "three addresses reserved by others", ipam: plain, existing: foreign(3), steps: []step{add(1), del(1)}},
	{
		key: "enable_overlapping_ranges", what: "40 addresses reserved by others", ipam: plain, existing: foreign(40), steps: []step{add(1), del(1)},
		because: "v0.9.4 requests one reservation after the other until its 10 s are over; rail-cni lists all reservations with one request",
	},
	{
		key: "enable_overlapping_ranges", what: "an entry of the pod whose address another has reserved", ipam: plain,
		existing: []existing{pool("10.0.0.0-24", "10.0.0.0/24", `{"1":`+entry(1, "net1")+`}`), reservation("10.0.0.1", "apps/other")}, steps: []step{add(1), del(1)},
		because: "v0.9.4 tries the same address 100 times, and the pod never starts; rail-cni tries the next address",
	},
	{
		key: "enable_overlapping_ranges", what: "DEL of an address whose reservation is another's", ipam: plain,
		existing: []existing{pool("10.0.0.0-24", "10.0.0.0/24", `{"1":`+entry(1, "net1")+`}`), reservation("10.0.0.1", "apps/other")}, steps: []step{del(1)},
		because: "v0.9.4 deletes the reservation by its name, although the reservation belongs to another pod",
	},
	{
		key: "enable_overlapping_ranges", what: "an entry of the pod without its reservation", ipam: plain,
		existing: []existing{pool("10.0.0.0-24", "10.0.0.0/24", `{"1":`+entry(1, "net1")+`}`)}, steps: []step{add(1), del(1)},
	},

	// Node slices.
	{key: "node_slice_size", what: "the node's slice, mask of the range", ipam: slicedIPAM, node: "node1", existing: sliced, steps: twoPods},
	{key: "node_slice_size", what: "without a slash", ipam: `{"range":"10.0.0.0/16","node_slice_size":"26"}`, node: "node1", existing: sliced, steps: twoPods},
	{
		key: "node_slice_size", what: "with network_name", ipam: `{"range":"10.0.0.0/16","node_slice_size":"/26","network_name":"blue"}`, node: "node1",
		existing: []existing{slicePool("blue", "10.0.0.0/16", node1Slice)}, steps: twoPods,
	},
	{
		key: "node_slice_size", what: "exclude and bounds", ipam: `{"range":"10.0.0.0/16","exclude":["10.0.0.64/28"],"node_slice_size":"/26"}`, node: "node1", existing: sliced, steps: []step{add(1), del(1)},
		because: "with slices, v0.9.4 ignores `exclude` and the bounds",
	},
	{
		key: "node_slice_size", what: "bounds of the range, one of them in the slice", ipam: `{"range":"10.0.0.0/16","range_start":"10.0.0.100","range_end":"10.0.0.200","node_slice_size":"/26"}`, node: "node1", existing: sliced, steps: []step{add(1), del(1)},
		because: boundsInSlices,
	},
	{
		key: "node_slice_size", what: "bounds of the range, the slice outside", ipam: `{"range":"10.0.0.0/16","range_start":"10.0.0.200","node_slice_size":"/26"}`, node: "node1", existing: sliced, steps: []step{add(1), del(1)},
		because: boundsInSlices,
	},
	{
		key: "node_slice_size", what: "the node's name in the directory configuration_path", ipam: `{"range":"10.0.0.0/16","node_slice_size":"/26","configuration_path":"DIR"}`,
		files: map[string]string{"nodename": "node1\n"}, existing: sliced, steps: twoPods,
		because: "v0.9.4 looks for the name in this directory, but before that it reads the directory as if it were a flat file",
	},
	{
		key: "node_slice_size", what: "no prefix length", ipam: `{"range":"10.0.0.0/16","node_slice_size":"x"}`, node: "node1", existing: sliced, steps: []step{add(1)},
		because: "v0.9.4 never reads the value; rail-cni reports a mistake in the value",
	},

	// The flat file and the server.
	{key: "kubernetes.kubeconfig", what: "missing", ipam: `{"range":"10.0.0.0/24","kubernetes":null}`, steps: []step{add(1)}},
	{key: "kubernetes.kubeconfig", what: "no such file", ipam: `{"range":"10.0.0.0/24","kubernetes":{"kubeconfig":"DIR/none"}}`, steps: []step{add(1)}},
	{key: "kubernetes.kubeconfig", what: "of the flat file", ipam: `{"range":"10.0.0.0/24","kubernetes":null}`, files: map[string]string{"flat": `{"kubernetes":{"kubeconfig":"DIR/kubeconfig"}}`}, steps: twoPods},
	{key: "configuration_path", what: "fills what is empty", ipam: `{"range":"10.0.0.0/24"}`, files: map[string]string{"flat": `{"range":"10.7.0.0/24","gateway":"10.0.0.254","exclude":["10.0.0.1"],"network_name":"blue","routes":[{"dst":"10.8.0.0/16"}]}`}, steps: twoPods},
	{key: "configuration_path", what: "range of the flat file", ipam: `{}`, files: map[string]string{"flat": `{"range":"10.7.0.0/24","range_start":"10.7.0.9"}`}, steps: twoPods},
	{key: "configuration_path", what: "range of the flat file before ipRanges", ipam: `{"ipRanges":[{"range":"10.0.0.0/24"}]}`, files: map[string]string{"flat": `{"range":"10.7.0.0/24"}`}, steps: twoPods},
	{key: "configuration_path", what: "flat file that is no JSON", ipam: plain, files: map[string]string{"flat": `{`}, steps: []step{add(1)}},
	{
		key: "configuration_path", what: "no flat file at all", ipam: plain, noFile: true, steps: []step{add(1), del(1)},
		because: "the network configuration can have every key that the flat file can have, so rail-cni needs no flat file",
	},

	// Ownership.
	{key: "CNI_CONTAINERID", what: "a new container of the pod keeps the address, a late DEL of the old one takes nothing", ipam: plain, steps: []step{add(1), add(1).container("new"), del(1), del(1).container("new")}},
	{key: "CNI_CONTAINERID", what: "ADD again", ipam: plain, steps: []step{add(1), add(1), del(1), del(1)}},
	{key: "CNI_IFNAME", what: "another interface of the pod has its own address", ipam: plain, steps: []step{add(1), add(1).on("net2"), del(1).on("net2"), del(1)}},
	{key: "CNI_IFNAME", what: "DEL of another interface takes nothing", ipam: plain, steps: []step{add(1), del(1).on("net2"), del(1)}},
	{
		key: "CNI_IFNAME", what: "entry from before v0.8, without an interface", ipam: plain,
		existing: []existing{pool("10.0.0.0-24", "10.0.0.0/24", `{"1":{"id":"old","podref":"apps/pod-1"}}`), reservationOf("10.0.0.1", "apps/pod-1", "")}, steps: []step{del(1).container("old")},
		because: "v0.9.4 does not recognize the entry, and keeps the entry forever",
	},
	{
		key: "DEL", what: "with a config that ADD would refuse", steps: []step{add(1).conf(plain), del(1).conf(`{"range":"10.0.0.0"}`)},
		because: "DEL of v0.9.4 always fails and keeps the address; rail-cni frees the address that the node has noted",
	},
	{
		key: "DEL", what: "of nothing", ipam: plain, steps: []step{del(1)},
		because: "v0.9.4 creates an empty pool if the pool does not exist",
	},
	{key: "DEL", what: "of nothing, in a pool", ipam: plain, steps: []step{add(1), del(2), del(1)}},
	{
		key: "IPPool", what: "labels, and placeholders without a pod, stay", ipam: plain,
		existing: []existing{pool("10.0.0.0-24", "10.0.0.0/24", `{"1":{"id":"block","podref":""},"3":`+entry(9, "net1")+`}`)}, steps: twoPods,
	},
	{
		key: "IPPool", what: "keys count from the host bits of spec.range", ipam: plain,
		existing: []existing{pool("10.0.0.0-24", "10.0.0.10/24", `{"1":`+entry(9, "net1")+`}`)}, steps: []step{add(2).conf(`{"range":"10.0.0.0/24","range_start":"10.0.0.11"}`), del(2)},
	},

	// Keys of Multus and libcni.
	{
		key: "runtimeConfig.ips", what: "an address of the range", ipam: plain, steps: []step{add(1).beside(`"runtimeConfig":{"ips":["10.0.0.77/24"]}`)},
		because: "a user who requests an address from Multus expects to get it",
	},
	{
		key: "args.cni.ips", what: "an address of the range", ipam: plain, steps: []step{add(1).beside(`"args":{"cni":{"ips":["10.0.0.77"]}}`)},
		because: "as runtimeConfig.ips",
	},
	{
		key: "CHECK", what: "after ADD", ipam: plain, steps: []step{add(1).at("1.0.0"), add(1).as("CHECK").at("1.0.0").beside(`"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/24"}]}`)},
		because: "v0.9.4 has no CHECK, so libcni's check of a pod always fails",
	},
	{
		key: "STATUS", what: "of a full pool", ipam: `{"range":"10.0.0.0/30"}`, steps: []step{add(1), add(2), add(0).as("STATUS").at("1.1.0")},
		because: "v0.9.4 reports success for every STATUS",
	},
	{
		key: "GC", what: "of an attachment that the runtime does not name", ipam: plain, steps: []step{add(1), add(0).as("GC").at("1.1.0").beside(`"cni.dev/valid-attachments":[]`)},
		because: "v0.9.4 reports success and does nothing; rail-cni frees the addresses that this node got",
	},

	// Keys without effect on addresses.
	{key: "log_level", what: "any, with a file", ipam: `{"range":"10.0.0.0/24","log_file":"DIR/log","log_level":"debug"}`, steps: twoPods},
	{key: "log_level", what: "unknown level", ipam: `{"range":"10.0.0.0/24","log_level":"loud"}`, steps: twoPods},
	{key: "leader_*", what: "given", ipam: `{"range":"10.0.0.0/24","leader_lease_duration":3000,"leader_renew_deadline":2000,"leader_retry_period":500}`, steps: twoPods},
	{key: "leader_*", what: "wrong JSON type", ipam: `{"range":"10.0.0.0/24","leader_lease_duration":"x"}`, steps: []step{add(1)}},
	{key: "sleep_for_race", what: "accepted", ipam: `{"range":"10.0.0.0/24","sleep_for_race":1}`, steps: twoPods},
	{key: "etcd_*, datastore", what: "accepted", ipam: `{"range":"10.0.0.0/24","datastore":"kubernetes","etcd_host":"x","etcd_username":"u","etcd_password":"p","etcd_key_file":"k","etcd_cert_file":"c","etcd_ca_cert_file":"a"}`, steps: twoPods},
	{key: "unknown keys", what: "ignored", ipam: `{"range":"10.0.0.0/24","color":"blue"}`, steps: []step{add(1).beside(`"more":{"x":1}`)}},
	{key: "keys", what: "in another case", ipam: `{"Range":"10.0.0.0/24","RANGE_START":"10.0.0.9"}`, steps: twoPods},
	{key: "ipam", what: "missing", steps: []step{add(1).stdin(`{"cniVersion":"1.0.0","name":"net","type":"macvlan"}`)}, says: "IPAM config missing 'ipam' key"},
	{key: "ipam", what: "stdin that is no JSON", steps: []step{add(1).stdin(`{`)}},
	{
		key: "type", what: "another plugin's", ipam: `{"type":"host-local","range":"10.0.0.0/24"}`, steps: []step{add(1)},
		because: "the runtime has already chosen the program by this key, and rail-cni's program may be installed under another name",
	},
}
