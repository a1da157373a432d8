package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/inventory/watch"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// hostRoot is the host's root directory. This is also true in a container with the host's
// processes. It is needed because a container's own /dev has only the devices that existed when the
// container began.
const hostRoot = "/proc/1/root"

// deviceFlags are the flags of "run" for the device plugin.
type deviceFlags struct {
	kubelet, devInfo, cdi string
}

func (f *deviceFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubelet, "kubelet-dir", "/var/lib/kubelet", `root directory of the kubelet, in which the device plugin registers; "off" for no device plugin`)
	flags.StringVar(&f.devInfo, "devinfo-dir", "/var/run/k8s.cni.cncf.io/devinfo/dp", `directory for the device plugin's device information files, which Multus reads; "off" for none`)
	flags.StringVar(&f.cdi, "cdi-dir", "/var/run/cdi", `directory for the device plugin's CDI specification, which is needed for "cdi: true" in the node file; "off" for none`)
}

// components returns the device plugin and the watcher of the node's NICs. It returns no components
// if the device plugin is off.
func (f *deviceFlags) components(h *host) ([]component.Component, error) {
	for _, d := range []struct {
		flag string
		dir  *string
	}{{"kubelet-dir", &f.kubelet}, {"devinfo-dir", &f.devInfo}, {"cdi-dir", &f.cdi}} {
		if *d.dir == off {
			*d.dir = ""
		} else if !filepath.IsAbs(*d.dir) {
			return nil, fmt.Errorf("--%s is %q; it must be an absolute path or %s", d.flag, *d.dir, off)
		}
	}
	if f.kubelet == "" {
		return nil, nil
	}
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	changed := component.NewTrigger()
	plugin := deviceplugin.New(deviceplugin.Options{
		Config: h.resources, Changed: changed,
		Inventory: func() (*deviceplugin.Inventory, error) {
			list, err := inventory.NICsBy(&h.nodeFile, h.stateDirs...)
			if err != nil {
				return nil, err
			}
			return convert(list), nil
		},
		KubeletDir: f.kubelet, DevInfoDir: f.devInfo, CDIDir: f.cdi, Root: hostRoot, Dirs: h.dirs, Notify: h.notify, Log: h.log,
	})
	reporter := component.NewReporter("inventory", h.log, h.notify)
	watching := func(ctx context.Context) { // ns stays open until the process ends
		watch.NICs(ctx, ns, h.dirs, h.stateDirs, reporter, h.log, changed.Fire)
	}
	return []component.Component{plugin.Component(), {Name: "inventory", Reporter: reporter, Run: watching}}, nil
}

// resources returns the resources and rails of the node file.
func (h *host) resources() (*resource.Config, *resource.Rails, error) {
	file, _, err := h.nodeFile.Read()
	if err != nil || file == nil {
		return nil, nil, err
	}
	config, err := file.ReadResources()
	return config, file.Rails, err
}

// convert returns the inventory in the form that the device plugin needs: the facts about each PCI
// function, and the state of the function's NIC.
func convert(list *inventory.NICList) *deviceplugin.Inventory {
	converted := &deviceplugin.Inventory{}
	uuids := map[string]string{}
	for _, facts := range list.Resource() {
		n := deviceplugin.NIC{NIC: facts, Distances: map[string]pcie.Distance{}}
		n.Gone = list.Tree.ByAddress(facts.PCI) == nil
		for i := range list.NICs {
			if state := &list.NICs[i]; state.PCI == facts.PCI && state.Auxiliary == "" && !state.Representor {
				addState(&n, state, uuids)
			}
		}
		converted.NICs = append(converted.NICs, n)
	}
	for _, gpu := range list.GPUs {
		converted.GPUs = append(converted.GPUs, deviceplugin.GPU{PCI: gpu.Address, UUID: uuids[gpu.Address]})
	}
	return converted
}

// addState adds state to n, the NIC of a PCI function. state describes a netdev of the function, or
// the NIC itself if it has no netdev. If a function has two netdevs, it counts as lent if one of
// them is lent. addState also adds the UUIDs of GPUs to uuids.
func addState(n *deviceplugin.NIC, state *inventory.NIC, uuids map[string]string) {
	if n.Link == deviceplugin.LinkUnknown {
		n.Link, n.AdminDown = deviceplugin.Link(state.Link), state.AdminDown
	}
	for _, p := range state.Ports {
		if p.State == inventory.Unknown {
			p.State = ""
		}
		n.Ports = append(n.Ports, p.State)
	}
	for _, g := range state.GPUs {
		n.Distances[g.PCI] = g.Distance
		uuids[g.PCI] = g.UUID
	}
	n.Children += state.Children
	if l := state.Lent; l != nil && n.Lent == nil {
		n.Lent = &deviceplugin.Lent{ContainerID: l.ContainerID}
		n.Lent.Namespace, n.Lent.Pod, _ = strings.Cut(l.Pod, "/")
	}
}
