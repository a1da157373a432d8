package attacker

// attack is one thing that the program does.
type attack struct {
	name   string
	weight int  // how often it is chosen
	init   bool // needs capabilities in the first user namespace
	do     func(a *attacker, on target) error
}

// attacks are all of them. What fills the kernel's tables is rare: two
// processors have to do it.
var attacks = []attack{
	{"altnames, few", 4, false, (*attacker).someAltNames},
	{"altnames, as many as fit", 2, false, (*attacker).mostAltNames},
	{"altnames removed", 2, false, (*attacker).dropAltNames},
	{"rename", 6, false, (*attacker).rename},
	{"rename to a NIC of the host", 4, false, (*attacker).renameAsRail},
	{"two names exchanged", 3, false, (*attacker).exchange},
	{"alias of another NIC", 5, false, (*attacker).alias},
	{"link-layer broadcast", 6, false, (*attacker).broadcast},
	{"MAC", 5, false, (*attacker).mac},
	{"MTU", 4, false, (*attacker).mtu},
	{"queue length", 3, false, (*attacker).queueLength},
	{"group", 3, false, (*attacker).group},
	{"link mode", 2, false, (*attacker).linkMode},
	{"proto_down", 1, false, (*attacker).protoDown},
	{"carrier", 1, false, (*attacker).carrier},
	{"segment sizes", 4, false, (*attacker).segments},
	{"flags", 6, false, (*attacker).flags},
	{"address generation", 3, false, (*attacker).addressGeneration},
	{"sysctls", 4, false, (*attacker).sysctls},
	{"ethtool features", 6, false, (*attacker).features},
	{"ethtool rings, channels, coalescing", 3, false, (*attacker).queues},
	{"NAPI and threads", 4, false, (*attacker).napi},
	{"packet steering", 4, true, (*attacker).steering},
	{"XDP, generic", 5, true, (*attacker).xdpGeneric},
	{"XDP, native", 4, true, (*attacker).xdpNative},
	{"XDP by a BPF link", 3, true, (*attacker).xdpLink},
	{"tcx", 4, true, (*attacker).tcx},
	{"tcx by a BPF link", 4, true, (*attacker).tcxLink},
	{"filters of tc", 3, true, (*attacker).filters},
	{"queueing discipline", 3, false, (*attacker).discipline},
	{"hundreds of addresses", 2, false, (*attacker).addresses},
	{"hundreds of routes", 2, false, (*attacker).routes},
	{"hundreds of rules", 1, false, (*attacker).rules},
	{"hundreds of neighbors", 2, false, (*attacker).neighbors},
	{"flush of the addresses", 1, false, (*attacker).flush},
	{"fdb entries", 2, false, (*attacker).fdb},
	{"bridge over it", 3, false, (*attacker).bridge},
	{"macvlan over it", 3, false, (*attacker).macvlanOver},
	{"VLAN over it", 2, false, (*attacker).vlanOver},
	{"VXLAN over it", 2, false, (*attacker).vxlanOver},
	{"veth with a NIC's name", 3, false, (*attacker).vethAsRail},
	{"veth in its place", 3, false, (*attacker).inItsPlace},
	{"links removed", 4, false, (*attacker).removeOwn},
	{"nested namespace and back", 3, false, (*attacker).nested},
	{"nested namespace that holds it", 1, false, (*attacker).hidden},
	{"packet sockets", 2, false, (*attacker).packetSockets},
	{"flood of events", 2, false, (*attacker).flood},
}
