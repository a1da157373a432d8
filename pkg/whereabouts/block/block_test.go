package block

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

func TestAddsOfAHeldBlockMakeNoRequest(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "quiet", "10.0.0.0/24")
	if got := requests(t, func() { n.add(pooltest.Pod(0), c) }); got != 3 {
		t.Errorf("%d requests for the first block, want two for the guard and one for the block", got)
	}
	got := requests(t, func() {
		for i := range testSize - 2 { // the range's first and last block have one address less
			n.add(pooltest.Pod(i+1), c)
		}
		for i := range testSize - 1 {
			n.del(pooltest.Pod(i), c)
		}
		n.add(pooltest.Pod(9), c)
		if err := n.Status(pooltest.Context(t), []ipam.Claim{c}); err != nil {
			t.Error(err)
		}
	})
	if got != 0 {
		t.Errorf("%d requests", got)
	}
}

func TestNodesGetBlocksOfTheirOwn(t *testing.T) {
	c := pooltest.Claim(t, "apart", "10.0.0.0/26")
	var mu sync.Mutex
	seen := map[netip.Addr]string{}
	nodes := make([]*node, 4)
	for i := range nodes {
		nodes[i] = newNode(t, "node"+string(rune('a'+i)))
	}
	const pods = 52 // 13 for each node need 4 of the 16 blocks
	pooltest.Parallel(pods, func(i int) {
		n := nodes[i%len(nodes)]
		got, err := n.Allocate(pooltest.Context(t), pooltest.Pod(i), []ipam.Claim{c})
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if who := seen[got[0].Addr()]; who != "" {
			t.Errorf("%s is given to %s and to %s", got[0], who, n.self.Node)
		}
		seen[got[0].Addr()] = n.self.Node
	})
	if len(seen) != pods {
		t.Errorf("%d addresses", len(seen))
	}
	var err error
	for i := pods; err == nil && i < pods+4; i++ {
		_, err = nodes[0].Allocate(pooltest.Context(t), pooltest.Pod(i), []ipam.Claim{c})
	}
	wantError(t, err, "Could not allocate IP in range", "none of the blocks of 4 addresses that were tried is free", "make block_size smaller")
	if failure.KindOf(err) != failure.IPAM {
		t.Errorf("kind %v", failure.KindOf(err))
	}
	// The server is not asked again at once, because many pods may wait for an address.
	if got := requests(t, func() {
		if _, err := nodes[0].Allocate(pooltest.Context(t), pooltest.Pod(99), []ipam.Claim{c}); err == nil {
			t.Error("an address of a full pool")
		}
	}); got != 0 {
		t.Errorf("%d requests for a pool that was full just now", got)
	}
}

func TestSamePodKeepsItsAddressInItsNewSandbox(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "same", "10.0.0.0/24")
	first, second := pooltest.Pod(1), pooltest.Pod(1)
	second.ContainerID = strings.Repeat("f", 64)
	was := n.add(first, c)
	if got := n.add(second, c); got != was {
		t.Errorf("%s, then %s", was, got)
	}
	n.del(first, c) // late
	got, err := n.Check(pooltest.Context(t), second, []ipam.Pool{c.Pool})
	if err != nil || got[0].Addr() != was {
		t.Errorf("after the late DEL: %v, %v", got, err)
	}
}

