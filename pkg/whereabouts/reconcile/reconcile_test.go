package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// reconcilerLab has two namespaces for one test: one for CRs, so that a reconciler sees
// only the CRs of the test, and one for pods.
type reconcilerLab struct {
	*node
	ns         string
	kubeconfig string
	client     *kube.Client
}

func newReconcilerLab(t *testing.T) *reconcilerLab {
	t.Helper()
	return newReconcilerLabAt(t, plane)
}

func newReconcilerLabAt(t *testing.T, p *controlplane.Plane) *reconcilerLab {
	t.Helper()
	l := &reconcilerLab{ns: fmt.Sprintf("lab-%08x", rand.Uint32())}
	pooltest.Create(t, p, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": l.ns}})
	credential, err := p.CertificateFor("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	if l.kubeconfig, err = p.Kubeconfig(credential, controlplane.Form{Namespace: l.ns}); err != nil {
		t.Fatal(err)
	}
	l.node = newNode(t, l.kubeconfig)
	if l.client, err = kube.Open(kube.Config{Kubeconfig: l.kubeconfig, UserAgent: "test-" + t.Name()}); err != nil {
		t.Fatal(err)
	}
	return l
}

// owner returns net1 of a pod in the lab's namespace.
func (l *reconcilerLab) owner(name string, container int) ipam.Owner {
	o := pooltest.Pod(container)
	o.PodRef = l.ns + "/" + name
	return o
}

func podObject(name string, annotations map[string]string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": name, "annotations": annotations},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none"}}},
	}
}

func (l *reconcilerLab) podPath(name string) string {
	return strings.TrimSuffix("/api/v1/namespaces/"+l.ns+"/pods/"+name, "/")
}

func (l *reconcilerLab) createPod(name string, annotations map[string]string) {
	l.t.Helper()
	pooltest.Create(l.t, plane, l.podPath(""), podObject(name, annotations))
}

func (l *reconcilerLab) setPhase(name, phase string, ready bool) {
	l.t.Helper()
	status := map[string]any{"phase": phase, "conditions": []any{map[string]any{"type": "Ready", "status": map[bool]string{true: "True", false: "False"}[ready]}}}
	code, data, err := plane.Admin().Patch(context.Background(), l.podPath(name)+"/status", controlplane.MergePatch, map[string]any{"status": status})
	if err != nil || code != 200 {
		l.t.Fatal(code, string(data), err)
	}
}

func (l *reconcilerLab) deletePod(name string) {
	l.t.Helper()
	code, data, err := plane.Admin().Do(context.Background(), "DELETE", l.podPath(name), "", map[string]any{"gracePeriodSeconds": 0})
	if err != nil || code != 200 {
		l.t.Fatal(code, string(data), err)
	}
}

// crs returns the path of CRs in the lab's namespace.
func (l *reconcilerLab) crs(plural string) string {
	return "/apis/" + api.Group + "/" + api.Version + "/namespaces/" + l.ns + "/" + plural
}

func (l *reconcilerLab) createPool(pool ipam.Pool, allocations map[string]api.Entry) {
	l.t.Helper()
	pooltest.Create(l.t, plane, l.crs("ippools"), api.NewIPPool(pool.Name(), "", pool.Prefix.String(), allocations))
}

func (l *reconcilerLab) createReservation(name string, o ipam.Owner) {
	l.t.Helper()
	pooltest.Create(l.t, plane, l.crs("overlappingrangeipreservations"), api.NewReservation(name, l.ns, o))
}

// held returns "pool/key podref" of every entry and "name podref" of every
// reservation in the lab's namespace.
func (l *reconcilerLab) held() map[string]bool {
	l.t.Helper()
	s, err := api.Inspect(pooltest.Context(l.t), l.client)
	if err != nil || len(s.Errors) > 0 {
		l.t.Fatal(err, s)
	}
	all := map[string]bool{}
	for _, p := range s.Pools {
		for key, e := range p.Entries {
			all[p.Name+"/"+key+" "+strings.TrimPrefix(e.PodRef, l.ns+"/")] = true
		}
	}
	for _, h := range s.Holdings {
		if h.Reservation != nil {
			all[h.Reservation.Metadata.Name+" "+strings.TrimPrefix(h.PodRef, l.ns+"/")] = true
		}
	}
	for _, r := range s.Loose {
		all[r.Metadata.Name+" "+strings.TrimPrefix(r.Spec.PodRef, l.ns+"/")] = true
	}
	return all
}

