package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// Groups with RDMA, as the report names them.
const (
	groupExclusive = "RDMA, exclusive mode: a NIC with its RDMA device"
	groupShared    = "RDMA, shared mode: a NIC whose RDMA device stays where it is"
)

// The modes of the RDMA core, as rdma(8) names them.
const (
	modeShared    = "shared"
	modeExclusive = "exclusive"
)

// rdmaContenders returns all contenders of one mode, in the order of the
// report. They use the rig's NICs, each its own.
func rdmaContenders(p places, mode string) []*contender {
	b := builder{places: p}
	if mode == modeShared {
		b.floorRDMA(groupShared, "sh-floor", "floor: bare ip link set … netns … name …")
		b.rdmaUpstream(groupShared, "sh-up", "upstream host-device", noIPAM, "sh-floor")
		b.rdmaOurs(groupShared, "sh", "ours", noIPAM, "sh-up", "sh-floor", goals{})
		b.rdmaUpstream(groupShared, "sh-up-static", "upstream host-device + static", staticIPAM, "sh-floor")
		b.rdmaOurs(groupShared, "sh-static", "ours + static, its GID awaited", staticIPAM, "sh-up-static", "sh-floor", goals{})
		return b.list
	}
	b.floorRDMA(groupExclusive, "ex-floor", "floor: bare ip link set … netns, rdma dev set … netns")
	b.rdmaUpstream(groupExclusive, "ex-up", "upstream host-device + rdma-cni", noIPAM, "ex-floor")
	b.rdmaOurs(groupExclusive, "ex", "ours", noIPAM, "ex-up", "ex-floor", goals{base: 0.7})
	b.rdmaUpstream(groupExclusive, "ex-up-static", "upstream host-device + static + rdma-cni", staticIPAM, "ex-floor")
	b.rdmaOurs(groupExclusive, "ex-static", "ours + static, its GID awaited", staticIPAM, "ex-up-static", "ex-floor", goals{})
	return b.list
}

// rigNIC returns the name, the PCI address and the RDMA device of one of the
// rig's NICs, which are PCI functions in slots from 11 on.
func rigNIC(n int) (name, pci, device string) {
	const firstSlot = 11
	return fmt.Sprintf("ens%dnp0", firstSlot+n), fmt.Sprintf("0000:00:%02x.0", firstSlot+n), fmt.Sprintf("mlx5_%d", n)
}

// nextRDMA adds a contender with a NIC of the rig.
func (b *builder) nextRDMA(group, id, title, base, floor string, g goals) (c *contender, pci string) {
	name, pci, device := rigNIC(len(b.list))
	c = b.next(group, id, title, base, floor, g)
	c.nic = name
	if group == groupExclusive {
		c.device = device
	}
	return c, pci
}

// floorRDMA is the least that a plugin must do. On the way back the RDMA device
// goes first, as InfiniBand requires.
func (b *builder) floorRDMA(group, id, title string) {
	c, _ := b.nextRDMA(group, id, title, "", "", goals{})
	b.move(c)
	if c.device == "" {
		return
	}
	c.add = append(c.add, always(command{path: b.rdma, args: []string{"dev", "set", c.device, "netns", c.pod}}))
	home := command{path: b.rdma, args: []string{"dev", "set", c.device, "netns", nodeName}, netns: c.pod}
	c.del = append([]step{always(home)}, c.del...)
}

// rdmaUpstream is upstream's host-device, and in exclusive mode rdma-cni
// chained after it: rdma-cni refuses to work in shared mode.
func (b *builder) rdmaUpstream(group, id, title string, ipam map[string]any, floor string) {
	c, pci := b.nextRDMA(group, id, title, "", floor, goals{})
	b.plugin(c, filepath.Join(b.peers, "host-device"), map[string]any{"type": "host-device", "device": c.nic}, ipam, "")
	if c.device != "" {
		b.plugin(c, filepath.Join(b.peers, "rdma"), map[string]any{"type": "rdma", "deviceID": pci}, noIPAM, "")
	}
}

// rdmaOurs is our host-device alone.
func (b *builder) rdmaOurs(group, id, title string, ipam map[string]any, base, floor string, g goals) {
	c, _ := b.nextRDMA(group, id, title, base, floor, g)
	conf := map[string]any{"type": "host-device", "device": c.nic, "rdma": "required"}
	b.plugin(c, filepath.Join(b.bin, "host-device"), conf, ipam, b.state)
}

// checkDevice makes sure that the contender's RDMA device is in the namespace
// where the verb moves it.
func (c *contender) checkDevice(added bool) error {
	if c.device == "" {
		return nil
	}
	has := func() bool { return exec.Command("rdma", "dev", "show", c.device).Run() == nil }
	inPod := false
	if err := within(c.pod, func() error { inPod = has(); return nil }); err != nil {
		return err
	}
	if atHome := has(); inPod != added || atHome == added {
		return fmt.Errorf("RDMA device %s: in the pod: %v, on the node: %v, want it %s", c.device, inPod, atHome, map[bool]string{true: "in the pod", false: "on the node"}[added])
	}
	return nil
}
