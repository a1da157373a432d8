package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/local"
	"github.com/rail-cni/rail-cni/pkg/ipam/plan"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// call is one execution of the plugin.
type call struct {
	*Plugin
	args    *skel.CmdArgs
	file    *nodefile.File        // nil if there is no node file; forbids all paths if the node file cannot be read
	conf    *ipamconf.Whereabouts // nil or incomplete if confErr is set
	confErr error
	log     *callLog

	slice plan.Slice // the slice of this node, if the network uses node slices
}

// owner returns the attachment as the owner of its addresses. Outside Kubernetes the
// container ID takes the place of the pod.
func (c *call) owner() ipam.Owner {
	o := ipam.Owner{ContainerID: c.args.ContainerID, IfName: c.args.IfName, PodRef: c.args.ContainerID}
	if c.conf != nil {
		o.Network = c.conf.Name
		if ref := c.conf.Pod.Ref(); ref != "" {
			o.PodRef = ref
		}
	}
	return o
}

func (c *call) name() string {
	if c.conf == nil {
		return ""
	}
	return c.conf.Name
}

// storeName returns the store that the config uses. It returns "" if no store can be used:
// the call names a pod, but the config names neither a store nor a kubeconfig.
func (c *call) storeName() string {
	switch {
	case c.conf.Store != "":
		return c.conf.Store
	case c.conf.Kubeconfig != "":
		return ipamconf.StoreKubernetes
	case c.conf.Pod.Name == "":
		return ipamconf.StoreLocal
	}
	return ""
}

// open returns the config's store, and a function that closes it.
func (c *call) open(ctx context.Context) (ipam.Store, func(), error) {
	switch c.storeName() {
	case ipamconf.StoreLocal:
		if c.conf.NodeSliceSize != 0 {
			return nil, nil, failure.New(failure.InvalidConfig, "node slices need the Kubernetes store").
				Cure("remove node_slice_size: a local store belongs to one node anyway")
		}
		if c.conf.BlockSize != 0 {
			return nil, nil, failure.New(failure.InvalidConfig, "blocks need the Kubernetes store").
				Cure("remove block_size: a local store belongs to one node anyway")
		}
		return local.New(c.conf.StateDir), func() {}, nil
	case ipamconf.StoreKubernetes:
		if c.conf.BlockSize != 0 {
			s, err := c.openBlocks()
			if err != nil {
				return nil, nil, err
			}
			return s, func() { _ = s.Close() }, nil
		}
		s, err := c.openCluster(ctx, c.conf.Kubeconfig)
		if err != nil {
			return nil, nil, err
		}
		return s, func() { _ = s.Close() }, nil
	}
	return nil, nil, failure.New(failure.InvalidConfig, "pod %s needs an address that is unique in its cluster, and no kubeconfig is configured",
		c.conf.Pod.Ref()).
		Cure(`set "kubernetes": {"kubeconfig": "..."} in the ipam config or the flat file, or "store": "local" if this is the only node of the network`)
}

// pools returns the pools of the config's ranges.
func (c *call) pools() []ipam.Pool { return plan.Pools(c.conf, c.slice) }

func pools(claims []ipam.Claim) []ipam.Pool {
	var ps []ipam.Pool
	for _, c := range claims {
		ps = append(ps, c.Pool)
	}
	return ps
}

// foreignNetns returns an error if CNI_NETNS is the plugin's own network namespace. It must
// be called before an address is assigned, because skel checks that only afterwards.
func (c *call) foreignNetns() error {
	if c.anyNetns() {
		return nil
	}
	same, err := ns.CheckNetNS(c.args.Netns)
	if err != nil {
		return err
	}
	if same {
		return failure.New(failure.InvalidNetns, "CNI_NETNS %s is the plugin's own network namespace", c.args.Netns).Cure("set CNI_NETNS to the pod's network namespace")
	}
	return nil
}

// anyNetns reports whether the runtime permits that CNI_NETNS is the plugin's own network
// namespace.
func (c *call) anyNetns() bool {
	switch c.args.NetnsOverride {
	case "1", "true", "TRUE", "True":
		return true
	}
	return false
}

// podNetns returns the path of the pod's network namespace, or "" if the namespace may
// outlive the pod.
func (c *call) podNetns() string {
	if c.anyNetns() {
		return ""
	}
	return c.args.Netns
}

// readPrevResult returns the config's prevResult, converted to the newest version of CNI.
func readPrevResult(stdin []byte) (*current.Result, error) {
	var conf types.PluginConf
	var raw struct{ PrevResult json.RawMessage }
	if err := errors.Join(json.Unmarshal(stdin, &conf), json.Unmarshal(stdin, &raw)); err != nil {
		return nil, failure.From(err, failure.Decode, "network config").Cure("correct the JSON")
	}
	if conf.RawPrevResult == nil {
		return nil, failure.New(failure.InvalidConfig, "CHECK needs prevResult").Cure("let the runtime pass the result of ADD as prevResult")
	}
	if err := netconf.WholeResult(raw.PrevResult); err != nil {
		return nil, failure.Wrap(err, failure.Decode, "prevResult")
	}
	if err := cniversion.ParsePrevResult(&conf); err != nil {
		return nil, failure.Wrap(err, failure.Decode, "prevResult")
	}
	r, err := current.NewResultFromResult(conf.PrevResult)
	return r, failure.Wrap(err, failure.Decode, "prevResult")
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