func (l *reconcilerLab) wantHeld(what string, want ...string) {
	l.t.Helper()
	set := map[string]bool{}
	for _, w := range want {
		set[w] = true
	}
	if got := l.held(); !maps.Equal(got, set) {
		l.t.Errorf("%s: held are\n%v, want\n%v", what, got, set)
	}
}

func (l *reconcilerLab) reconciler(grace time.Duration) *Reconciler {
	return New(Options{Client: l.client, Grace: grace})
}

// once reconciles without a grace period and returns the number of findings by
// "kind address outcome".
func (l *reconcilerLab) once(r *Reconciler) map[string]int {
	l.t.Helper()
	found, err := r.Once(pooltest.Context(l.t))
	if err != nil {
		l.t.Fatal(err)
	}
	return tally(l.t, found)
}

func tally(t *testing.T, found []*Finding) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, f := range found {
		what := f.Address.String()
		if !f.Address.IsValid() {
			what = f.Reservation
		}
		count[fmt.Sprintf("%s %s %s", f.Kind, what, f.Outcome)]++
		if f.Error != "" {
			t.Error(f.Kind, what, f.Error)
		}
	}
	return count
}

func wantFindings(t *testing.T, got map[string]int, want ...string) {
	t.Helper()
	set := map[string]int{}
	for _, w := range want {
		set[w]++
	}
	if !maps.Equal(got, set) {
		t.Errorf("findings are %v, want %v", got, set)
	}
}

func networkStatus(ifname, ip string) map[string]string {
	return map[string]string{nadv1.NetworkStatusAnnot: fmt.Sprintf(`[{"name":"cbr0","interface":"eth0","ips":["10.99.0.1"],"default":true,"dns":{}},{"name":"default/net","interface":%q,"ips":[%q],"dns":{}}]`, ifname, ip)}
}

func TestReconcileLeavesAPodThatStartsAlone(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("starts", 0), c)
	l.createPod("starts", nil)
	wantFindings(t, l.once(l.reconciler(0)))
	l.wantHeld("a pending pod without annotations", "10.0.0.0-24/1 starts", "10.0.0.1 starts")
	l.setPhase("starts", "Running", true)
	wantFindings(t, l.once(l.reconciler(0)))
	l.wantHeld("a running pod without annotations", "10.0.0.0-24/1 starts", "10.0.0.1 starts")
}

func TestReconcileFreesThePairOfAPodThatIsGoneAfterTheGracePeriod(t *testing.T) {
	const grace = 2 * time.Second
	for _, space := range []string{"", "some-space"} {
		t.Run("space"+space, func(t *testing.T) {
			l, v4, v6 := newReconcilerLab(t), pooltest.Claim(t, space, "10.0.0.0/24"), pooltest.Claim(t, space, "2001:db8::/64")
			l.createPod("goes", nil)
			l.createPod("stays", nil)
			l.add(l.owner("goes", 0), v4, v6)
			l.add(l.owner("stays", 1), v4, v6)
			l.deletePod("goes")
			r := l.reconciler(grace)
			for range 2 { // within the grace period the second scan changes nothing, either
				found, err := r.scan(pooltest.Context(t), nil)
				if err != nil {
					t.Fatal(err)
				}
				wantFindings(t, tally(t, found), "stale entry 10.0.0.1 "+Waiting, "stale entry 2001:db8::1 "+Waiting)
			}
			if held := l.held(); len(held) != 8 {
				t.Errorf("within the grace period: %v", held)
			}
			began := time.Now()
			wantFindings(t, l.once(l.reconciler(grace)), "stale entry 10.0.0.1 "+Freed, "stale entry 2001:db8::1 "+Freed)
			if took := time.Since(began); took < grace {
				t.Errorf("freed after %s", took)
			}
			left := l.held()
			for what := range left {
				if !strings.HasSuffix(what, " stays") {
					t.Error("left is", what)
				}
			}
			if len(left) != 4 {
				t.Errorf("left are %v", left)
			}
		})
	}
}

