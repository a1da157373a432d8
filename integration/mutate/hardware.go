package mutate

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// hardware are the mutations that a veth lacks, and the rig's NICs have.
var hardware = []Mutation{
	messages("rings", "ethtool -G net1 rx 64", unix.ETHTOOL_MSG_RINGS_SET, testnet.Attribute(unix.ETHTOOL_A_RINGS_RX, word(64))),
	messages("combined channels", "ethtool -L net1 combined 1", unix.ETHTOOL_MSG_CHANNELS_SET, testnet.Attribute(9, word(1))),
	messages("coalescing", "ethtool -C net1 rx-usecs 900", unix.ETHTOOL_MSG_COALESCE_SET,
		testnet.Attribute(unix.ETHTOOL_A_COALESCE_RX_USECS, word(900))),
	messages("adaptive coalescing", "ethtool -C net1 adaptive-rx on rx-frames 3", unix.ETHTOOL_MSG_COALESCE_SET,
		testnet.Attribute(unix.ETHTOOL_A_COALESCE_RX_MAX_FRAMES, word(3)), testnet.Attribute(unix.ETHTOOL_A_COALESCE_USE_ADAPTIVE_RX, []byte{1})),
	messages("pause frames", "ethtool -A net1 rx off tx off", unix.ETHTOOL_MSG_PAUSE_SET,
		testnet.Attribute(unix.ETHTOOL_A_PAUSE_RX, []byte{0}), testnet.Attribute(unix.ETHTOOL_A_PAUSE_TX, []byte{0})),
	messages("private flag", "ethtool --set-priv-flags net1 rx_striding on", unix.ETHTOOL_MSG_PRIVFLAGS_SET, bits(2, 2, 1)),
	messages("message level", "ethtool -s net1 msglvl 7", unix.ETHTOOL_MSG_DEBUG_SET, bits(2, 15, 7)),
	ioctl("forward error correction", "ethtool --set-fec net1 encoding off", slices.Concat(word(0x51), word(0), word(1<<2), word(0))),
	ioctl("RSS hash fields", "ethtool -N net1 rx-flow-hash udp4 sdfn", wide(192, word(0x2a), word(2), word(0xf0), word(0))),
	{Name: "RSS table", By: "ethtool -X net1 equal 1", Fate: Restored, Rig: true, Set: rss(func(a []byte) { clear(a[24 : 24+4*indirection(a)]) })},
	{Name: "RSS key", By: "ethtool -X net1 hkey …", Fate: Restored, Rig: true, Set: rss(func(a []byte) { clear(a[24+4*indirection(a):]) })},
	ioctl("flow rule", "ethtool -N net1 flow-type udp4 dst-port 4791 action -1", rule(7, ^uint64(0))),
	{Name: "very many flow rules", By: "ethtool -N net1 …, 5000 times", Fate: Restored, Rig: true, Set: manyRules},
	ioctl("tunable", "ethtool --set-tunable net1 rx-copybreak 0", slices.Concat(word(0x49), word(1), word(3), word(4), word(0))),
	messages("energy-efficient Ethernet", "ethtool --set-eee net1 eee off", unix.ETHTOOL_MSG_EEE_SET, testnet.Attribute(unix.ETHTOOL_A_EEE_ENABLED, []byte{0})),
	messages("wake-on-LAN", "ethtool -s net1 wol u", unix.ETHTOOL_MSG_WOL_SET, bits(2, 8, 1<<1)),
	onRig(command("DCB: priority flow control", "dcb", "pfc set dev NIC prio-pfc 3:off 4:on")),
	onRig(command("DCB: ETS", "dcb", "ets set dev NIC tc-tsa 0:ets 1:ets tc-bw 0:30 1:70 prio-tc 3:1")),
	onRig(command("DCB: rate of a traffic class", "dcb", "maxrate set dev NIC tc-maxrate 2:10Gbit")),
	onRig(command("DCB: buffers", "dcb", "buffer set dev NIC prio-buffer 3:1 buffer-size 1:64K")),
	onRig(command("DCB: mode of DCBX", "dcb", "dcbx set dev NIC lld-managed ieee")),
	onRig(command("DCB: priority of a DSCP value", "dcb", "app add dev NIC dscp-prio 10:5")),
	{Name: "DCB: what is trusted", By: "dcb apptrust set dev net1 order dscp", Fate: Restored, Rig: true, Set: func(pod *testnet.Netns, nic string) error {
		const table, selector, dscp = 11, 1, 5 // DCB_ATTR_DCB_APP_TRUST_TABLE; dcb(8) of Debian 12 does not know it
		return pod.SetDCB(nic, testnet.Attribute(table|unix.NLA_F_NESTED, testnet.Attribute(selector, []byte{dscp})))
	}},
	onRig(file("transmit rate of a queue", "queues/tx-0/tx_maxrate", "100")),
	onRig(ip("carrier", "link set NIC carrier off")),
	onRig(ip("held down", "link set NIC protodown on protodown_reason 3 on")),
	onRig(ip("reason for holding down", "link set NIC protodown_reason 3 on")),
	onRig(ip("VLAN on it", "link add link NIC name vl0 type vlan id 7", "link set vl0 up")),
	onRig(ip("bond port", "link add bo0 type bond", "link set NIC down", "link set NIC master bo0")),
}

