package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/opensm"
)

// groupIPoIB has the children of InfiniBand ports, as the report names it.
const groupIPoIB = "IPoIB: a child of an InfiniBand port"

// ipoibContenders returns the contenders on InfiniBand ports, in the order of the report, each with a
// port of its own. ipoib-cni itself cannot be had as a module: its row is a program that takes its
// steps (integration/peers/plugins/ipoib-steps).
func ipoibContenders(p places) []*contender {
	b := builder{places: p}
	b.floorIPoIB("ib-floor", "floor: bare ip link add … netns … type ipoib")
	steps := filepath.Join(p.peers, "ipoib-steps")
	b.ipoib("ib-up", "upstream, the steps of ipoib-cni", steps, noIPAM, "", "", goals{})
	b.ipoib("ib", "ours, its carrier awaited", filepath.Join(p.bin, "ipoib"), noIPAM, "ib-up", p.state, goals{base: 1.3})
	b.ipoib("ib-up-static", "upstream + static, the steps of ipoib-cni", steps, staticIPAM, "", "", goals{})
	b.ipoib("ib-static", "ours + static, announced", filepath.Join(p.bin, "ipoib"), staticIPAM, "ib-up-static", p.state, goals{base: 1.3})
	return b.list
}

// nextIPoIB adds a contender with a port of the rig.
func (b *builder) nextIPoIB(id, title, base, floor string, g goals) *contender {
	c := b.next(groupIPoIB, id, title, base, floor, g)
	c.nic = fmt.Sprint("ib", len(b.list)-1) // ib_ipoib's name for the port of rigNIC
	return c
}

func (b *builder) floorIPoIB(id, title string) {
	c := b.nextIPoIB(id, title, "", "", goals{})
	b.child(c, "type", "ipoib")
}

func (b *builder) ipoib(id, title, path string, ipam map[string]any, base, state string, g goals) {
	c := b.nextIPoIB(id, title, base, "ib-floor", g)
	b.plugin(c, path, map[string]any{"type": "ipoib", "master": c.nic}, ipam, state)
}

// fabric makes the rig's NICs ports of an InfiniBand fabric. It returns the subnet manager, which
// the caller kills.
func fabric(dir string) (*opensm.Manager, error) {
	if err := errors.Join(setMode(modeShared), kmod.ReloadNICs("link_layer=ib")); err != nil {
		return nil, err
	}
	const spare = 7 // no contender has this NIC
	_, pci, _ := rigNIC(spare)
	return opensm.StartOn(context.Background(), filepath.Join(dir, "opensm"), pci, opensm.OpenFabric)
}