func TestReconcileKeepsThePodThatCameAgainUnderItsName(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.createPod("web-0", nil)
	l.add(l.owner("web-0", 0), c)
	r := l.reconciler(time.Millisecond)
	l.deletePod("web-0")
	if _, err := r.scan(pooltest.Context(t), nil); err != nil { // marks it
		t.Fatal(err)
	}
	l.createPod("web-0", nil)
	wantFindings(t, l.once(r))
	l.wantAdd(l.owner("web-0", 1), "10.0.0.1/24", c) // the new container
	wantFindings(t, l.once(r))
	l.wantHeld("recreated", "10.0.0.0-24/1 web-0", "10.0.0.1 web-0")
	if e := l.entry(c.Pool, "1"); e.ContainerID != pooltest.Pod(1).ContainerID {
		t.Errorf("the entry is %v", e)
	}
}

func (l *reconcilerLab) entry(pool ipam.Pool, key string) api.Entry {
	l.t.Helper()
	p, err := api.ReadPool(pooltest.Context(l.t), l.client, pool.Name())
	if err != nil || p == nil {
		l.t.Fatal(p, err)
	}
	return p.Entries[key]
}

// A scan may have found the pod gone, and the new one may be quicker than the
// patch.
func TestReconcileIsFencedAgainstAnEntryThatWasTakenOver(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("web-0", 0), c)
	l.add(l.owner("gone", 7), c)
	r := l.reconciler(0)
	s, err := api.Inspect(pooltest.Context(t), l.client)
	if err != nil {
		t.Fatal(err)
	}
	found := judge(s, nil, 0)
	l.wantAdd(l.owner("web-0", 1), "10.0.0.1/24", c)
	r.act(pooltest.Context(t), s, r.due(found, nil, nil, nil, ""))
	wantFindings(t, tally(t, found), "stale entry 10.0.0.1 "+Changed, "stale entry 10.0.0.2 "+Freed)
	l.wantHeld("taken over", "10.0.0.0-24/1 web-0", "10.0.0.1 web-0")
}

// The new pod may also get the address after the entry is gone, and use the old
// pod's reservation as its own.
func TestReconcileGivesBackAReservationThatWasTakenOver(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("web-0", 0), c)
	r := l.reconciler(0)
	s, err := api.Inspect(pooltest.Context(t), l.client)
	if err != nil {
		t.Fatal(err)
	}
	found := r.freeEntries(pooltest.Context(t), judge(s, nil, 0), 0)
	l.wantAdd(l.owner("web-0", 1), "10.0.0.1/24", c)
	r.freeReservations(pooltest.Context(t), found, []string{c.Pool.Name()})
	wantFindings(t, tally(t, found), "stale entry 10.0.0.1 "+Changed)
	l.wantHeld("taken over", "10.0.0.0-24/1 web-0", "10.0.0.1 web-0")
}

func TestReconcileFreesTheAddressOfAFormerSandboxOnlyOfAReadyPod(t *testing.T) {
	l := newReconcilerLab(t)
	// The pod moved between nodes, and thereby between slices.
	a, b := pooltest.Claim(t, "", "10.0.0.0/26"), pooltest.Claim(t, "", "10.0.0.64/26")
	a.Pool.Node, b.Pool.Node = "node-a", "node-b"
	l.add(l.owner("web-0", 0), a)
	l.add(l.owner("web-0", 1), b)
	both := []string{"node-a-10.0.0.0-26/1 web-0", "10.0.0.1 web-0", "node-b-10.0.0.64-26/1 web-0", "10.0.0.65 web-0"}
	l.createPod("web-0", networkStatus("net1", "10.0.0.65"))
	l.once(l.reconciler(0))
	l.wantHeld("pending", both...)
	l.setPhase("web-0", "Running", false)
	l.once(l.reconciler(0))
	l.wantHeld("running, not ready", both...)
	l.setPhase("web-0", "Running", true)
	wantFindings(t, l.once(l.reconciler(0)), "stale entry 10.0.0.1 "+Freed)
	l.wantHeld("ready", both[2:]...)
}