// The whole mask, the range's bounds, its gateway and excluded addresses hold.
func TestBoundsOfTheRangeHoldInItsBlocks(t *testing.T) {
	n := newNode(t, "node1")
	rng, err := ipam.NewRange(ipam.RangeSpec{
		Prefix: netip.MustParsePrefix("10.0.0.0/24"), Start: netip.MustParseAddr("10.0.0.6"), End: netip.MustParseAddr("10.0.0.13"),
		Exclude: []netip.Prefix{netip.MustParsePrefix("10.0.0.8/30")}, Avoid: []netip.Addr{netip.MustParseAddr("10.0.0.12")},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := pooltest.Claim(t, "bounds", "10.0.0.0/24")
	c.Range = rng
	var got []string
	for i := range 3 {
		got = append(got, n.add(pooltest.Pod(i), c).String())
	}
	slices.Sort(got)
	if want := []string{"10.0.0.13", "10.0.0.6", "10.0.0.7"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(3), []ipam.Claim{c}); err == nil {
		t.Error("an address that the range does not assign")
	}
	if got := n.blocks(c); len(got) != 2 {
		t.Errorf("blocks %v: one without an address was claimed", got)
	}
}

func TestBlocksOfIPv6(t *testing.T) {
	n, other := newNode(t, "node1"), newNode(t, "node2")
	for space, prefix := range map[string]string{"six-wide": "fd00::/48", "six-narrow": "fd00:0:0:1::/124", "six-host": "fd00::ffff:ffff:ffff:fff0/124"} {
		c := pooltest.Claim(t, space, prefix)
		if a, b := n.add(pooltest.Pod(1), c), other.add(pooltest.Pod(2), c); a == b || !c.Pool.Prefix.Contains(a) || !c.Pool.Prefix.Contains(b) {
			t.Errorf("%s: %s and %s", prefix, a, b)
		}
	}
}

func TestRequestedAddress(t *testing.T) {
	n, other := newNode(t, "node1"), newNode(t, "node2")
	c := pooltest.Claim(t, "want", "10.0.0.0/24")
	c.Want = netip.MustParseAddr("10.0.0.77")
	if got := n.add(pooltest.Pod(1), c); got != c.Want {
		t.Errorf("%s", got)
	}
	_, err := n.Allocate(pooltest.Context(t), pooltest.Pod(2), []ipam.Claim{c})
	wantError(t, err, "default/pod-1 holds it")
	_, err = other.Allocate(pooltest.Context(t), pooltest.Pod(2), []ipam.Claim{c})
	wantError(t, err, "the block 10.0.0.76/30", "10.0.0.77")
}

func TestSeveralRangesOrNone(t *testing.T) {
	n := newNode(t, "node1")
	one, full := pooltest.Claim(t, "both", "10.0.0.0/24"), pooltest.Claim(t, "both", "10.0.1.0/30")
	if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(1), []ipam.Claim{one, full}); err != nil {
		t.Fatal(err)
	}
	n.add(pooltest.Pod(2), full)
	if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(3), []ipam.Claim{one, full}); err == nil {
		t.Fatal("an address of a full range")
	}
	all, err := n.local.Allocations(pooltest.Context(t), one.Pool)
	if err != nil || len(all) != 1 {
		t.Errorf("after the refusal: %v, %v", all, err)
	}
}

