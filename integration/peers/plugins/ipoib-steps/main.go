// Command ipoib-steps is a CNI plugin that takes the steps of ipoib-cni v1.2.2 (commit bc0726f), whose
// module the registries refuse: it adds a child of a port on the host, moves it into the
// pod, names it, sets it up and adds the addresses of an IPAM plugin. It does not wait for the
// carrier, announces no address, and keeps no record. It is for measurements beside our plugin
// ipoib, and uses the libraries that ipoib-cni uses.
package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/ipam"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// conf is the network configuration.
type conf struct {
	types.NetConf
	Master string `json:"master"`
}

func main() {
	runtime.LockOSThread()
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del}, version.All, "ipoib-steps: what ipoib-cni does")
}

func parse(args *skel.CmdArgs) (*conf, error) {
	c := &conf{}
	if err := json.Unmarshal(args.StdinData, c); err != nil {
		return nil, err
	}
	return c, nil
}

func add(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	pod, err := ns.GetNS(args.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	child, err := move(c.Master, args.IfName, pod)
	if err != nil {
		return err
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion}
	if c.IPAM.Type != "" {
		r, err := ipam.ExecAdd(c.IPAM.Type, args.StdinData)
		if err != nil {
			return err
		}
		if result, err = current.NewResultFromResult(r); err != nil {
			return err
		}
	}
	result.Interfaces = []*current.Interface{{Name: args.IfName, Mac: child.Attrs().HardwareAddr.String(), Sandbox: pod.Path()}}
	for _, ip := range result.IPs {
		ip.Interface = current.Int(0)
	}
	err = pod.Do(func(ns.NetNS) error {
		if len(result.IPs) > 0 {
			return ipam.ConfigureIface(args.IfName, result) // it sets the interface up too
		}
		return netlink.LinkSetUp(child)
	})
	if err != nil {
		return err
	}
	return types.PrintResult(result, c.CNIVersion)
}

// move makes a child of the master in the pod, and returns it as it is there.
func move(master, name string, pod ns.NetNS) (netlink.Link, error) {
	parent, err := netlink.LinkByName(master)
	if err != nil {
		return nil, fmt.Errorf("master %s: %w", master, err)
	}
	made, err := ip.RandomVethName() // as ipoib-cni names it before it is in the pod
	if err != nil {
		return nil, err
	}
	link := &netlink.IPoIB{
		LinkAttrs: netlink.LinkAttrs{Name: made, ParentIndex: parent.Attrs().Index},
		Pkey:      0xffff, Mode: netlink.IPOIB_MODE_DATAGRAM, Umcast: 1,
	}
	if err := netlink.LinkAdd(link); err != nil {
		return nil, err
	}
	child, err := netlink.LinkByName(made)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetNsFd(child, int(pod.Fd())); err != nil {
		return nil, err
	}
	err = pod.Do(func(ns.NetNS) error {
		if err := ip.RenameLink(made, name); err != nil {
			return err
		}
		child, err = netlink.LinkByName(name)
		return err
	})
	return child, err
}

func del(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if c.IPAM.Type != "" {
		if err := ipam.ExecDel(c.IPAM.Type, args.StdinData); err != nil {
			return err
		}
	}
	return ns.WithNetNSPath(args.Netns, func(ns.NetNS) error { return ip.DelLinkByName(args.IfName) })
}