func TestReconcileKeepsWhatTheStatusDoesNotName(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("odd", 0), c)
	l.createPod("odd", networkStatus("net1", "10.0.0.99")) // which it does not hold
	l.setPhase("odd", "Running", true)
	wantFindings(t, l.once(l.reconciler(0)))
	l.wantHeld("named elsewhere", "10.0.0.0-24/1 odd", "10.0.0.1 odd")
}

func TestReconcileFreesAPodThatHasEndedForLongerThanTheGracePeriod(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	for i, phase := range []string{"Succeeded", "Failed", "Running"} {
		name := strings.ToLower(phase)
		l.createPod(name, nil)
		l.add(l.owner(name, i), c)
		l.setPhase(name, phase, false)
	}
	r := l.reconciler(time.Hour)
	found, err := r.scan(pooltest.Context(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantFindings(t, tally(t, found), "stale entry 10.0.0.1 "+Waiting, "stale entry 10.0.0.2 "+Waiting)
	wantFindings(t, l.once(l.reconciler(0)), "stale entry 10.0.0.1 "+Freed, "stale entry 10.0.0.2 "+Freed)
	l.wantHeld("ended", "10.0.0.0-24/3 running", "10.0.0.3 running")
}

func TestReconcileLeavesForeignObjectsAlone(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.createPool(c.Pool, map[string]api.Entry{
		"1": {ContainerID: "block", PodRef: ""}, "2": {ContainerID: "x", PodRef: "no-pod"},
		"-3": {ContainerID: "y", PodRef: "ns/minus"}, "999999999999999999999": {ContainerID: "z", PodRef: "ns/far"},
	})
	l.createReservation("10.0.0.9", ipam.Owner{PodRef: ""})
	before := l.held()
	wantFindings(t, l.once(l.reconciler(0)))
	if after := l.held(); !maps.Equal(before, after) || len(before) != 5 {
		t.Errorf("%v became %v", before, after)
	}
}

func TestReconcileGoesOnBesideHoldersThatItCannotAskFor(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	long := "ns/" + strings.Repeat("x", 70_000) // longer than the client reads an answer
	l.createPool(c.Pool, map[string]api.Entry{
		"1": {ContainerID: "a", PodRef: "ns/50%"}, "2": {ContainerID: "b", PodRef: "ns/.."}, "3": {ContainerID: "c", PodRef: "../x"},
		"4": {ContainerID: "d", PodRef: long}, "5": {ContainerID: "e", PodRef: l.ns + "/gone"},
	})
	l.createReservation("10.0.0.9", ipam.Owner{PodRef: "ns/%41"})
	found, err := l.reconciler(0).Once(pooltest.Context(t))
	if err == nil || !strings.Contains(err.Error(), "get pods ns/xxx") || strings.Contains(err.Error(), "cannot be part") {
		t.Errorf("what could not be asked for: %.200v", err)
	}
	wantFindings(t, tally(t, found), "stale entry 10.0.0.5 freed")
	l.wantHeld("afterwards", "10.0.0.0-24/1 ns/50%", "10.0.0.0-24/2 ns/..", "10.0.0.0-24/3 ../x", "10.0.0.0-24/4 "+long, "10.0.0.9 ns/%41")
}

func TestReconcileMendsHalfPairs(t *testing.T) {
	l, c, other := newReconcilerLab(t), pooltest.Claim(t, "sp", "10.0.0.0/24"), pooltest.Claim(t, "", "10.1.0.0/24")
	for _, name := range []string{"whole", "half", "foreign", "lonely", "loose", "claimed"} {
		l.createPod(name, networkStatus("net1", "10.0.0.99"))
		l.setPhase(name, "Running", true)
	}
	l.add(l.owner("whole", 0), c) // 1
	half := c
	half.Exclusive = false
	l.add(l.owner("half", 1), half)    // 2
	l.add(l.owner("foreign", 2), half) // 3
	other.Exclusive = false
	l.add(l.owner("lonely", 3), other) // in a pool without reservations
	l.createReservation("sp-10.0.0.3", l.owner("whole", 0))
	l.createReservation("sp-10.0.0.77", l.owner("loose", 4))
	l.createReservation("sp-10.0.0.99", l.owner("claimed", 5)) // which the status has
	l.createReservation("sp-10.0.0.78", l.owner("gone", 6))
	wantFindings(t, l.once(l.reconciler(0)),
		"missing reservation 10.0.0.2 "+Made,
		"foreign reservation 10.0.0.3 "+Kept, "loose reservation sp-10.0.0.3 "+Kept,
		"stale reservation sp-10.0.0.77 "+Freed, "loose reservation sp-10.0.0.99 "+Kept, "stale reservation sp-10.0.0.78 "+Freed)
	l.wantHeld("mended", "sp-10.0.0.0-24/1 whole", "sp-10.0.0.1 whole", "sp-10.0.0.0-24/2 half", "sp-10.0.0.2 half",
		"sp-10.0.0.0-24/3 foreign", "sp-10.0.0.3 whole", "10.1.0.0-24/1 lonely", "sp-10.0.0.99 claimed")
}

func TestReconcileDryRunChangesNothing(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("gone", 0), c)
	l.createReservation("10.0.0.5", l.owner("gone", 0))
	began := time.Now()
	r := New(Options{Client: l.client, Grace: time.Hour, DryRun: true})
	wantFindings(t, l.once(r), "stale entry 10.0.0.1 "+WouldFree, "stale reservation 10.0.0.5 "+WouldFree)
	for _, q := range pooltest.RequestsSince(t, plane, began) {
		if q.Verb != "get" && q.Verb != "list" {
			t.Errorf("a dry run did %s %s", q.Verb, q.URI)
		}
	}
	l.wantHeld("after the dry run", "10.0.0.0-24/1 gone", "10.0.0.1 gone", "10.0.0.5 gone")
}

func TestReconcileReplaysTheJournal(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	o := l.owner("kept", 0)
	l.createPod("kept", nil)
	l.add(o, c)
	if err := (store.Journal{Path: l.state + "/journal"}).Add(store.Endpoint{Kubeconfig: l.kubeconfig}, o, []ipam.Pool{c.Pool}); err != nil {
		t.Fatal(err)
	}
	r := New(Options{Client: l.client, Journal: l.Store})
	wantFindings(t, l.once(r))
	l.wantHeld("replayed")
}

func (l *reconcilerLab) run(r *Reconciler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		l.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			l.t.Error(err)
		}
	}
}