func TestPoolIsDividedOrUsedEntryByEntry(t *testing.T) {
	n := newNode(t, "node1")
	s, err := store.New(store.Options{Client: n.client, Kubeconfig: n.kubeconfig, StateDir: t.TempDir(), JournalDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	used, divided := pooltest.Claim(t, "used", "10.0.0.0/24"), pooltest.Claim(t, "divided", "10.0.0.0/24")
	if _, err := s.Allocate(pooltest.Context(t), pooltest.Pod(1), []ipam.Claim{used}); err != nil {
		t.Fatal(err)
	}
	_, err = n.Allocate(pooltest.Context(t), pooltest.Pod(2), []ipam.Claim{used})
	wantError(t, err, "IPPool kube-system/used-10.0.0.0-24 belongs to networks without block_size (1 addresses are taken)", "another range or network_name")
	n.add(pooltest.Pod(2), divided)
	_, err = s.Allocate(pooltest.Context(t), pooltest.Pod(1), []ipam.Claim{divided})
	wantError(t, err, "is divided into blocks of 4 addresses, but the network has no block_size", "the same block_size")
	wantError(t, s.Status(pooltest.Context(t), []ipam.Claim{divided}), "divided into blocks")

	larger := newNode(t, "node2")
	larger.size = 2 * testSize
	_, err = larger.Allocate(pooltest.Context(t), pooltest.Pod(3), []ipam.Claim{divided})
	wantError(t, err, "block_size 8", "divided into blocks of 4", "the same block_size")
	wantError(t, larger.Status(pooltest.Context(t), []ipam.Claim{divided}), "divided into blocks of 4")
}

// A /24 of one network lies in the /16 of another, in one address space.
func TestOverlappingPoolsShareTheirBlocks(t *testing.T) {
	n := newNode(t, "node1")
	small, large := pooltest.Claim(t, "overlap", "10.0.0.0/29"), pooltest.Claim(t, "overlap", "10.0.0.0/28")
	seen := map[netip.Addr]bool{}
	for i, c := range []ipam.Claim{small, large, small, large, small, large} {
		addr := n.add(pooltest.Pod(i), c)
		if seen[addr] {
			t.Errorf("%s twice", addr)
		}
		seen[addr] = true
	}
	other := newNode(t, "node2")
	for i := range 8 {
		got, err := other.Allocate(pooltest.Context(t), pooltest.Pod(10+i), []ipam.Claim{large})
		if err != nil {
			break
		}
		if seen[got[0].Addr()] {
			t.Errorf("%s twice", got[0])
		}
	}
}

// proxy passes a node's requests on to an API server. A test can make it unreachable, have
// it lose answers, or have it kill the process that sends a request.
type proxy struct {
	kubeconfig string
	down, lose atomic.Bool
	victim     atomic.Pointer[victim]
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	return newProxyTo(t, plane.Admin, func(*http.Request) {})
}

// newProxyTo returns a proxy that sends each request with the client that pick returns for
// it, after a call of scan.
func newProxyTo(t *testing.T, pick func() *controlplane.Client, look func(*http.Request)) *proxy {
	t.Helper()
	p := &proxy{}
	url := pooltest.BetweenAny(t, pick, func(r *http.Request, _ []byte) (int, string) {
		look(r)
		if p.down.Load() {
			panic(http.ErrAbortHandler)
		}
		p.kill(false)
		return 0, ""
	}, func(r *http.Request) {
		p.kill(true)
		if p.lose.Load() && r.Method != http.MethodGet {
			panic(http.ErrAbortHandler)
		}
	})
	p.kubeconfig = pooltest.Kubeconfig(t, plane, url, "kube-system")
	return p
}

func TestServerMayBeAwayForAnHour(t *testing.T) {
	var requests atomic.Int32
	p := newProxyTo(t, plane.Admin, func(*http.Request) { requests.Add(1) })
	n, c := newNodeAt(t, "node1", p.kubeconfig, t.TempDir()), pooltest.Claim(t, "away", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	p.down.Store(true)
	n.add(pooltest.Pod(1), c)
	n.passed = api.BlockUsableFor - time.Minute
	began := time.Now()
	n.add(pooltest.Pod(2), c)
	if took := time.Since(began); took > RetryFor+20*time.Second {
		t.Errorf("the ADD waited %s for a server that it does not need", took)
	}
	requests.Store(0)
	n.del(pooltest.Pod(1), c)
	n.add(pooltest.Pod(1), c)
	if asked := requests.Load(); asked > 2 {
		t.Errorf("the next DEL and ADD also waited: they asked %d times", asked)
	}
	n.passed = api.BlockUsableFor + time.Minute
	_, err := n.Allocate(soon(t, 15*time.Second), pooltest.Pod(3), []ipam.Claim{c})
	wantError(t, err, "has not confirmed this node's blocks")
	p.down.Store(false)
	n.passed += askAgain
	n.add(pooltest.Pod(3), c)
	if got := n.blocks(c); len(got) != 1 {
		t.Errorf("blocks %v: the server has confirmed the first", got)
	}
}

func TestLostAnswersLeaveNoBlockBehind(t *testing.T) {
	p := newProxy(t)
	n, c := newNodeAt(t, "node1", p.kubeconfig, t.TempDir()), pooltest.Claim(t, "lost", "10.0.0.0/24")
	n.add(pooltest.Pod(0), pooltest.Claim(t, "lost-other", "10.0.0.0/24")) // so that it is about the block
	p.lose.Store(true)
	if _, err := n.Allocate(soon(t, 2*time.Second), pooltest.Pod(0), []ipam.Claim{c}); err == nil {
		t.Fatal("an address without an answer")
	}
	p.lose.Store(false)
	n.add(pooltest.Pod(0), c)
	blocks := n.blocks(c)
	if len(blocks) != 1 {
		t.Fatalf("blocks %v", blocks)
	}
	survey, err := api.Inspect(pooltest.Context(t), client(t, plane.AdminKubeconfig()))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range survey.Blocks {
		if strings.HasPrefix(b.Name, "lost-rail-cni-block") && b.Prefix != blocks[0] {
			t.Errorf("the server also has %s for %s", b.Name, b.Block.Node)
		}
	}
}

// A process may be killed at any time. Without the file nobody would know of the claim: the
// claim is of this boot, so the node would leave the block alone.
func TestFileHasAClaimBeforeTheServer(t *testing.T) {
	state, seen := t.TempDir(), 0
	url := pooltest.Between(t, plane, func(r *http.Request, body []byte) (int, string) {
		if r.Method == http.MethodPost && strings.Contains(string(body), "before-rail-cni-block") {
			seen++
			if !slices.ContainsFunc(OnNode(state), func(h Held) bool { return strings.Contains(string(body), h.Claim) }) {
				t.Errorf("the file has %v, and the server gets %s", OnNode(state), body)
			}
		}
		return 0, ""
	}, nil)
	c := pooltest.Claim(t, "before", "10.0.0.0/24")
	n := newNodeAt(t, "node1", pooltest.Kubeconfig(t, plane, url, "kube-system"), state)
	n.add(pooltest.Pod(0), c)
	if seen == 0 {
		t.Error("no block was created")
	}
}

func TestNodeTakesItsBlocksAgainAfterAReboot(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "reboot", "10.0.0.0/24")
	was := n.add(pooltest.Pod(0), c)
	lost := newNode(t, "node1") // its state directory was removed while pods run
	if got := lost.add(pooltest.Pod(1), c); n.blocks(c)[0].Contains(got) {
		t.Errorf("%s is of a block whose pods are unknown", got)
	}
	again := n.reboot("another-boot")
	if got := again.add(pooltest.Pod(2), c); got != was {
		t.Errorf("%s after the reboot, want %s", got, was)
	}
	if b := onServer(t, c, n.blocks(c)[0]); b.Block.Boot != "another-boot" {
		t.Errorf("on the server: %+v", b.Block)
	}
	twin := n.reboot("a-third-boot")
	twin.self.Machine = "another machine of that name"
	if got := twin.add(pooltest.Pod(3), c); n.blocks(c)[0].Contains(got) {
		t.Errorf("%s is of a block of another machine", got)
	}
}

func TestUnreadableFileIsNotForgotten(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "torn", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	path := filepath.Join(n.dir.Path(), n.pool(c.Pool).name()+jsonSuffix)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := n.Allocate(pooltest.Context(t), pooltest.Pod(1), []ipam.Claim{c})
	wantError(t, err, path, "remove the file when no pod of this node uses an address of the pool")
}

func TestAddOfAPodThatIsGoneGetsNoAddress(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "gone", "10.0.0.0/24")
	n.gone = func() error { return errors.New("its namespace is gone") }
	_, err := n.Allocate(pooltest.Context(t), pooltest.Pod(0), []ipam.Claim{c})
	wantError(t, err, "its namespace is gone")
	if all, err := n.local.Allocations(pooltest.Context(t), c.Pool); len(all) > 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
}

// keeper returns a Keeper for the node, with the node's clock.
func keeper(n *node) *Keeper {
	return &Keeper{
		StateDirs: []string{n.state},
		Open: func(kubeconfig, _ string) (*kube.Client, error) {
			return kube.Open(kube.Config{Kubeconfig: kubeconfig, UserAgent: "test-" + n.t.Name() + "-keeper", RetryFor: RetryFor})
		},
		now: n.now, boot: n.self.Boot,
	}
}

func (n *node) pass(k *Keeper) {
	n.t.Helper()
	if err := k.Pass(pooltest.Context(n.t)); err != nil {
		n.t.Fatal(err)
	}
}

func TestKeeperPublishesWhoHasTheAddresses(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "publish", "10.0.0.0/24")
	addr := n.add(pooltest.Pod(0), c)
	n.add(pooltest.Pod(1), c)
	k := keeper(n)
	n.pass(k)
	block := n.blocks(c)[0]
	b := onServer(t, c, block)
	_, e, ok := b.Find(func(a netip.Addr, _ api.Entry) bool { return a == addr })
	if len(b.Entries) != 2 || !ok || e != api.NewEntry(pooltest.Pod(0)) {
		t.Errorf("published: %+v", b.Entries)
	}
	if got := requests(t, func() { n.pass(k) }); got != 0 {
		t.Errorf("%d requests though nothing has changed", got)
	}
	n.del(pooltest.Pod(0), c)
	n.pass(k)
	if b := onServer(t, c, block); len(b.Entries) != 1 {
		t.Errorf("published after DEL: %+v", b.Entries)
	}
	n.pass(keeper(n)) // another process
	if b := onServer(t, c, block); len(b.Entries) != 1 {
		t.Errorf("published: %+v", b.Entries)
	}
}

