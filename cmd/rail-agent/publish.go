package main

import (
	"context"
	"sync"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/publish"
)

// beginPublisher starts the publisher in beside, and returns it. A panic of it does not end
// the keeper of NICs. client may be nil: then no pod gets an annotation.
func beginPublisher(ctx context.Context, beside *sync.WaitGroup, o *agent.Options, client *kube.Client) *publish.Keeper {
	options := publish.Options{StateDirs: o.StateDirs, Node: o.NodeName, Client: client, Log: o.Log}
	if o.Teller != nil {
		options.Tell = o.Teller.Tell
	}
	keeper := publish.NewKeeper(options)
	o.Published = keeper.Metrics
	beside.Go(func() { keeper.Run(ctx) })
	return keeper
}