func TestRunningReconcilerFreesByTheWatchAndOutlivesTheServer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts a control plane of its own")
	}
	own := controlplane.Start(t, controlplane.Options{Audit: true})
	shared := plane
	plane = own // for the lab's helpers; the tests of this package are not parallel
	defer func() { plane = shared }()
	l, c := newReconcilerLabAt(t, own), pooltest.Claim(t, "", "10.0.0.0/24")
	const grace = 2 * time.Second
	r := l.reconciler(grace)
	r.Identity = "first"
	stop := l.run(r)
	for i := range 3 {
		name := fmt.Sprint("web-", i)
		l.createPod(name, nil)
		l.add(l.owner(name, i), c)
	}
	lists := func() (n int) {
		requests, err := own.Requests(pooltest.Context(t), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return controlplane.Tally(requests)["list ippools"]
	}
	pooltest.Eventually(t, "the first look", func() bool { return lists() > 0 })
	pooltest.Eventually(t, "the watch", func() bool {
		requests, err := own.Requests(pooltest.Context(t), time.Time{})
		return err == nil && controlplane.Tally(requests)["watch pods"] > 0
	})
	l.deletePod("web-0")
	took := pooltest.Eventually(t, "web-0's address", func() bool { return len(l.held()) == 4 })
	t.Logf("freed %s after the pod went (grace period %s)", took.Round(100*time.Millisecond), grace)
	if took < grace {
		t.Error("the grace period was not kept")
	}

	// A pod ends while no watch sees it.
	l.deletePod("web-1")
	if err := own.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	took = pooltest.Eventually(t, "web-1's address", func() bool { return len(l.held()) == 2 })
	t.Logf("freed %s after the server came back", took.Round(100*time.Millisecond))

	// Another reconciler waits, and takes over when the first one ends.
	second := &lease{client: l.client, identity: "second"}
	if held, err := second.acquire(t.Context()); held || err != nil {
		t.Errorf("two have the Lease: %v", err)
	}
	stop()
	if held, err := second.acquire(t.Context()); !held || err != nil {
		t.Errorf("the Lease was not given back: %v", err)
	}
	l.wantHeld("at the end", "10.0.0.0-24/3 web-2", "10.0.0.3 web-2")
}

