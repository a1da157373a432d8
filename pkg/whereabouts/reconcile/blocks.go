package reconcile

import (
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Blocks frees the blocks of nodes that are gone. It also frees the blocks of a node's
// earlier boot that the node has not taken again. Before it frees a block, it revokes the
// block. A node that is not gone after all removes the mark when it next asks the server
// about the block, and it must ask at least once in [api.BlockUsableFor]. So if the mark
// has stayed for [api.BlockFreeAfter], no holder assigns addresses of the block any more.
type Blocks struct {
	Grace time.Duration // how long a node must be gone before its blocks are revoked
	Now   func() time.Time
	since map[string]time.Time // when a block was first seen without its node, or with this mark
}

// NewBlocks returns a Blocks that has seen nothing yet. It is not safe for concurrent use.
func NewBlocks(grace time.Duration) *Blocks {
	return &Blocks{Grace: grace, Now: time.Now, since: map[string]time.Time{}}
}

// Sync compares all, the blocks of an [api.Survey], with the Nodes of the cluster. It
// revokes and frees the blocks for which that is due.
func (b *Blocks) Sync(ctx context.Context, client *kube.Client, log *slog.Logger, all []*api.PoolState) {
	if len(all) == 0 {
		return
	}
	boots, running := map[string]string{}, map[string]bool{} // by node; by boot ID
	if err := eachNode(ctx, client, func(n clusterNode) { boots[n.name], running[n.boot] = n.boot, true }); err != nil {
		log.Warn("cannot free the blocks of nodes that are gone", "err", err)
		return
	}
	seen := map[string]time.Time{}
	for _, p := range all {
		why := ""
		boot, known := boots[p.Block.Node]
		switch {
		case p.Block.Claim == "":
		case p.Block.Boot != "" && running[p.Block.Boot]: // perhaps the Node has another name
		case !known:
			why = "there is no such Node"
		case boot != "" && boot != p.Block.Boot:
			why = "the node was rebooted and has not taken the block again"
		}
		if why == "" {
			continue
		}
		key := p.Block.Claim + " " + p.Block.Revoked
		since, ok := b.since[key]
		if !ok {
			since = b.Now()
		}
		seen[key] = since
		b.act(ctx, client, log.With("pool", p.Name, "node", p.Block.Node, "why", why), p, b.Now().Sub(since))
	}
	b.since = seen
}

// act revokes or frees the block p if that is due. same is how long the state of the block
// has been the same.
func (b *Blocks) act(ctx context.Context, client *kube.Client, log *slog.Logger, p *api.PoolState, same time.Duration) {
	var ok bool
	var err error
	did := "block was revoked"
	switch {
	case p.Block.Revoked == "" && same >= b.Grace:
		ok, err = api.RevokeBlock(ctx, client, p.Name, *p.Block, b.Now().UTC().Format(time.RFC3339)+" "+rand.Text())
	case p.Block.Revoked != "" && same >= api.BlockFreeAfter:
		did = "block was freed"
		ok, err = api.FreeBlock(ctx, client, p.Name, *p.Block)
	}
	switch {
	case err != nil:
		log.Warn("cannot revoke or free the block", "err", err)
	case ok:
		log.Info(did)
	}
}