func TestKeeperAsksSoThatADDsNeedNot(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "fresh", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	k := keeper(n)
	n.pass(k)
	n.passed = keptFresh + time.Second
	if got := requests(t, func() { n.pass(k) }); got != 1 {
		t.Errorf("%d requests of the keeper, want 1", got)
	}
	n.passed = confirmAfter + time.Second
	if got := requests(t, func() { n.add(pooltest.Pod(1), c) }); got != 0 {
		t.Errorf("%d requests of the ADD", got)
	}
}

func TestEmptyBlockIsReturnedAfterAnHour(t *testing.T) {
	n, other := newNode(t, "node1"), newNode(t, "node2")
	c := pooltest.Claim(t, "return", "10.0.0.0/29") // two blocks
	for i := range 4 {
		n.add(pooltest.Pod(i), c)
	}
	if _, err := other.Allocate(pooltest.Context(t), pooltest.Pod(9), []ipam.Claim{c}); err == nil {
		t.Fatal("a third block")
	}
	blocks := n.blocks(c)
	for i := range 4 {
		if a, err := n.Check(pooltest.Context(t), pooltest.Pod(i), []ipam.Pool{c.Pool}); err != nil {
			t.Fatal(err)
		} else if blocks[0].Contains(a[0].Addr()) {
			n.del(pooltest.Pod(i), c)
		}
	}
	k := keeper(n)
	n.pass(k)
	n.passed = returnAfter - time.Minute
	n.pass(k)
	if got := n.blocks(c); len(got) != 2 {
		t.Fatalf("blocks %v before the hour is over", got)
	}
	n.passed = returnAfter + time.Minute
	n.pass(k)
	if got := n.blocks(c); len(got) != 1 || got[0] != blocks[1] {
		t.Fatalf("blocks %v", got)
	}
	other.passed = askAgain + time.Second
	if got := other.add(pooltest.Pod(9), c); !blocks[0].Contains(got) {
		t.Errorf("%s is not of the returned block %s", got, blocks[0])
	}
}

