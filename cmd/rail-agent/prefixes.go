package main

import (
	"context"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nvipam"
)

// beginPrefixes starts the reader of the node's prefixes in beside. A panic of it does not end
// the keeper of NICs. client may be nil: then the reader reports an error if the node file asks
// for prefixes.
func beginPrefixes(ctx context.Context, beside *sync.WaitGroup, o *agent.Options, client *kube.Client) {
	options := nvipam.Options{StateDirs: o.StateDirs, Node: o.NodeName, Client: client, Wanted: wantsNVIPAM, Log: o.Log}
	if o.Teller != nil {
		options.Tell = o.Teller.Tell
	}
	keeper := nvipam.NewKeeper(options)
	beside.Go(func() { keeper.Run(ctx) })
}

// wantsNVIPAM reports whether the node file asks for prefixes of nv-ipam.
func wantsNVIPAM() (bool, error) {
	file, err := netconf.ReadNodeFile(netconf.NodeFilePath())
	return file.ReadsPrefixesFrom(netconf.NVIPAM), err
}
