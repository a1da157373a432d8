package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/rail-cni/rail-cni/examples"
)

// annotations returns the networks of each of the two pods' annotations, net1's
// first.
func annotations() ([][]examples.Network, error) {
	networks, err := examples.Networks("roce-nads.yaml")
	if err != nil {
		return nil, err
	}
	pods, err := examples.Pods("roce-pods.yaml")
	if err != nil {
		return nil, err
	}
	if len(networks) != len(rails) || len(pods) != len(nodes) {
		return nil, fmt.Errorf("the examples have %d networks and %d pods, not %d and %d", len(networks), len(pods), len(rails), len(nodes))
	}
	byNAD := map[string]examples.Network{}
	for _, n := range networks {
		byNAD[n.NAD] = n
	}
	wanted := make([][]examples.Network, len(pods))
	for i, p := range pods {
		for _, nad := range p.NADs {
			network, ok := byNAD[nad]
			if !ok {
				return nil, fmt.Errorf("examples/roce-pods.yaml asks for %s, which examples/roce-nads.yaml does not have", nad)
			}
			wanted[i] = append(wanted[i], network)
		}
	}
	return wanted, nil
}

// lendRails is the workflow of examples/roce-nads.yaml: each of two pods owns
// the eight NICs of its node. Meanwhile show prints them.
func lendRails(c cni, title string, show func([]pod) error) error {
	wanted, err := annotations()
	if err != nil {
		return err
	}
	if err := writeConfs(wanted[0]); err != nil {
		return err
	}
	pods := []pod{{"pod1", nodes[0], 2}, {"pod2", nodes[1], 3}}
	if err := makePods(pods); err != nil {
		return err
	}
	before, err := statesOf("node1", "node2", "pod1", "pod2")
	if err != nil {
		return err
	}

	chapter(title)
	printLine("$ CNI_IFNAME=net1 cnitool add %s %s      (on node1; and so on to net8, and on node2)", wanted[0][0].Name, pods[0].path())
	for i, p := range pods {
		if err := attachRails(c, p, wanted[i]); err != nil {
			return err
		}
	}
	if err := before.sameAbout(map[string]string{"node1": uplink, "node2": uplink, "pod1": "eth0", "pod2": "eth0"}); err != nil {
		return err
	}
	printLine("")
	printLine("the uplinks %s and the pods' eth0 are as they were", uplink)
	if err := show(pods); err != nil {
		return err
	}

	chapter("Detach: every NIC is returned")
	if err := detachRails(c, pods, wanted); err != nil {
		return err
	}
	printLine("%s:", compared)
	return errors.Join(before.unchanged(), noLoans(c), checkNothingHeld())
}