// If a block has addresses in between, the time for which it has been empty begins anew.
func TestHourOfAnEmptyBlockBeginsAnewAfterItsUse(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "anew", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	n.del(pooltest.Pod(0), c)
	k := keeper(n)
	at := func(passed time.Duration, blocks int) {
		t.Helper()
		n.passed = passed
		n.pass(k)
		if got := n.blocks(c); len(got) != blocks {
			t.Fatalf("after %v the node has the blocks %v, want %d", passed, got, blocks)
		}
	}
	at(0, 1)
	n.add(pooltest.Pod(0), c)
	at(returnAfter/2, 1)
	n.del(pooltest.Pod(0), c)
	const empty = returnAfter/2 + time.Minute // again
	at(empty, 1)
	at(returnAfter+time.Second, 1)
	at(empty+returnAfter-time.Second, 1)
	at(empty+returnAfter, 0)
}

// A process may be killed at each step of a claim and of a return.
func TestKeeperFinishesWhatAKilledProcessBegan(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "killed", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	n.del(pooltest.Pod(0), c)
	block := n.blocks(c)[0]
	p := n.pool(c.Pool)
	for _, state := range []string{claiming, returning} {
		if err := p.change(pooltest.Context(t), func(f *file) { f.find(block).State = state }); err != nil {
			t.Fatal(err)
		}
		n.add(pooltest.Pod(0), c) // takes it again
		if got := n.blocks(c); len(got) != 1 || got[0] != block {
			t.Errorf("%s: blocks %v, want %s", state, got, block)
		}
		n.del(pooltest.Pod(0), c)
		if err := p.change(pooltest.Context(t), func(f *file) { f.find(block).State = state }); err != nil {
			t.Fatal(err)
		}
		if state == claiming {
			n.pass(keeper(n))
			if got := n.blocks(c); len(got) != 1 {
				t.Errorf("blocks %v: the claim may still be under way", got)
			}
		}
		n.passed += claimTime
		n.pass(keeper(n))
		if got := n.blocks(c); len(got) != 0 {
			t.Errorf("%s: blocks %v after the keeper", state, got)
		}
		if b := onServer(t, c, block); b.Block.Claim != "" {
			t.Errorf("%s: on the server: %+v", state, b.Block)
		}
		n.add(pooltest.Pod(0), c)
		n.del(pooltest.Pod(0), c)
	}
}

