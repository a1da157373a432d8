package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/process"
)

// namespace returns the path of a namespace of a process.
func namespace(pid int, kind string) string { return fmt.Sprintf("/proc/%d/ns/%s", pid, kind) }

// hold starts the process that keeps the control plane's network namespace.
func (c *Cluster) hold(ctx context.Context) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	c.holder, err = process.Start(process.Spec{
		Name: "holder", Log: filepath.Join(c.dir, "holder.log"), Args: []string{"/proc/self/exe"},
		Env:        []string{roleEnv + "=" + holdRole, nameEnv + "=" + c.cgroup},
		Cloneflags: unix.CLONE_NEWNET, Outlives: true, Stdin: read,
	})
	if err != nil {
		_ = write.Close()
		return err
	}
	c.alive = write
	return ctx.Err()
}

// wire makes the control plane's network: its addresses, the switch of the
// nodes' first network, and one for each rail.
func (c *Cluster) wire(ctx context.Context) error {
	commands := []string{
		"link set lo up",
		"address add " + controlplane.ServiceAddress + "/32 dev lo",
		"address add " + dnsAddress + "/32 dev lo",
		"link add nodes type bridge",
		"link set nodes up",
		"address add " + address + "/24 dev nodes",
		"link add pods type bridge",
		"link set pods up",
	}
	for i := range c.options.Rails {
		commands = append(commands, fmt.Sprintf("link add rail%d mtu 9000 type bridge", i+1), fmt.Sprintf("link set rail%d up", i+1))
	}
	return batch(ctx, c.holder.Pid(), commands)
}

// Altname returns the altname of a rail on each node, of the kind that udev
// adds to the first name.
func Altname(rail int) string { return fmt.Sprintf("enp%ds0f0np0", rail+1) }

// wire makes the node's interfaces, and the other ends of their cables:
//
//	eth0       the first network, by which the node has its address
//	cni0       the bridge of its pods' first network. It has an address and a
//	           port, uplink0, so that it stays as it is when pods come and go
//	the rails
func (n *Node) wire(ctx context.Context) error {
	pid, i := n.cluster.holder.Pid(), n.index
	cable := func(name, end, bridge string, mtu int) []string {
		return []string{
			fmt.Sprintf("link add %s mtu %d master %s type veth peer name %s mtu %d netns %d", end, mtu, bridge, name, mtu, n.init.Pid()),
			"link set " + end + " up",
		}
	}
	outer := append(cable("eth0", fmt.Sprintf("n%d-eth0", i), "nodes", 1500), cable("uplink0", fmt.Sprintf("n%d-uplink0", i), "pods", 1500)...)
	inner := []string{
		"link set lo up",
		"link set eth0 up",
		"address add " + n.Address + "/24 dev eth0",
		"route add default via " + address,
		fmt.Sprintf("link add cni0 address 02:00:00:00:01:%02x type bridge", i),
		"link set cni0 up",
		"link set uplink0 master cni0 up",
		fmt.Sprintf("address add 10.244.%d.1/24 dev cni0", i),
	}
	for j := 1; j <= n.cluster.options.Nodes; j++ {
		// As in a cluster's network, pods of all nodes reach each other.
		if j != i {
			inner = append(inner, fmt.Sprintf("route add 10.244.%d.0/24 via %s", j, nodeAddress(j)))
		}
	}
	for k, rail := range n.cluster.options.Rails {
		outer = append(outer, cable(rail, fmt.Sprintf("n%d-rail%d", i, k+1), fmt.Sprintf("rail%d", k+1), 9000)...)
		inner = append(inner, "link property add dev "+rail+" altname "+Altname(k), "link set "+rail+" up")
	}
	outer = append(outer, fmt.Sprintf("route add 10.244.%d.0/24 via %s", i, n.Address))
	if err := batch(ctx, pid, outer); err != nil {
		return err
	}
	return batch(ctx, n.init.Pid(), inner)
}

// SetCable connects the node's NIC of this rail to its switch, or takes the cable out. The first
// rail is 0.
func (n *Node) SetCable(ctx context.Context, rail int, in bool) error {
	state := map[bool]string{true: "up", false: "down"}[in]
	return batch(ctx, n.cluster.holder.Pid(), []string{fmt.Sprintf("link set n%d-rail%d %s", n.index, rail+1, state)})
}

// podNetwork returns the prefix of the addresses of the node's pods.
func (n *Node) podNetwork() string { return fmt.Sprintf("10.244.%d.0/24", n.index) }

// nodeAddress returns the address of a node by its index, from 1.
func nodeAddress(i int) string { return fmt.Sprintf("10.77.0.%d", 10+i) }

// batch runs commands of ip(8) in the network namespace of a process.
func batch(ctx context.Context, pid int, commands []string) error {
	cmd := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(pid), "--net", "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	_, err := output(cmd)
	return err
}
