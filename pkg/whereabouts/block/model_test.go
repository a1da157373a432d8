package block

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/reconcile"
)

// The model: nodes that start and end pods of few names, lose their connection, lose
// answers, are rebooted, leave the cluster and return, while the time passes in jumps.
// Some of the nodes' work is done in processes that are killed. Each request goes to one of
// two API servers. The second is paused at times: when it resumes, its caches are stale, and
// it may carry out requests that the node has given up.
const (
	modelNodes = 4
	modelPods  = 10
	modelGrace = 10 * time.Minute
	// modelWait bounds an ADD: a server that is away costs it no more.
	modelWait = 300 * time.Millisecond
	// processStart is about how long a process needs before it does anything.
	processStart = 20 * time.Millisecond
	// inProcesses is the percentage of ADDs and DELs that run in a separate process. For
	// the passes of the keeper the percentage is three times as high.
	inProcesses = 20
	// maxPause bounds a pause of the second API server. It is longer than modelWait, so
	// that some requests take effect after the node has given up.
	maxPause = 2 * modelWait
)

// sandbox is a sandbox of a pod on a node, and its address.
type sandbox struct {
	owner ipam.Owner
	addr  netip.Addr
}

// modelNode is a node of the model.
type modelNode struct {
	*node
	proxy  *proxy
	keeper *Keeper
	booted int
	member bool // the cluster has its Node
	live   []sandbox
}

// world is the model's cluster.
type world struct {
	t      *testing.T
	rnd    *rand.Rand
	claim  ipam.Claim
	nodes  []*modelNode
	blocks *reconcile.Blocks
	survey *api.Survey // the reconciler's last
	admin  *kube.Client
	second *pausing
	// The requests that the proxies have passed on, and those that have a resourceVersion.
	passedOn, cached atomic.Int64
	passed           time.Duration
	made             int // sandboxes
	kills            int // processes that were killed
	history          []string
}

func newWorld(t *testing.T, seed uint64, second *pausing) *world {
	either := func() *controlplane.Client {
		if rand.IntN(2) == 0 {
			return plane.Admin()
		}
		return second.Admin()
	}
	w := &world{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), claim: pooltest.Claim(t, fmt.Sprint("model-", seed), "10.0.0.0/26"),
		blocks: reconcile.NewBlocks(modelGrace), second: second,
	}
	look := func(r *http.Request) {
		w.passedOn.Add(1)
		if r.URL.Query().Has("resourceVersion") {
			w.cached.Add(1)
		}
	}
	w.admin = client(t, newProxyTo(t, either, look).kubeconfig)
	w.blocks.Now = func() time.Time { return time.Now().Add(w.passed) }
	for i := range modelNodes {
		n := &modelNode{proxy: newProxyTo(t, either, look)}
		n.node = newNodeAt(t, fmt.Sprintf("model-%d-%d", seed, i), n.proxy.kubeconfig, t.TempDir())
		w.nodes = append(w.nodes, n)
		w.boot(n)
		w.join(n)
	}
	return w
}

// boot starts a node, with nothing of its former boot.
func (w *world) boot(n *modelNode) {
	if n.booted++; n.booted > 1 {
		n.node = n.reboot("")
	}
	n.self.Boot = fmt.Sprintf("%s-boot-%d", n.self.Node, n.booted) // no two machines share one
	n.now = func() moment { return now() + moment(w.passed) }
	n.keeper = keeper(n.node)
	n.keeper.Log = slog.New(slog.DiscardHandler)
	n.keeper.boot = n.self.Boot
	n.live = nil
}

const nodesPath = "/api/v1/nodes"

// join makes the node's Node, or tells the cluster of its boot.
func (w *world) join(n *modelNode) {
	w.t.Helper()
	info := map[string]any{"nodeInfo": map[string]any{"bootID": n.self.Boot}}
	if !n.member {
		pooltest.Create(w.t, plane, nodesPath, map[string]any{"metadata": map[string]any{"name": n.self.Node}})
		n.member = true
	}
	code, answer, err := plane.Admin().Patch(context.Background(), nodesPath+"/"+n.self.Node+"/status", "application/merge-patch+json", map[string]any{"status": info})
	if err != nil || code != http.StatusOK {
		w.t.Fatal(code, string(answer), err)
	}
}