func TestNodeThatIsNotGoneRemovesTheMark(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "revoked", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	block := n.blocks(c)[0]
	name := api.BlockName(c.Pool, block)
	ok, err := api.RevokeBlock(pooltest.Context(t), n.client, name, *onServer(t, c, block).Block, "some time")
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	marked := *onServer(t, c, block).Block
	n.passed = confirmAfter + time.Second
	n.add(pooltest.Pod(1), c)
	if b := onServer(t, c, block); b.Block.Revoked != "" {
		t.Errorf("on the server: %+v", b.Block)
	}
	if ok, err := api.FreeBlock(pooltest.Context(t), n.client, name, marked); ok || err != nil {
		t.Errorf("the block was freed although the node removed the mark: %v, %v", ok, err)
	}
}

func TestBlockIsFreedOnlyWhenItsNodeNoLongerUsesIt(t *testing.T) {
	if api.BlockFreeAfter < api.BlockUsableFor+5*time.Minute {
		t.Errorf("a block is freed after %s, and its node may use it for %s", api.BlockFreeAfter, api.BlockUsableFor)
	}
}

func TestNodeStopsUsingABlockThatItLost(t *testing.T) {
	n, other := newNode(t, "node1"), newNode(t, "node2")
	c := pooltest.Claim(t, "lost-block", "10.0.0.0/30")
	addr := n.add(pooltest.Pod(0), c)
	block := n.blocks(c)[0]
	if ok, err := api.FreeBlock(pooltest.Context(t), n.client, api.BlockName(c.Pool, block), *onServer(t, c, block).Block); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got := other.add(pooltest.Pod(1), c); got != addr {
		t.Fatalf("%s, want %s", got, addr)
	}
	n.passed = confirmAfter + time.Second
	late := pooltest.Pod(0) // the same pod's next sandbox, for which the node has a record
	late.ContainerID = strings.Repeat("f", 64)
	if got, err := n.Allocate(pooltest.Context(t), late, []ipam.Claim{c}); err == nil {
		t.Errorf("%v of a block that another node holds", got)
	}
}

func TestDeletedBlockIsMadeAgain(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "deleted", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	block := n.blocks(c)[0]
	if err := n.client.Delete(pooltest.Context(t), api.Pools("kube-system"), api.BlockName(c.Pool, block), kube.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	n.pass(keeper(n))
	if b := onServer(t, c, block); b == nil || b.Block.Node != "node1" || len(b.Entries) != 1 {
		t.Errorf("on the server: %+v", b)
	}
}

// ADDs of one node that wait at the same time claim one block together, not one block each.
func TestBurstClaimsOnlyWhatItNeeds(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "burst", "10.0.0.0/24")
	pooltest.Parallel(2*testSize, func(i int) {
		if _, err := n.Allocate(context.Background(), pooltest.Pod(i), []ipam.Claim{c}); err != nil {
			t.Error(err)
		}
	})
	// The first or the last block may lack an address.
	if got := len(n.blocks(c)); got < 2 || got > 3 {
		t.Errorf("%d blocks", got)
	}
}

