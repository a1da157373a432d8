package attacker

import "slices"

// attack is one kind of attack.
type attack struct {
	name   string
	weight int  // how often it is chosen
	init   bool // needs capabilities in the first user namespace
	do     func(a *attacker, link target) error
	rig    bool // needs NICs of hardware, with RDMA devices
}

// possible reports whether pods of a kind can make the attack.
func (atk attack) possible(plain, hardware bool) bool {
	return (plain || !atk.init) && (hardware || !atk.rig)
}

// attacks is the list of all attacks.
var attacks = slices.Concat(anywhere, settings(), onHardware)

// anywhere are the attacks on any NIC. Those that fill the kernel's tables are
// rare: two processors must carry them out.
var anywhere = []attack{
	{"altnames, few", 4, false, (*attacker).someAltNames, false},
	{"altnames, as many as fit", 2, false, (*attacker).maxAltNames, false},
	{"altnames removed", 2, false, (*attacker).dropAltNames, false},
	{"rename", 6, false, (*attacker).rename, false},
	{"rename to a NIC of the host", 4, false, (*attacker).renameAsRail, false},
	{"two names exchanged", 3, false, (*attacker).exchange, false},
	{"alias of another NIC", 5, false, (*attacker).alias, false},
	{"link-layer broadcast", 6, false, (*attacker).broadcast, false},
	{"MAC", 5, false, (*attacker).mac, false},
	{"MTU", 4, false, (*attacker).mtu, false},
	{"queue length", 3, false, (*attacker).queueLength, false},
	{"group", 3, false, (*attacker).group, false},
	{"link mode", 2, false, (*attacker).linkMode, false},
	{"proto_down", 1, false, (*attacker).protoDown, false},
	{"carrier", 1, false, (*attacker).carrier, false},
	{"segment sizes", 4, false, (*attacker).segments, false},
	{"flags", 6, false, (*attacker).flags, false},
	{"address generation", 3, false, (*attacker).addressGeneration, false},
	{"sysctls", 4, false, (*attacker).sysctls, false},
	{"ethtool features", 6, false, (*attacker).features, false},
	{"ethtool rings, channels, coalescing", 3, false, (*attacker).queues, false},
	{"NAPI and threads", 4, false, (*attacker).napi, false},
	{"packet steering", 4, true, (*attacker).steering, false},
	{"XDP, generic", 5, true, (*attacker).xdpGeneric, false},
	{"XDP, native", 4, true, (*attacker).xdpNative, false},
	{"XDP by a BPF link", 3, true, (*attacker).xdpLink, false},
	{"tcx", 4, true, (*attacker).tcx, false},
	{"tcx by a BPF link", 4, true, (*attacker).tcxLink, false},
	{"filters of tc", 3, true, (*attacker).filters, false},
	{"queueing discipline", 3, false, (*attacker).discipline, false},
	{"hundreds of addresses", 2, false, (*attacker).addresses, false},
	{"hundreds of routes", 2, false, (*attacker).routes, false},
	{"hundreds of rules", 1, false, (*attacker).rules, false},
	{"hundreds of neighbors", 2, false, (*attacker).neighbors, false},
	{"flush of the addresses", 1, false, (*attacker).flush, false},
	{"fdb entries", 2, false, (*attacker).fdb, false},
	{"bridge over it", 3, false, (*attacker).bridge, false},
	{"macvlan over it", 3, false, (*attacker).macvlanOver, false},
	{"VLAN over it", 2, false, (*attacker).vlanOver, false},
	{"VXLAN over it", 2, false, (*attacker).vxlanOver, false},
	{"veth with a NIC's name", 3, false, (*attacker).vethAsRail, false},
	{"veth in its place", 3, false, (*attacker).inItsPlace, false},
	{"links removed", 4, false, (*attacker).removeOwn, false},
	{"nested namespace and back", 3, false, (*attacker).nested, false},
	{"nested namespace that holds it", 1, false, (*attacker).hidden, false},
	{"packet sockets", 2, false, (*attacker).packetSockets, false},
	{"flood of events", 2, false, (*attacker).flood, false},
}

// onHardware are the attacks on NICs of hardware, with RDMA devices. The kernel
// requires capabilities in the first user namespace to change such a device
// (RDMA_NL_ADMIN_PERM).
var onHardware = []attack{
	{"RDMA: rename", 6, true, (*attacker).deviceRename, true},
	{"RDMA: two names exchanged", 4, true, (*attacker).deviceExchange, true},
	{"RDMA: nested namespace and back", 4, true, (*attacker).deviceNested, true},
	{"RDMA: nested namespace that holds it", 2, true, (*attacker).deviceHidden, true},
	{"RDMA: mode", 1, true, (*attacker).mode, true},
	{"RDMA: contexts", 6, false, (*attacker).verbsContext, true},
	{"RDMA: management", 3, true, (*attacker).management, true},
	{"nested namespace that a socket holds", 1, false, (*attacker).hideBySocket, true},
}
