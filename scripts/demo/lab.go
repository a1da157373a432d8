package main

import (
	"fmt"
	"strings"
)

// rail is one NIC that both nodes have, connected to each other.
type rail struct{ name, altname string }

// rails are the NICs in examples/roce-nads.yaml, in the order of the devices on
// the bus.
var rails = []rail{
	{"ens11np0", "enp3s0np0"},
	{"ens12np0", "enp4s0np0"},
	{"ens13np0", "enp5s0np0"},
	{"ens14np0", "enp6s0np0"},
	{"ens15np0", "enp131s0np0"},
	{"ens16np0", "enp132s0np0"},
	{"ens17np0", "enp133s0np0"},
	{"ens18np0", "enp134s0np0"},
}

const (
	uplink = "eno1"   // carries the default route of each node
	shared = "ens2f0" // the NIC in examples/macvlan-nad.yaml
	jumbo  = 9000
)

// pod is a network namespace that represents a pod's.
type pod struct {
	name string
	node string
	host byte // last byte of its address in 172.31.N.0/24 or 192.168.111.0/24
}

func (p pod) path() string { return "/run/netns/" + p.name }

// makeNodes makes two nodes and connects them rail by rail. Every NIC is one
// end of a veth pair whose other end is the same NIC of the other node.
func makeNodes() error {
	for _, node := range nodes {
		if err := runAll("ip netns add "+node, "ip -n "+node+" link set lo up"); err != nil {
			return err
		}
	}
	for _, r := range rails {
		if err := join(r.name, jumbo, r.altname); err != nil {
			return err
		}
	}
	if err := join(shared, jumbo, "enp1s0f0"); err != nil {
		return err
	}
	return settleIn()
}

// settleIn adds the nodes' uplink, and the usual settings of administrators to
// the rails.
func settleIn() error {
	if err := join(uplink, 1500, "enp0s31f6"); err != nil {
		return err
	}
	for i, node := range nodes {
		err := runAll(
			fmt.Sprintf("ip -n %s addr add 192.0.2.%d/24 dev %s", node, i+1, uplink),
			fmt.Sprintf("ip -n %s route add default via 192.0.2.254 dev %s", node, uplink),
		)
		if err != nil {
			return err
		}
		if err := tune(node, i); err != nil {
			return err
		}
	}
	return nil
}

// join makes one NIC of each node, cabled to the other.
func join(name string, mtu int, altname string) error {
	err := runAll(fmt.Sprintf("ip -n %s link add %s mtu %d type veth peer name %[2]s mtu %[3]d netns %s", nodes[0], name, mtu, nodes[1]))
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if err := runAll(
			fmt.Sprintf("ip -n %s link property add dev %s altname %s", node, name, altname),
			fmt.Sprintf("ip -n %s link set %s up", node, name),
		); err != nil {
			return err
		}
	}
	return nil
}

// tune sets on the rails of a node the usual settings of administrators, which
// a NIC loses when it moves to another namespace.
func tune(node string, i int) error {
	var sysctls []string
	for _, r := range rails {
		sysctls = append(sysctls,
			fmt.Sprintf("echo 1 > /proc/sys/net/ipv4/conf/%s/arp_ignore", r.name),
			fmt.Sprintf("echo 2 > /proc/sys/net/ipv4/conf/%s/arp_announce", r.name),
			fmt.Sprintf("echo 2 > /proc/sys/net/ipv4/conf/%s/rp_filter", r.name))
	}
	if _, err := run(inNetns(node, "sh", "-ec", strings.Join(sysctls, "\n"))...); err != nil {
		return err
	}
	first, last := rails[0].name, rails[len(rails)-1].name
	return runAll(
		fmt.Sprintf("ip -n %s link set %s txqueuelen 4000 alias storage", node, first),
		fmt.Sprintf("ip -n %s addr add 198.51.100.%d/24 dev %s", node, i+1, first),
		fmt.Sprintf("ip -n %s addr add 2001:db8::%d/64 dev %s", node, i+1, first),
		fmt.Sprintf("ip -n %s route add 203.0.113.0/24 via 198.51.100.%d dev %s metric 77", node, 2-i, first),
		fmt.Sprintf("ip -n %s -6 route add 2001:db8:1::/64 via 2001:db8::%d dev %s", node, 2-i, first),
		fmt.Sprintf("ip -n %s link set %s promisc on", node, last),
	)
}

// makePods makes the pods as the cluster network leaves them: with lo, and
// eth0 with the default route.
func makePods(pods []pod) error {
	for i, p := range pods {
		gateway := fmt.Sprintf("10.244.%d.1", i)
		err := runAll(
			"ip netns add "+p.name,
			fmt.Sprintf("ip -n %s link set lo up", p.name),
			fmt.Sprintf("ip -n %s link add veth-%s mtu 1450 type veth peer name eth0 mtu 1450 netns %[2]s", p.node, p.name),
			fmt.Sprintf("ip -n %s addr add %s/32 dev veth-%s", p.node, gateway, p.name),
			fmt.Sprintf("ip -n %s link set veth-%s up", p.node, p.name),
			fmt.Sprintf("ip -n %s addr add 10.244.%d.%d/24 dev eth0", p.name, i, p.host+1),
			fmt.Sprintf("ip -n %s link set eth0 up", p.name),
			fmt.Sprintf("ip -n %s route add default via %s dev eth0", p.name, gateway),
		)
		if err != nil {
			return err
		}
	}
	return nil
}