func TestRequestOutsideTheBoundsIsRefusedAtOnce(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "outside", "10.0.0.0/24")
	c.Want = netip.MustParseAddr("10.0.0.5")
	n.add(pooltest.Pod(0), c)
	spec := c.Range.Spec()
	spec.Start, spec.End = netip.MustParseAddr("10.0.0.128"), netip.MustParseAddr("10.0.0.140")
	var err error
	if c.Range, err = ipam.NewRange(spec); err != nil {
		t.Fatal(err)
	}
	c.Want = netip.MustParseAddr("10.0.0.6") // in the node's block
	_, err = n.Allocate(soon(t, 10*time.Second), pooltest.Pod(1), []ipam.Claim{c})
	wantError(t, err, "cannot give default/pod-1 the requested address 10.0.0.6", "is not between")
	c.Want = netip.Addr{}
	n.add(pooltest.Pod(1), c) // the refusal does not make the pool full
}

// A return may reach the server only after the node has claimed the block again.
func TestLateReturnDoesNotFreeABlockThatWasClaimedAgain(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "late-return", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	n.del(pooltest.Pod(0), c)
	block := n.blocks(c)[0]
	was := *onServer(t, c, block).Block
	if err := n.pool(c.Pool).change(pooltest.Context(t), func(f *file) { f.find(block).State = returning }); err != nil {
		t.Fatal(err)
	}
	if got := n.add(pooltest.Pod(0), c); !block.Contains(got) {
		t.Fatalf("%s is not of %s", got, block)
	}
	if ok, err := api.FreeBlock(pooltest.Context(t), n.client, api.BlockName(c.Pool, block), was); ok || err != nil {
		t.Errorf("freed: %v, %v", ok, err)
	}
	if b := onServer(t, c, block); b.Block.Node != "node1" || b.Block.Claim == was.Claim {
		t.Errorf("on the server: %+v", b.Block)
	}
}

func TestManyAddsDoNotWaitForAServerThatTheyDoNotNeed(t *testing.T) {
	p := newProxy(t)
	n, c := newNodeAt(t, "node1", p.kubeconfig, t.TempDir()), pooltest.Claim(t, "many-away", "10.0.0.0/24")
	n.size = 64
	n.add(pooltest.Pod(0), c)
	p.down.Store(true)
	n.passed = confirmAfter + time.Minute
	pooltest.Parallel(16, func(i int) {
		if _, err := n.Allocate(soon(t, 20*time.Second), pooltest.Pod(1+i), []ipam.Claim{c}); err != nil {
			t.Error(err)
		}
	})
}

// A pool may have been put to another use, by deletion of its guard.
func TestEachClaimLooksAtTheGuard(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "unguarded", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	if err := n.client.Delete(pooltest.Context(t), api.Pools("kube-system"), c.Pool.Name(), kube.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	pooltest.Create(t, plane, "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools", api.NewIPPool(c.Pool.Name(), "kube-system", "10.0.0.0/24", map[string]api.Entry{"9": {PodRef: "default/other"}}))
	var err error
	for i := 1; err == nil && i <= testSize; i++ {
		_, err = n.Allocate(pooltest.Context(t), pooltest.Pod(i), []ipam.Claim{c})
	}
	wantError(t, err, "belongs to networks without block_size")
}

func TestForeignObjectWithTheNameOfABlockIsPassedOver(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "foreign", "10.0.0.0/24")
	p := n.pool(c.Pool)
	for _, first := range p.candidates(c, &file{}) {
		pooltest.Create(t, plane, "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools", api.NewIPPool(api.BlockName(c.Pool, first), "kube-system", first.String(), map[string]api.Entry{}))
		if got := n.add(pooltest.Pod(0), c); first.Contains(got) {
			t.Errorf("%s is of a foreign object", got)
		}
		break
	}
	if got := n.blocks(c); len(got) != 1 {
		t.Errorf("blocks %v", got)
	}
}