// onRig returns m for a NIC whose driver can do more than that of a veth.
func onRig(m Mutation) Mutation {
	m.Rig = true
	return m
}

// stuck is a setting that the rig's NIC does not reset.
var stuck = reported(messages("private flag that the driver does not take back", "ethtool --set-priv-flags net1 fused on",
	unix.ETHTOOL_MSG_PRIVFLAGS_SET, bits(2, 2, 2)))

func reported(m Mutation) Mutation {
	m.Fate = Reported
	return m
}

func messages(name, cmdline string, command uint8, attrs ...[]byte) Mutation {
	return Mutation{Name: name, By: cmdline, Fate: Restored, Rig: true, Set: func(pod *testnet.Netns, nic string) error {
		return set(pod, nic, command, attrs...)
	}}
}

// bits returns a bitset of size bits as an attribute, with the bits of value.
func bits(kind uint16, size, value uint32) []byte {
	return testnet.Attribute(kind|unix.NLA_F_NESTED, slices.Concat(
		testnet.Attribute(unix.ETHTOOL_A_BITSET_SIZE, word(size)),
		testnet.Attribute(unix.ETHTOOL_A_BITSET_VALUE, word(value)),
		testnet.Attribute(unix.ETHTOOL_A_BITSET_MASK, word(value))))
}

func ioctl(name, cmdline string, argument []byte) Mutation {
	return Mutation{Name: name, By: cmdline, Fate: Restored, Rig: true, Set: func(pod *testnet.Netns, nic string) error {
		return pod.Ethtool(nic, slices.Clone(argument))
	}}
}

// wide returns a struct of size bytes that begins with fields.
func wide(size int, fields ...[]byte) []byte {
	all := slices.Concat(fields...)
	return append(all, make([]byte, size-len(all))...)
}

// rule returns a struct ethtool_rxnfc that inserts a rule at a location.
func rule(location uint32, cookie uint64) []byte {
	a := wide(192, word(0x32), word(0), word(0), word(0), word(2)) // ETHTOOL_SRXCLSRLINS of UDP_V4_FLOW
	binary.NativeEndian.PutUint64(a[16+152:], cookie)
	copy(a[176:], word(location))
	return a
}

func manyRules(pod *testnet.Netns, nic string) error {
	for i := range uint32(5000) {
		if err := pod.Ethtool(nic, rule(i, ^uint64(0))); err != nil {
			return err
		}
	}
	return nil
}

func indirection(a []byte) uint32 { return binary.NativeEndian.Uint32(a[8:]) }

// rss changes the RSS configuration (struct ethtool_rxfh).
func rss(change func(a []byte)) func(pod *testnet.Netns, nic string) error {
	return func(pod *testnet.Netns, nic string) error {
		sizes := wide(24, word(0x46))
		if err := pod.Ethtool(nic, sizes); err != nil {
			return err
		}
		all := wide(24+4*int(indirection(sizes))+int(binary.NativeEndian.Uint32(sizes[12:])), word(0x46), word(0), sizes[8:16])
		if err := pod.Ethtool(nic, all); err != nil {
			return err
		}
		copy(all, word(0x47))
		change(all)
		return pod.Ethtool(nic, all)
	}
}