// looks are the looks of a running reconciler, which it logs.
type looks struct {
	slog.Handler
	mu  sync.Mutex
	all []look
}

type look struct {
	at  time.Time
	all bool // at all pods, and not only at those that went
}

func (*looks) Enabled(context.Context, slog.Level) bool { return true }

func (l *looks) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "checking addresses" {
		return nil
	}
	one := look{at: r.Time}
	r.Attrs(func(a slog.Attr) bool {
		one.all = one.all || a.Key == "all" && a.Value.Bool()
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, one)
	return nil
}

// until waits until there are n, and returns all.
func (l *looks) until(t *testing.T, n int) (all []look) {
	t.Helper()
	pooltest.Eventually(t, fmt.Sprintf("look %d", n), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		all = slices.Clone(l.all)
		return len(all) >= n
	})
	return all
}

// A scan that failed is repeated after afterError. A scan that met an object that it cannot
// read has not failed. The next scan after it is the scan for deleted pods, or the scan
// that is due after the interval.
func TestRunningReconcilerRestsBesideObjectsThatItCannotRead(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	pooltest.Create(t, plane, l.crs("ippools"), api.NewIPPool("unreadable", "", "nonsense", map[string]api.Entry{}))
	l.createPool(c.Pool, map[string]api.Entry{"4": {ContainerID: "d", PodRef: "ns/" + strings.Repeat("x", 70_000)}})
	l.createPod("web", nil)
	const interval = 2 * afterError
	logged := &looks{Handler: slog.DiscardHandler}
	defer l.run(New(Options{Client: l.client, Interval: interval, Log: slog.New(logged)}))()
	logged.until(t, 1)
	l.deletePod("web")
	all := logged.until(t, 3)
	if !all[0].all || all[1].all || !all[2].all || all[2].at.Sub(all[0].at) < interval {
		t.Errorf("it looked at all, at the pod that went, and at all after %v, as it should: %+v", interval, all)
	}
}

func TestReconcileGoesOnWhereTheServerWasKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts a control plane of its own")
	}
	own := controlplane.Start(t, controlplane.Options{Audit: true})
	shared := plane
	plane = own
	defer func() { plane = shared }()
	const pods = 250
	l, c := newReconcilerLabAt(t, own), pooltest.Claim(t, "", "10.0.0.0/24")
	all := map[string]api.Entry{}
	numbers := make([]int, pods)
	for i := range numbers {
		numbers[i] = i
		all[fmt.Sprint(i+1)] = api.NewEntry(l.owner(fmt.Sprint("gone-", i), i))
	}
	l.createPool(c.Pool, all)
	forEach(numbers, func(i int) {
		l.createReservation(fmt.Sprint("10.0.0.", i+1), l.owner(fmt.Sprint("gone-", i), i))
	})
	began := time.Now()
	ended := make(chan map[string]int)
	go func() {
		found, err := l.reconciler(0).Once(pooltest.Context(t))
		if err != nil {
			t.Error(err)
		}
		ended <- tally(t, found)
	}()
	for stop := time.Now().Add(20 * time.Second); time.Now().Before(stop); {
		requests, err := own.Requests(pooltest.Context(t), began)
		if err != nil {
			t.Fatal(err)
		}
		if controlplane.Tally(requests)["delete overlappingrangeipreservations"] > 0 {
			break
		}
	}
	if err := own.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := <-ended; len(found) != pods {
		t.Errorf("%d findings", len(found))
	}
	l.wantHeld("after one run")
}