// The client repeats a patch whose answer is lost, and the server refuses the repeated
// patch.
func TestLostAnswerToAPatchLeavesNoBlockBehind(t *testing.T) {
	var lost atomic.Bool
	url := pooltest.Between(t, plane, nil, func(r *http.Request) {
		if r.Method == http.MethodPatch && lost.CompareAndSwap(false, true) {
			panic(http.ErrAbortHandler)
		}
	})
	n, c := newNodeAt(t, "node1", pooltest.Kubeconfig(t, plane, url, "kube-system"), t.TempDir()), pooltest.Claim(t, "lost-patch", "10.0.0.0/24")
	n.add(pooltest.Pod(0), c)
	block := n.blocks(c)[0]
	again := n.reboot("another-boot") // takes the block by a patch
	if got := again.add(pooltest.Pod(1), c); !block.Contains(got) || !lost.Load() {
		t.Errorf("%s is not of %s", got, block)
	}
	if b := onServer(t, c, block); b.Block.Boot != "another-boot" {
		t.Errorf("on the server: %+v", b.Block)
	}
}

func TestOneNetworkDoesNotMakeThePoolFullForAnother(t *testing.T) {
	n, other := newNode(t, "node1"), newNode(t, "node2")
	whole := pooltest.Claim(t, "two-networks", "10.0.0.0/24")
	narrow, spec := whole, whole.Range.Spec()
	spec.Start, spec.End = netip.MustParseAddr("10.0.0.8"), netip.MustParseAddr("10.0.0.11")
	var err error
	if narrow.Range, err = ipam.NewRange(spec); err != nil {
		t.Fatal(err)
	}
	other.add(pooltest.Pod(0), narrow)
	_, err = n.Allocate(pooltest.Context(t), pooltest.Pod(1), []ipam.Claim{narrow})
	wantError(t, err, "that were tried is free")
	n.add(pooltest.Pod(1), whole)
}

// If other nodes hold nearly all blocks of a pool, the search does not ask for each block.
func TestNearlyFullPoolCostsFewRequests(t *testing.T) {
	n, c := newNode(t, "node1"), pooltest.Claim(t, "nearly-full", "10.0.0.0/23")
	n.add(pooltest.Pod(0), c) // the guard, and a block of an earlier boot
	mine := n.blocks(c)[0]
	var free netip.Prefix
	for _, prefix := range n.pool(c.Pool).candidates(c, &file{}) {
		if prefix == mine {
			continue
		}
		free = prefix // the last one
		holder := api.Holder{Node: "other", Claim: rand.Text()}
		if made, err := api.CreateBlock(pooltest.Context(t), n.client, api.BlockName(c.Pool, prefix), prefix, holder); !made || err != nil {
			t.Fatal(made, err)
		}
	}
	b := onServer(t, c, free)
	if freed, err := api.FreeBlock(pooltest.Context(t), n.client, b.Name, *b.Block); !freed || err != nil {
		t.Fatal(freed, err)
	}

	again := n.reboot("another-boot")
	p := again.pool(c.Pool)
	if err := p.change(pooltest.Context(t), func(f *file) { f.Tried = 1 }); err != nil { // past its own
		t.Fatal(err)
	}
	for i, want := range []netip.Prefix{free, mine} {
		made := requests(t, func() {
			for k := range testSize {
				if got := again.add(pooltest.Pod(testSize*i+k), c); !want.Contains(got) {
					t.Errorf("%s is not of %s", got, want)
				}
			}
		})
		if most := 2*blindProbes + 10; made > most {
			t.Errorf("block %s: %d requests, want at most %d", want, made, most)
		}
	}
	_, err := again.Allocate(pooltest.Context(t), pooltest.Pod(99), []ipam.Claim{c})
	wantError(t, err, "none of the blocks of 4 addresses that were tried is free")
}
