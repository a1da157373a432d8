package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/block"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/reconcile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// plane is the control plane of all tests. The first that needs it starts it.
var plane struct {
	sync.Mutex
	*controlplane.Plane
	dir string
}

func startPlane(t *testing.T) *controlplane.Plane {
	t.Helper()
	plane.Lock()
	defer plane.Unlock()
	if plane.Plane != nil {
		return plane.Plane
	}
	dir, err := scratch.MkdirTemp("crash")
	if err != nil {
		t.Fatal(err)
	}
	started, err := controlplane.New(context.Background(), dir, controlplane.Options{})
	if err != nil {
		_ = scratch.Remove(dir)
		need.NoError(t, err)
	}
	plane.dir, plane.Plane = dir, started
	return started
}

func stopPlane() {
	if plane.Plane != nil {
		plane.Close()
	}
	if plane.dir != "" {
		_ = scratch.Remove(plane.dir)
	}
}

var namespaces atomic.Int64

// newNamespace makes a namespace of the API, and a kubeconfig for it.
func newNamespace(t *testing.T) (kubeconfig string) {
	t.Helper()
	p, name := startPlane(t), fmt.Sprint("crash-", namespaces.Add(1))
	code, answer, err := p.Admin().Create(t.Context(), "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": name}})
	if err != nil || code >= 300 {
		t.Fatalf("namespace %s: %d %s %v", name, code, answer, err)
	}
	c, err := p.CertificateFor("node-of-"+name, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if _, err := p.Kubeconfig(c, controlplane.Form{Path: kubeconfig, Namespace: name}); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// Containers. "was" and "a" are sandboxes of one pod: the second takes over the
// address of the first.
const (
	was, a, b, c = "was", "a", "b", "c"
	own          = "10.0.0.0/24"
	wider        = "10.0.0.0/16" // a pool that overlaps
)

// pool is the subject whereabouts.
type pool struct {
	t          *testing.T
	state      string
	kubeconfig string // "" is the local store
	blockSize  int    // 0 is none
	before     func(p *pool)
	verb       string
	lost       []string
}

func (p *pool) program(verb, id, cidr string) program {
	pod := map[string]string{was: a}[id]
	if pod == "" {
		pod = id
	}
	ipam := map[string]any{"type": "whereabouts", "range": cidr, "store": "local"}
	if p.kubeconfig != "" {
		ipam["store"], ipam["kubernetes"] = "kubernetes", map[string]any{"kubeconfig": p.kubeconfig}
	}
	if p.blockSize > 0 {
		ipam["block_size"] = p.blockSize
	}
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "stateDir": p.state, "ipam": ipam})
	if err != nil {
		p.t.Fatal(err)
	}
	return program{args: []string{filepath.Join(testnet.Bin(p.t), "whereabouts")}, stdin: string(conf), env: []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=net1", "CNI_NETNS=/nonexistent/netns", "CNI_PATH=/nonexistent", testnet.OpenNodeFileEnv,
		"CNI_ARGS=K8S_POD_NAMESPACE=ns;K8S_POD_NAME=" + pod, "GOTRACEBACK=none",
	}}
}

// run runs a verb to its end and returns the address of an ADD.
func (p *pool) run(verb, id, cidr string) (addr string) {
	p.t.Helper()
	call := p.program(verb, id, cidr)
	cmd := exec.Command(call.args[0])
	cmd.Env, cmd.Stdin = call.env, strings.NewReader(call.stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		p.lost = append(p.lost, fmt.Sprintf("%s of %s: %v %s%s", verb, id, err, stdout.Bytes(), stderr.Bytes()))
		return ""
	}
	return address(stdout.Bytes())
}

// address returns the first address of a result, or "".
func address(result []byte) string {
	var r struct{ IPs []struct{ Address string } }
	if json.Unmarshal(result, &r) != nil || len(r.IPs) == 0 {
		return ""
	}
	addr, _, _ := strings.Cut(r.IPs[0].Address, "/")
	return addr
}

func (p *pool) begin() program {
	p.state = p.t.TempDir()
	if p.blockSize > 0 {
		p.kubeconfig = newNamespace(p.t) // a new state directory is a node that knows no block of the last try
	}
	if p.before != nil {
		p.before(p)
	}
	return p.program(p.verb, a, own)
}

// byReconciler is the cluster's recovery, which frees addresses without a pod.
const byReconciler = "the reconciler"

// recover lets others use the pools. No two may get one address.
func (p *pool) recover(recovery string, o outcome) []string {
	p.t.Helper()
	held := map[string]string{}
	take := func(id, addr string) {
		if other := held[addr]; addr != "" && other != "" && other != id {
			p.lost = append(p.lost, fmt.Sprintf("%s and %s both have %s", other, id, addr))
		}
		held[addr] = id
	}
	if p.verb == "ADD" && o.code == 0 && o.ended {
		take(a, address([]byte(o.stdout)))
	}
	take(b, p.run("ADD", b, wider))
	if recovery == byAgain {
		take(a, p.run("ADD", a, own))
		take(c, p.run("ADD", c, own))
		take(b, p.run("ADD", b, wider))
	}
	if recovery != byReconciler {
		p.run("DEL", a, own)
		p.run("DEL", was, own)
	}
	p.run("DEL", b, wider)
	p.run("DEL", c, own)
	if p.kubeconfig == "" || p.blockSize > 0 {
		p.settleLocal()
	}
	switch {
	case p.blockSize > 0:
		p.settleBlocks()
	case p.kubeconfig != "":
		p.settleCluster(recovery)
	}
	lost := p.lost
	p.lost = nil
	return lost
}

