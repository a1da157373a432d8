package mutate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// Fate is the state of a setting when the NIC is returned.
type Fate string

// The fates.
const (
	Restored Fate = "as it was" // by rail-cni, or because the kernel resets it
	Reported Fate = "reported"  // it stays, and rail-cni reports it
	Unseen   Fate = "not seen"  // it stays, and nothing reports it
)

// Mutation is one change that a pod can make to its interface.
type Mutation struct {
	Name string
	By   string // what a person calls it with
	Fate Fate
	// Rig: a veth, or some kernels, lack the setting; the rig's NICs have it.
	Rig bool
	// Set makes the change, on the interface net1 of the pod. It fails if the
	// interface or the kernel cannot.
	Set func(pod *testnet.Netns, name string) error
}

// Table is everything that rtnetlink, ethtool, tc, bridge, rdma, the generic
// netlink family netdev, sysfs and /proc/sys can set on an interface in a pod.
var Table = slices.Concat(links, addresses, filters, programs, queues, ethtool, hardware, rdma, kept)

func run(pod *testnet.Netns, program string, args ...string) error {
	if pod.Name != "" { // else it is the caller's own
		args = append([]string{"-n", pod.Name}, args...)
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// ip returns a mutation of calls of ip(8), with NIC for the interface's name.
func ip(name string, calls ...string) Mutation {
	return command(name, "ip", calls...)
}

func command(name, program string, calls ...string) Mutation {
	return Mutation{
		Name: name, By: program + " " + strings.ReplaceAll(strings.Join(calls, "; "), "NIC", "net1"), Fate: Restored,
		Set: func(pod *testnet.Netns, nic string) error {
			for _, c := range calls {
				if err := run(pod, program, strings.Fields(strings.ReplaceAll(c, "NIC", nic))...); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

var links = []Mutation{
	ip("name", "link set NIC name mine"),
	ip("altname", "link property add dev NIC altname other"),
	ip("altname of the host's, removed", "link property del dev NIC altname enp4s0np0"),
	ip("alias", "link set NIC alias elsewhere"),
	{Name: "alias, removed", By: `ip link set net1 alias ""`, Fate: Restored, Set: func(pod *testnet.Netns, nic string) error {
		return run(pod, "ip", "link", "set", nic, "alias", "")
	}},
	ip("MTU", "link set NIC mtu 1280"),
	ip("MAC", "link set NIC address 02:aa:bb:cc:dd:ee"),
	ip("link-layer broadcast address", "link set NIC broadcast 02:66:66:66:66:66"),
	ip("queue length", "link set NIC txqueuelen 5"),
	ip("group", "link set NIC group 9"),
	ip("down", "link set NIC down"),
	ip("promiscuous", "link set NIC promisc on"),
	ip("not all multicast", "link set NIC allmulticast off"),
	ip("no multicast", "link set NIC multicast off"),
	ip("no ARP", "link set NIC arp off"),
	ip("link mode", "link set NIC mode dormant"),
	ip("operational state", "link set NIC state dormant"),
	ip("GSO size", "link set NIC gso_max_size 4096"),
	ip("GSO segments", "link set NIC gso_max_segs 3"),
	ip("GRO size", "link set NIC gro_max_size 4096"),
	attributes("GSO size, IPv4", "gso_ipv4_max_size 4096", testnet.Attribute(unix.IFLA_GSO_IPV4_MAX_SIZE, word(4096))),
	attributes("GRO size, IPv4", "gro_ipv4_max_size 4096", testnet.Attribute(unix.IFLA_GRO_IPV4_MAX_SIZE, word(4096))),
	ip("IPv6 address generation", "link set NIC addrgenmode none"),
	ip("a link on it", "link add mv0 link NIC type macvlan mode bridge", "link set mv0 up"),
	ip("bridge port", "link add br0 type bridge", "link set NIC master br0"),
}

var addresses = []Mutation{
	ip("IPv4 address", "addr add 1.2.3.4/8 dev NIC"),
	ip("IPv6 address", "addr add fd01::7/64 dev NIC"),
	ip("route", "route add 10.66.0.0/16 dev NIC metric 5"),
	ip("rule", "rule add iif NIC table 66"),
	ip("permanent neighbor", "neigh add 10.9.0.66 lladdr 02:00:00:00:00:66 nud permanent dev NIC"),
	ip("proxy neighbor", "neigh add proxy 10.9.0.67 dev NIC"),
	ip("multicast filter", "maddr add 33:33:00:00:00:42 dev NIC"),
	{Name: "IPv6 token", By: "ip token set ::66 dev net1", Fate: Restored, Set: func(pod *testnet.Netns, nic string) error {
		pod.Sysctl("ipv6/conf/"+nic+"/accept_ra", "2")
		return run(pod, "ip", "token", "set", "::66", "dev", nic)
	}},
	sysctl("ipv4/conf", "arp_announce", "2"),
	sysctl("ipv4/conf", "forwarding", "1"),
	sysctl("ipv4/conf", "proxy_arp", "1"),
	sysctl("ipv4/neigh", "gc_stale_time", "7"),
	sysctl("ipv6/conf", "disable_ipv6", "1"),
	sysctl("ipv6/conf", "accept_ra", "2"),
	sysctl("ipv6/neigh", "ucast_solicit", "7"),
}

var filters = []Mutation{
	command("unicast filter", "bridge", "fdb add 02:00:00:00:00:77 dev NIC self"),
	command("queueing discipline", "tc", "qdisc add dev NIC root tbf rate 1mbit burst 10k latency 50ms"),
	command("ingress filter", "tc", "qdisc add dev NIC ingress", "filter add dev NIC ingress protocol all u32 match u32 0 0 classid 1:1"),
	command("clsact filter", "tc", "qdisc add dev NIC clsact", "filter add dev NIC egress protocol all u32 match u32 0 0 classid 1:1"),
}

var programs = func() []Mutation {
	var all []Mutation
	for _, hook := range testnet.Hooks {
		all = append(all, Mutation{Name: "BPF program: " + hook, By: "bpf(2)", Fate: Restored, Set: func(pod *testnet.Netns, nic string) error {
			pod.Attach(nic, hook)
			return nil
		}})
	}
	return all
}()

var queues = []Mutation{
	file("GRO flush timeout", "gro_flush_timeout", "1000000"),
	file("deferred hard interrupts", "napi_defer_hard_irqs", "50"),
	file("RPS", "queues/rx-0/rps_cpus", "1"),
	file("RPS flows", "queues/rx-0/rps_flow_cnt", "512"),
	file("XPS", "queues/tx-0/xps_cpus", "1"),
	file("XPS by receive queue", "queues/tx-0/xps_rxqs", "1"),
	{
		Name: "settings of one NAPI instance", By: "netdev family, NAPI_SET", Fate: Restored,
		Set: func(pod *testnet.Netns, nic string) error {
			return napi(pod, nic, testnet.Attribute(5, word(77)), testnet.Attribute(6, word(770000)), testnet.Attribute(7, word(7700000)))
		},
	},
}

var ethtool = []Mutation{
	{Name: "features", By: "ethtool -K net1 …", Fate: Restored, Set: features},
	{Name: "channels", By: "ethtool -L net1 rx 1 tx 1", Fate: Restored, Set: func(pod *testnet.Netns, nic string) error {
		return set(pod, nic, unix.ETHTOOL_MSG_CHANNELS_SET, testnet.Attribute(6, word(1)), testnet.Attribute(7, word(1)))
	}},
}

// kept are the mutations that cannot be undone.
var kept = []Mutation{
	{Name: "threaded NAPI of a veth without GRO", By: "/sys/class/net/net1/threaded", Fate: Reported, Set: func(pod *testnet.Netns, nic string) error {
		// A veth has NAPI instances while it receives by GRO, which the host
		// has turned off: the kernel accepts the setting only with an instance.
		return errors.Join(feature(pod, nic, gro), file("", "threaded", "1").Set(pod, nic))
	}},
	// The kernel's macvlan stays counted as a user of these modes (macvlan_stop,
	// macvlan_changelink). A packet socket that a pod closes while the NIC moves sometimes
	// has the same effect.
	reported(ip("promiscuous mode that the kernel does not end", "link add mv0 link NIC type macvlan mode passthru",
		"link set mv0 type macvlan mode passthru nopromisc", "link del mv0")),
	reported(ip("all-multicast mode that the kernel does not end", "link add mv0 link NIC type macvlan mode passthru nopromisc",
		"link set mv0 up", "link set mv0 allmulticast on", "link del mv0")),
	stuck,
	stuckCounter,
}

// features turns off every feature that is on and can be changed.
func features(pod *testnet.Netns, nic string) error {
	answers, err := pod.Generic("ethtool", unix.ETHTOOL_MSG_FEATURES_GET, 0, pod.EthtoolHeader(nic))
	if err != nil {
		return err
	}
	hw := testnet.Find(testnet.Find(answers[0], unix.ETHTOOL_A_FEATURES_HW), unix.ETHTOOL_A_BITSET_VALUE)
	size := testnet.Find(testnet.Find(answers[0], unix.ETHTOOL_A_FEATURES_HW), unix.ETHTOOL_A_BITSET_SIZE)
	return set(pod, nic, unix.ETHTOOL_MSG_FEATURES_SET, testnet.Attribute(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, slices.Concat(
		testnet.Attribute(unix.ETHTOOL_A_BITSET_SIZE, size),
		testnet.Attribute(unix.ETHTOOL_A_BITSET_VALUE, make([]byte, len(hw))),
		testnet.Attribute(unix.ETHTOOL_A_BITSET_MASK, hw))))
}

// set sends a message of the family "ethtool".
func set(pod *testnet.Netns, nic string, command uint8, attrs ...[]byte) error {
	_, err := pod.Generic("ethtool", command, 0, append([][]byte{pod.EthtoolHeader(nic)}, attrs...)...)
	return err
}

// napi sets the first NAPI instance. A veth has one while it receives by GRO.
func napi(pod *testnet.Netns, nic string, attrs ...[]byte) error {
	if err := feature(pod, nic, gro); err != nil {
		return err
	}
	l, err := link.ByName(pod.Netns, nic)
	if err != nil {
		return err
	}
	answers, err := pod.Generic("netdev", 11, unix.NLM_F_DUMP, testnet.Attribute(1, word(uint32(l.Index))))
	if err != nil || len(answers) == 0 {
		return fmt.Errorf("%d NAPI instances: %w", len(answers), err)
	}
	_, err = pod.Generic("netdev", 14, 0, append([][]byte{testnet.Attribute(2, testnet.Find(answers[0], 2))}, attrs...)...)
	return err
}

const gro = 14 // NETIF_F_GRO_BIT

// feature turns a feature on, by its number.
func feature(pod *testnet.Netns, nic string, bit int) error {
	mask := make([]byte, 8)
	mask[bit/8] = 1 << (bit % 8)
	return set(pod, nic, unix.ETHTOOL_MSG_FEATURES_SET, testnet.Attribute(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, slices.Concat(
		testnet.Attribute(unix.ETHTOOL_A_BITSET_SIZE, word(64)),
		testnet.Attribute(unix.ETHTOOL_A_BITSET_VALUE, mask),
		testnet.Attribute(unix.ETHTOOL_A_BITSET_MASK, mask))))
}

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func attributes(name, args string, attrs ...[]byte) Mutation {
	return Mutation{Name: name, By: "ip link set net1 " + args, Fate: Restored, Set: func(pod *testnet.Netns, nic string) error {
		return pod.SetLink(nic, attrs...)
	}}
}

func file(name, path, value string) Mutation {
	return Mutation{
		Name: name, By: "/sys/class/net/net1/" + path, Fate: Restored,
		Set: func(pod *testnet.Netns, nic string) (err error) {
			pod.Sysfs(nic, func(dir string) { err = os.WriteFile(dir+"/"+path, []byte(value), 0) })
			return err
		},
	}
}

func sysctl(group, key, value string) Mutation {
	return Mutation{
		Name: "sysctl " + group + "/net1/" + key, By: "/proc/sys/net", Fate: Restored,
		Set: func(pod *testnet.Netns, nic string) error {
			return pod.Do(func() error { return os.WriteFile("/proc/sys/net/"+group+"/"+nic+"/"+key, []byte(value), 0) })
		},
	}
}