// detachRails ends all attachments, on both nodes concurrently.
func detachRails(c cni, pods []pod, wanted [][]examples.Network) error {
	errs := make([]error, len(pods))
	var wait sync.WaitGroup
	for i, p := range pods {
		wait.Go(func() {
			for n, network := range slices.Backward(wanted[i]) {
				if err := c.del(network.Name, fmt.Sprintf("net%d", n+1), p); err != nil {
					errs[i] = fmt.Errorf("DEL of %s from %s: %w", network.NAD, p.name, err)
					return
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// pingRails sends jumbo frames from each pod to the other on every rail.
func pingRails(pods []pod) error {
	chapter("Jumbo frames on every rail")
	var flows []flow
	for rail := range rails {
		ifname := fmt.Sprintf("net%d", rail+1)
		flows = append(flows,
			flow{pods[0], ifname, fmt.Sprintf("172.31.%d.%d", rail+1, pods[1].host)},
			flow{pods[1], ifname, fmt.Sprintf("172.31.%d.%d", rail+1, pods[0].host)})
	}
	if err := pingAll(flows); err != nil {
		return err
	}
	for _, f := range flows {
		if f.from == pods[0] {
			printLine("pod1 %s ⇄ pod2 %s at %s: %d bytes, not fragmented", f.ifname, f.ifname, f.address, jumbo)
		}
	}
	return nil
}

// showNode shows a node's attachments.
func showNode(c cni, pods []pod) error {
	out, err := c.railctl(pods[0].node, "show")
	if err != nil {
		return err
	}
	quote("railctl show      (on "+pods[0].node+")", out)
	for _, p := range pods {
		list, err := c.attachments(p.node)
		if err != nil {
			return err
		}
		if len(list) != len(rails) {
			return fmt.Errorf("railctl shows %d attachments on %s, not %d", len(list), p.node, len(rails))
		}
	}
	return nil
}

// refusals makes requests that must be refused, and shows the errors.
func refusals(c cni, p pod) error {
	for _, r := range []struct{ title, network, config, text string }{
		{
			"the node's uplink", "uplink-by-mistake",
			`{"cniVersion": "0.3.1", "name": "uplink-by-mistake", "type": "host-device", "device": "` + uplink + `"}`,
			uplink + " must stay on the host",
		},
		{
			"a NIC that pod1 has", "second-user",
			`{"cniVersion": "0.3.1", "name": "second-user", "type": "host-device", "device": "` + rails[1].altname + `"}`,
			rails[1].name + " is lent to",
		},
	} {
		if err := writeConfs([]examples.Network{{NAD: r.network, Config: []byte(r.config)}}); err != nil {
			return err
		}
		_, err := c.add(r.network, "net9", p)
		if err == nil {
			return fmt.Errorf("%s could be lent a second time", r.title)
		}
		if !strings.Contains(err.Error(), r.text) {
			return fmt.Errorf("asked for %s, expected an error with %q: %w", r.title, r.text, err)
		}
		printLine("")
		printLine("asked for %s:", r.title)
		printLine("  %s", lastLine(err))
	}
	return nil
}

// lastLine returns the last line of a failed command's stderr before its exit
// code.
func lastLine(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	return lines[max(0, len(lines)-2)]
}

// noLoans fails if a node still has attachments.
func noLoans(c cni) error {
	for _, node := range nodes {
		list, err := c.attachments(node)
		if err != nil {
			return err
		}
		if len(list) != 0 {
			return fmt.Errorf("railctl still shows %d attachments on %s", len(list), node)
		}
	}
	return nil
}

// shareNIC is the workflow of examples/macvlan-nad.yaml: several pods share one
// NIC of each node. One of them dies without a DEL.
func shareNIC(c cni) error {
	networks, err := examples.Networks("macvlan-nad.yaml")
	if err != nil {
		return err
	}
	if err := writeConfs(networks); err != nil {
		return err
	}
	nad := networks[0]
	pods := []pod{{"pod3", nodes[0], 1}, {"pod4", nodes[0], 2}, {"pod5", nodes[1], 3}}
	before, err := statesOf(nodes...)
	if err != nil {
		return err
	}
	if err := makePods(pods); err != nil {
		return err
	}

	chapter("One NIC for many pods: examples/macvlan-nad.yaml, unchanged; pod3 and pod4 on node1, pod5 on node2")
	var flows []flow
	for _, p := range pods {
		r, err := c.add(nad.Name, "net1", p)
		if err != nil {
			return fmt.Errorf("ADD of %s to %s: %w", nad.NAD, p.name, err)
		}
		want := expected{ifname: "net1", address: fmt.Sprintf("192.168.111.%d/24", p.host), broadcast: "192.168.111.255"}
		list, err := interfaces(p.name)
		if err := errors.Join(err, want.checkResult(r, "", p.path()), want.check(list)); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		printLine("%s on %s:", p.name, p.node)
		printInterfaces(list)
		for _, other := range pods {
			if other != p {
				flows = append(flows, flow{p, "net1", fmt.Sprintf("192.168.111.%d", other.host)})
			}
		}
	}
	if err := pingAll(flows); err != nil {
		return err
	}
	printLine("each pod reaches the two others with frames of %d bytes", jumbo)
	return endShared(c, nad, pods, before)
}

// endShared ends the pods of the shared NIC: the last dies without a DEL, and
// railctl frees its address.
func endShared(c cni, nad examples.Network, pods []pod, before states) error {
	chapter("A pod dies without a DEL")
	killed := pods[len(pods)-1]
	for _, p := range pods {
		if p != killed {
			if err := c.del(nad.Name, "net1", p); err != nil {
				return fmt.Errorf("DEL of %s from %s: %w", nad.NAD, p.name, err)
			}
		}
		if err := runAll(fmt.Sprintf("ip -n %s link del veth-%s", p.node, p.name), "ip netns del "+p.name); err != nil {
			return err
		}
	}
	if err := c.awaitGone(killed); err != nil {
		return err
	}
	for _, args := range [][]string{{"show"}, {"gc"}, {"show"}} {
		out, err := c.railctl(killed.node, args...)
		if err != nil {
			return err
		}
		quote("railctl "+strings.Join(args, " ")+"      (on "+killed.node+")", out)
	}
	return errors.Join(before.unchanged(), noLoans(c), checkNothingHeld())
}
