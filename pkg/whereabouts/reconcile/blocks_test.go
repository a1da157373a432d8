package reconcile

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// holdBlock creates a block that a node holds, and returns its name.
func (l *reconcilerLab) holdBlock(h api.Holder) string {
	l.t.Helper()
	block := netip.MustParsePrefix("10.0.0.16/28")
	name := api.BlockName(ipam.Pool{Prefix: netip.MustParsePrefix("10.0.0.0/24")}, block)
	if ok, err := api.CreateBlock(pooltest.Context(l.t), l.client, name, block, h); !ok || err != nil {
		l.t.Fatal(ok, err)
	}
	return name
}

func (l *reconcilerLab) block(name string) api.Block {
	l.t.Helper()
	p, err := api.ReadBlock(pooltest.Context(l.t), l.client, name)
	if err != nil {
		l.t.Fatal(err)
	}
	return *p.Block
}

func TestBlockOfANodeThatIsGoneIsRevokedAndThenFreed(t *testing.T) {
	for what, tc := range map[string]struct {
		node   bool   // it exists
		boot   string // of the block
		named  bool   // the block names the node in another way
		answer bool   // the node removes the mark
		freed  bool
	}{
		"the node is there":                      {node: true, boot: "boot-1"},
		"the node is gone":                       {boot: "boot-of-nobody", freed: true},
		"the node has another name":              {node: true, boot: "boot-7", named: true},
		"the node is gone, and asks":             {boot: "boot-of-nobody", answer: true},
		"the node was rebooted":                  {node: true, boot: "boot-0", freed: true},
		"the node was rebooted, and asks for it": {node: true, boot: "boot-0", answer: true},
	} {
		t.Run(what, func(t *testing.T) {
			l := newReconcilerLab(t)
			holder := api.Holder{Node: "nowhere", Boot: tc.boot, Claim: "claim-1"}
			if tc.node {
				holder.Node, _ = createNode(t, "True")
				setBootID(t, holder.Node, map[bool]string{true: tc.boot, false: "boot-1"}[tc.named])
			}
			if tc.named {
				holder.Node = "host-name"
			}
			name := l.holdBlock(holder)
			passed := time.Duration(0)
			b := NewBlocks(time.Minute)
			b.Now = func() time.Time { return time.Now().Add(passed) }
			look := func(after time.Duration) api.Block {
				t.Helper()
				passed += after
				survey, err := api.Inspect(pooltest.Context(t), l.client)
				if err != nil || len(survey.Blocks) != 1 || len(survey.Pools) != 0 {
					t.Fatalf("%+v, %v", survey, err)
				}
				b.Sync(pooltest.Context(t), l.client, slog.New(slog.DiscardHandler), survey.Blocks)
				return l.block(name)
			}
			gone := tc.freed || tc.answer
			if now := look(0); now.Revoked != "" || now.Claim == "" {
				t.Fatalf("at the first look: %+v", now)
			}
			now := look(2 * time.Minute)
			if (now.Revoked != "") != gone || now.Claim == "" {
				t.Fatalf("after the grace period: %+v", now)
			}
			look(0) // sees the mark for the first time
			if tc.answer {
				if ok, err := api.RevokeBlock(pooltest.Context(t), l.client, name, now, ""); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			if now := look(api.BlockFreeAfter - time.Minute); now.Claim == "" {
				t.Fatal("freed too early")
			}
			if now := look(2 * time.Minute); (now.Claim == "") != tc.freed {
				t.Errorf("in the end: %+v", now)
			}
		})
	}
}

func setBootID(t *testing.T, node, boot string) {
	t.Helper()
	patch := map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"bootID": boot}}}
	code, answer, err := plane.Admin().Patch(context.Background(), nodesPath+"/"+node+"/status", "application/merge-patch+json", patch)
	if err != nil || code != 200 {
		t.Fatal(code, string(answer), err)
	}
}

// A published entry does not hold an address: only the node knows which addresses are
// taken.
func TestReconcileLeavesTheEntriesOfBlocksAlone(t *testing.T) {
	l := newReconcilerLab(t)
	name := l.holdBlock(api.Holder{Node: "nowhere", Claim: "claim-1"})
	entries := map[string]api.Entry{"1": {ContainerID: "c", PodRef: "default/pod-that-is-gone", IfName: "net1"}}
	if ok, err := api.PublishBlock(pooltest.Context(t), l.client, name, l.block(name), entries); !ok || err != nil {
		t.Fatal(ok, err)
	}
	found, err := New(Options{Client: l.client}).Once(pooltest.Context(t))
	if err != nil || len(found) != 0 {
		t.Errorf("%v, %v", found, err)
	}
	if p, err := api.ReadBlock(pooltest.Context(t), l.client, name); err != nil || len(p.Entries) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}