// settleLocal takes each pool's lock, which tidies up if needed.
func (p *pool) settleLocal() {
	for _, cidr := range []string{own, wider} {
		p.run("ADD", "settle", cidr)
		p.run("DEL", "settle", cidr)
	}
	dir := p.state
	if p.blockSize > 0 {
		dir = filepath.Join(dir, "ipam") // the node's blocks stay
	}
	for _, path := range testnet.Leftovers(p.t, dir) {
		p.lost = append(p.lost, "left: "+path)
	}
}

// settleCluster does the work of the next call, or of the agent. An entry must
// be gone before the reconciler runs, unless nothing else ran.
func (p *pool) settleCluster(recovery string) {
	p.t.Helper()
	client, err := kube.Open(kube.Config{Kubeconfig: p.kubeconfig, UserAgent: "crash"})
	if err != nil {
		p.t.Fatal(err)
	}
	s, err := store.New(store.Options{
		Client: client, Kubeconfig: p.kubeconfig, StateDir: p.state,
		JournalDir: netconf.JournalDir(p.state),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	defer s.Close()
	if left, err := s.Replay(p.t.Context()); err != nil || left != 0 {
		p.lost = append(p.lost, fmt.Sprintf("the journal keeps %d: %v", left, err))
	}
	if recovery != byReconciler {
		p.wantNone(client, "before the reconciler", false)
	}
	if _, err := reconcile.New(reconcile.Options{Client: client}).Once(p.t.Context()); err != nil {
		p.lost = append(p.lost, "reconciler: "+err.Error())
	}
	p.wantNone(client, "after the reconciler", true)
}

// settleBlocks does the work of the agent. The node must know each block that the server
// says is its own.
func (p *pool) settleBlocks() {
	p.t.Helper()
	client, err := kube.Open(kube.Config{Kubeconfig: p.kubeconfig, UserAgent: "crash"})
	if err != nil {
		p.t.Fatal(err)
	}
	k := block.Keeper{StateDirs: []string{p.state}, Log: slog.New(slog.DiscardHandler), Open: func(_, _ string) (*kube.Client, error) { return client, nil }}
	if err := k.Pass(p.t.Context()); err != nil {
		p.lost = append(p.lost, "agent: "+err.Error())
	}
	found, err := api.Inspect(p.t.Context(), client)
	if err != nil {
		p.t.Fatal(err)
	}
	known := block.OnNode(p.state)
	for _, b := range found.Blocks {
		mine := slices.ContainsFunc(known, func(h block.Held) bool { return h.Claim == b.Block.Claim })
		if b.Block.Claim != "" && !mine {
			p.lost = append(p.lost, "the node does not know its block "+b.Name)
		}
		if len(b.Entries) > 0 {
			p.lost = append(p.lost, fmt.Sprintf("%s has entries: %v", b.Name, b.Entries))
		}
	}
}

// wantNone fails the test if the cluster's pools have an entry or, if all is
// set, a reservation.
func (p *pool) wantNone(client *kube.Client, when string, all bool) {
	p.t.Helper()
	found, err := api.Inspect(p.t.Context(), client)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, h := range found.Holdings {
		p.lost = append(p.lost, fmt.Sprintf("%s, pool %s has %s for %s", when, h.Pool.Name, h.Addr, h.Owner()))
	}
	for _, r := range found.Loose {
		if all {
			p.lost = append(p.lost, fmt.Sprintf("%s, there is a reservation %s", when, r.Metadata.Name))
		}
	}
}

// TestNoAddressIsLostOrHeldTwiceWhereWhereaboutsIsKilled kills whereabouts at
// each change, on both stores, and has others use the pools immediately
// afterwards.
func TestNoAddressIsLostOrHeldTwiceWhereWhereaboutsIsKilled(t *testing.T) {
	type scenario struct {
		name   string
		verb   string
		before func(p *pool)
	}
	scenarios := []scenario{
		{"first address", "ADD", nil},
		{"used pool", "ADD", func(p *pool) { p.run("ADD", "x", wider); p.run("DEL", "x", wider) }},
		{"new sandbox", "ADD", func(p *pool) { p.run("ADD", was, own) }},
		{"held address", "DEL", func(p *pool) { p.run("ADD", a, own) }},
	}
	modes := []mode{{recovery: byDEL}, {recovery: byAgain}}
	for _, e := range injected {
		modes = append(modes, mode{errno: e, recovery: byDEL})
	}
	for _, store := range []string{"local", "kubernetes", "blocks"} {
		for _, sc := range scenarios {
			all := slices.Clone(modes)
			switch {
			case store == "kubernetes":
				all = append(all, mode{recovery: byReconciler})
			case store == "blocks" && sc.before != nil:
				continue // the same as with the local store
			}
			for _, m := range all {
				name := fmt.Sprintf("whereabouts, %s, %s", store, sc.name)
				t.Run(name+"/"+m.String(), func(t *testing.T) {
					t.Parallel()
					p := &pool{t: t, before: sc.before, verb: sc.verb}
					if store == "kubernetes" {
						p.kubeconfig = newNamespace(t)
					}
					if store == "blocks" {
						p.blockSize = 2 // so that each pod needs a block or two
					}
					sweep(t, p, name, sc.verb, m, sample, enough).report(t)
				})
			}
		}
	}
}