// A patch whose answer was lost is refused when it is repeated.
func TestReconcileFinishesWhatItsLostPatchDid(t *testing.T) {
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	l.add(l.owner("gone", 0), c)
	l.add(l.owner("other", 1), c)
	r := l.reconciler(0)
	s, err := api.Inspect(pooltest.Context(t), l.client)
	if err != nil {
		t.Fatal(err)
	}
	found := judge(s, nil, 0)
	r.freeEntries(pooltest.Context(t), found[:1], 0)
	r.act(pooltest.Context(t), s, r.due(found, nil, nil, nil, ""))
	wantFindings(t, tally(t, found), "stale entry 10.0.0.1 "+Freed, "stale entry 10.0.0.2 "+Freed)
	l.wantHeld("done")
}

// Pods come and go under the same names, some without a DEL, while a reconciler
// without a grace period runs all the time.
func TestReconcileTakesNothingFromLivingPodsThatComeAndGo(t *testing.T) {
	const names, rounds = 6, 12
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/24")
	ctx, cancel := context.WithCancel(pooltest.Context(t))
	ended := make(chan int)
	go func() {
		freed := 0
		for ctx.Err() == nil {
			found, err := l.reconciler(0).Once(ctx)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			for _, f := range found {
				if f.Outcome == Freed {
					freed++
				}
				if f.Error != "" && ctx.Err() == nil {
					t.Error(f.Kind, f.Error)
				}
			}
		}
		ended <- freed
	}()
	pooltest.Parallel(names, func(name int) {
		for round := range rounds {
			o := l.owner(fmt.Sprint("web-", name), name*rounds+round)
			l.createPod(fmt.Sprint("web-", name), nil)
			got, err := l.Allocate(pooltest.Context(t), o, []ipam.Claim{c})
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(rand.N(50 * time.Millisecond))
			if held, err := l.Check(pooltest.Context(t), o, []ipam.Pool{c.Pool}); err != nil || held[0] != got[0] {
				t.Errorf("round %d: %s held %s, now %v, %v", round, o.PodRef, got[0], held, err)
			}
			// The reconciler may free the reservation by mistake, but must
			// restore it at once.
			pooltest.Eventually(t, o.PodRef+"'s reservation", func() bool {
				r, err := api.ReadReservation(pooltest.Context(t), l.client, c.Pool.ReservationName(got[0].Addr()))
				return err == nil && r != nil && r.Spec.BelongsTo(o)
			})
			l.deletePod(fmt.Sprint("web-", name))
			if round%2 == 0 {
				if err := l.Release(pooltest.Context(t), o, []ipam.Pool{c.Pool}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	cancel()
	t.Logf("%d freed by the reconciler while %d pods came and went", <-ended, names*rounds)
	l.once(l.reconciler(0))
	l.wantHeld("in the end")
}

func TestLeaseThatIsMissingAndMayNotBeMadeIsToldWithItsCure(t *testing.T) {
	l := newReconcilerLab(t)
	url := pooltest.Between(t, plane, func(r *http.Request, _ []byte) (int, string) {
		if r.Method == http.MethodPost {
			return http.StatusForbidden, `{"kind":"Status","reason":"Forbidden","code":403}`
		}
		return 0, ""
	}, nil)
	client, err := kube.Open(kube.Config{Kubeconfig: pooltest.Kubeconfig(t, plane, url, l.client.Namespace())})
	if err != nil {
		t.Fatal(err)
	}
	held, err := (&lease{client: client, identity: "one"}).acquire(pooltest.Context(t))
	if held || failure.KindOf(err) != failure.NotAvailable || !strings.Contains(err.Error(), "there is no Lease "+leaseName) || !strings.Contains(err.Error(), "resource.exclusions") {
		t.Errorf("%v, %v", held, err)
	}
}

// forEach calls do for every number, a bounded number at a time.
func forEach(numbers []int, do func(int)) {
	all := api.NewGroup()
	for _, i := range numbers {
		all.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = all.Wait()
}

func TestReconcileThousands(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it makes thousands of objects")
	}
	const gone = 600
	pods := 1500
	if need.Full() {
		pods = 3000
	}
	l, c := newReconcilerLab(t), pooltest.Claim(t, "", "10.0.0.0/16")
	all := map[string]api.Entry{}
	numbers := make([]int, pods)
	for i := range numbers {
		numbers[i] = i
		all[fmt.Sprint(i+1)] = api.NewEntry(l.owner(fmt.Sprint("pod-", i), i))
	}
	began := time.Now()
	l.createPool(c.Pool, all)
	forEach(numbers, func(i int) {
		name, addr := fmt.Sprint("pod-", i), fmt.Sprintf("10.0.%d.%d", (i+1)/256, (i+1)%256)
		pooltest.Create(t, plane, l.podPath(""), podObject(name, networkStatus("net1", addr)))
		pooltest.Create(t, plane, l.crs("overlappingrangeipreservations"), api.NewReservation(addr, l.ns, l.owner(name, i)))
	})
	t.Logf("making %d pods and reservations: %s", pods, time.Since(began).Round(time.Millisecond))

	measured := func(what string, do func()) time.Duration {
		began := time.Now()
		do()
		took := time.Since(began)
		t.Logf("%s: %s, %v", what, took.Round(time.Millisecond), controlplane.Tally(pooltest.RequestsSince(t, plane, began)))
		return took
	}
	named := map[string]bool{}
	var few []string
	for i := range numbers {
		ref := l.owner(fmt.Sprint("pod-", i), i).PodRef
		named[ref] = true
		if i < 500 {
			few = append(few, ref)
		}
	}
	measured("listing the pods", func() {
		live, _, err := livePods(pooltest.Context(t), l.client, named)
		if err != nil || len(live) != pods {
			t.Error(len(live), err)
		}
	})
	measured("asking for 500 of them", func() {
		if live, failed := getPods(pooltest.Context(t), l.client, few); len(failed) > 0 || len(live) != 500 {
			t.Error(len(live), failed)
		}
	})
	measured("reconciling when nothing is stale", func() { wantFindings(t, l.once(l.reconciler(0))) })

	forEach(numbers[:gone], func(i int) {
		if _, _, err := plane.Admin().Do(context.Background(), "DELETE", l.podPath(fmt.Sprint("pod-", i)), "", map[string]any{"gracePeriodSeconds": 0}); err != nil {
			t.Error(err)
		}
	})
	began = time.Now()
	var found map[string]int
	measured(fmt.Sprintf("freeing the addresses of %d pods", gone), func() { found = l.once(l.reconciler(0)) })
	patches := controlplane.Tally(pooltest.RequestsSince(t, plane, began))["patch ippools"]
	if len(found) != gone || patches != 2 {
		t.Errorf("%d findings, %d patches", len(found), patches)
	}
	s, err := api.Inspect(pooltest.Context(t), l.client)
	if err != nil || len(s.Holdings) != pods-gone || len(s.Loose) != 0 ||
		slices.ContainsFunc(s.Holdings, func(h api.Holding) bool { return h.Reservation == nil }) {
		t.Errorf("%d entries and %d loose reservations are left, %v", len(s.Holdings), len(s.Loose), err)
	}
}