func (w *world) leave(n *modelNode) {
	w.t.Helper()
	if code, answer, err := plane.Admin().Delete(context.Background(), nodesPath+"/"+n.self.Node); err != nil || code != http.StatusOK {
		w.t.Fatal(code, string(answer), err)
	}
	n.member = false
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

func (w *world) violated(format string, args ...any) {
	w.t.Helper()
	from := max(0, len(w.history)-40)
	for _, line := range w.history[from:] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

// add starts a sandbox, which may be a pod's second one, on this node or another.
func (w *world) add(n *modelNode) {
	w.made++
	o := ipam.Owner{ContainerID: fmt.Sprintf("%064x", w.made), IfName: "net1", PodRef: fmt.Sprint("default/pod-", w.rnd.IntN(modelPods)), Network: "net"}
	got, err := w.allocate(n, o)
	w.note("%s: ADD %s: %v %v", n.self.Node, o.PodRef, got, err)
	if err != nil {
		w.del(n, o) // as a runtime does
		// An ADD of a pod's second sandbox takes the address of the first over, also if it
		// fails later, and the DEL frees it.
		for i, s := range n.live {
			if s.owner.PodRef == o.PodRef {
				n.live[i].addr = netip.Addr{}
			}
		}
		return
	}
	addr := got.Addr()
	for _, other := range w.nodes {
		for i, s := range other.live {
			switch {
			case other == n && s.owner.PodRef == o.PodRef:
				other.live[i].addr = netip.Addr{} // its successor took the address over
			case s.addr == addr:
				w.violated("%s of %s on %s also has %s", o.PodRef, s.owner.PodRef, other.self.Node, addr)
			}
		}
	}
	w.wantHeld(n, addr)
	n.live = append(n.live, sandbox{o, addr})
}

// allocate makes the ADD, perhaps in a process that may be killed.
func (w *world) allocate(n *modelNode, o ipam.Owner) (netip.Prefix, error) {
	w.t.Helper()
	if w.rnd.IntN(100) < inProcesses {
		out, err := w.inProcess(n, "ADD", o)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%w: %s", err, out)
		}
		return netip.ParsePrefix(out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelWait)
	defer cancel()
	got, err := n.Allocate(ctx, o, []ipam.Claim{w.claim})
	if err != nil {
		return netip.Prefix{}, err
	}
	return got[0], nil
}

// wantHeld fails the test unless the address is of a block that, on the server, the node
// holds.
func (w *world) wantHeld(n *modelNode, addr netip.Addr) {
	w.t.Helper()
	prefix, _ := addr.Prefix(30)
	b := onServer(w.t, w.claim, prefix)
	if b == nil || b.Block.Node != n.self.Node || b.Block.Boot != n.self.Boot {
		w.violated("%s has %s of a block that the server says is %+v", n.self.Node, addr, b)
	}
}

func (w *world) del(n *modelNode, o ipam.Owner) {
	w.t.Helper()
	if w.rnd.IntN(100) < inProcesses { // the DEL below repeats it, as a runtime does
		out, err := w.inProcess(n, "DEL", o)
		w.note("%s: DEL of %s in a process: %s %v", n.self.Node, o.PodRef, out, err)
	}
	if err := n.Release(context.Background(), o, []ipam.Pool{w.claim.Pool}); err != nil {
		w.violated("DEL of %s: %v", o.PodRef, err)
	}
}

// end ends a sandbox of the node.
func (w *world) end(n *modelNode) {
	if len(n.live) == 0 {
		return
	}
	i := w.rnd.IntN(len(n.live))
	o := n.live[i].owner
	n.live = append(n.live[:i], n.live[i+1:]...)
	w.del(n, o)
	w.note("%s: DEL %s", n.self.Node, o.PodRef)
}

// reconcile has the reconciler look. Sometimes the reconciler sees what it read the last
// time, as if its API server were behind another one. The pods of a node whose block it
// frees count as ended: the node has been gone from the cluster for more than an hour.
func (w *world) reconcile() {
	w.t.Helper()
	if w.survey == nil || w.rnd.IntN(3) > 0 {
		var err error
		if w.survey, err = api.Inspect(pooltest.Context(w.t), w.admin); err != nil {
			w.t.Fatal(err)
		}
	} else {
		w.note("reconciler: with what it read the last time")
	}
	var read, before []*api.PoolState
	for _, b := range w.survey.Blocks {
		if b.Name == api.BlockName(w.claim.Pool, b.Prefix) {
			read, before = append(read, b), append(before, onServer(w.t, w.claim, b.Prefix))
		}
	}
	w.blocks.Sync(pooltest.Context(w.t), w.admin, slog.New(slog.DiscardHandler), read)
	for _, b := range before {
		now := onServer(w.t, w.claim, b.Prefix)
		// A block that is not marked was returned by its node, by a request that took effect late.
		if b.Block.Claim == "" || now.Block.Claim != "" || b.Block.Revoked == "" {
			continue
		}
		w.note("reconciler: %s of %s is free", b.Prefix, b.Block.Node)
		for _, n := range w.nodes {
			if n.self.Node == b.Block.Node && n.member && n.self.Boot == b.Block.Boot {
				w.violated("the reconciler freed %s of %s, which is there", b.Prefix, n.self.Node)
			}
			for i := range n.live {
				if b.Prefix.Contains(n.live[i].addr) && n.self.Node == b.Block.Node {
					n.live[i].addr = netip.Addr{}
				}
			}
		}
	}
}

// pausing is the second API server. The worlds share it.
type pausing struct {
	*controlplane.SecondAPIServer
	running sync.Mutex // held while the server is paused
}

// pause pauses the second API server for a while, unless it is paused already.
func (w *world) pause() {
	w.t.Helper()
	if !w.second.running.TryLock() {
		return
	}
	d := rand.N(maxPause)
	w.note("the second API server is paused for %s", d)
	if err := w.second.Pause(); err != nil {
		w.t.Fatal(err)
	}
	time.AfterFunc(d, func() {
		_ = w.second.Resume()
		w.second.running.Unlock()
	})
}

// later lets the time pass. A server ends a request long before the five minutes of
// [claimTime] are over. So what a node has given up must take effect before the time jumps.
func (w *world) later(d time.Duration) {
	w.t.Helper()
	w.second.running.Lock()
	defer w.second.running.Unlock()
	if code, _, err := w.second.Admin().Get(pooltest.Context(w.t), "/readyz"); err != nil || code != http.StatusOK {
		w.t.Fatal(code, err)
	}
	time.Sleep(200 * time.Millisecond)
	w.passed += d
}

// step does one thing.
func (w *world) step() {
	n := w.nodes[w.rnd.IntN(len(w.nodes))]
	switch p := w.rnd.IntN(100); {
	case p < 40:
		w.add(n)
	case p < 65:
		w.end(n)
	case p < 75:
		w.keep(n)
	case p < 82:
		w.reconcile()
	case p < 88:
		d := time.Duration(w.rnd.IntN(25)) * time.Minute
		w.later(d)
		w.note("%s later", d)
	case p < 91:
		n.proxy.down.Store(!n.proxy.down.Load())
		w.note("%s: connected %v", n.self.Node, !n.proxy.down.Load())
	case p < 95:
		n.proxy.lose.Store(!n.proxy.lose.Load())
		w.note("%s: answers are lost %v", n.self.Node, n.proxy.lose.Load())
	case p < 96:
		w.pause()
	case p < 98:
		w.boot(n)
		if n.member {
			w.join(n)
		}
		w.note("%s: rebooted", n.self.Node)
	case n.member:
		w.leave(n)
		w.note("%s: left the cluster", n.self.Node)
	default:
		w.join(n)
		w.note("%s: joined the cluster", n.self.Node)
	}
}

// keep has the node's keeper look, perhaps in a process that may be killed.
func (w *world) keep(n *modelNode) {
	w.t.Helper()
	if w.rnd.IntN(100) < 3*inProcesses {
		out, err := w.inProcess(n, "KEEP", ipam.Owner{})
		w.note("%s: keeper in a process: %s %v", n.self.Node, out, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), modelWait)
	defer cancel()
	err := n.keeper.Pass(ctx)
	w.note("%s: keeper: %v", n.self.Node, err)
}

// settle ends everything. Then no node may hold a block.
func (w *world) settle() {
	w.t.Helper()
	for _, n := range w.nodes {
		n.proxy.down.Store(false)
		n.proxy.lose.Store(false)
		if !n.member {
			w.join(n)
		}
		for len(n.live) > 0 {
			w.end(n)
		}
		all, err := n.local.Allocations(context.Background(), w.claim.Pool)
		if err != nil || len(all) > 0 {
			w.violated("%s keeps %v, %v", n.self.Node, all, err)
		}
	}
	for range 6 { // the blocks of this boot are returned, those of earlier boots are freed
		w.later(returnAfter + time.Minute)
		for _, n := range w.nodes {
			if err := n.keeper.Pass(pooltest.Context(w.t)); err != nil {
				w.violated("%s: keeper: %v", n.self.Node, err)
			}
		}
		w.survey = nil // the last one is old
		w.reconcile()
	}
	survey, err := api.Inspect(pooltest.Context(w.t), w.admin)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, b := range survey.Blocks {
		if b.Name == api.BlockName(w.claim.Pool, b.Prefix) && (b.Block.Claim != "" || len(b.Entries) > 0) {
			w.violated("left: %s %+v %v", b.Name, b.Block, b.Entries)
		}
	}
}

func TestNoAddressOfABlockIsHeldTwiceOrLost(t *testing.T) {
	seeds, steps := 2, 300
	if need.Full() {
		seeds, steps = 6, 5000
	}
	server, err := plane.StartSecondAPIServer(pooltest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	second := &pausing{SecondAPIServer: server}
	first := rand.Uint64N(1 << 30)
	for i := range seeds {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed, second)
			for range steps {
				w.step()
			}
			w.settle()
			// Without a resourceVersion, an API server answers with what etcd has now, however far its
			// cache is behind.
			if w.passedOn.Load() == 0 || w.cached.Load() > 0 {
				t.Errorf("of %d requests %d may be answered from a server's cache", w.passedOn.Load(), w.cached.Load())
			}
			t.Logf("%d sandboxes, %d processes were killed", w.made, w.kills)
			if w.kills == 0 {
				t.Error("no process was killed")
			}
		})
	}
}
