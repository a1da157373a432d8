package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

func TestAddWritesEntryAndReservationAndDelFreesBoth(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "plain", "10.0.0.0/24")
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
	n.wantAdd(pooltest.Pod(1), "10.0.0.2/24", c)
	if got := entries(t, c.Pool); len(got) != 2 || got["1"] != api.NewEntry(pooltest.Pod(0)) || got["2"] != api.NewEntry(pooltest.Pod(1)) {
		t.Errorf("entries %v", got)
	}
	if got := reservations(t, "plain"); len(got) != 2 || !got["plain-10.0.0.1"].BelongsTo(pooltest.Pod(0)) || !got["plain-10.0.0.2"].BelongsTo(pooltest.Pod(1)) {
		t.Errorf("reservations %v", got)
	}
	held, err := n.Check(pooltest.Context(t), pooltest.Pod(1), []ipam.Pool{c.Pool})
	if err != nil || held[0].String() != "10.0.0.2/24" {
		t.Errorf("CHECK: %v, %v", held, err)
	}
	n.del(pooltest.Pod(0), c.Pool)
	n.wantAdd(pooltest.Pod(2), "10.0.0.1/24", c)
	for i := range 3 {
		n.del(pooltest.Pod(i), c.Pool)
		n.del(pooltest.Pod(i), c.Pool) // again
	}
	wantEmpty(t, c.Pool)
	if _, err := n.Check(pooltest.Context(t), pooltest.Pod(1), []ipam.Pool{c.Pool}); failure.KindOf(err) != failure.Mismatch {
		t.Errorf("CHECK after DEL: %v", err)
	}
}

func TestNoReservationWhereRangesDoNotOverlap(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "single", "10.0.0.0/24")
	c.Exclusive = false
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
	if r := reservations(t, "single"); len(r) != 0 {
		t.Errorf("reservations %v", r)
	}
	n.del(pooltest.Pod(0), c.Pool)
	wantEmpty(t, c.Pool)
}

func TestRequestsPerCall(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "requests", "10.0.0.0/24")
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c) // makes the pool
	for _, tc := range []struct {
		what string
		most int
		do   func()
	}{
		{"ADD", 3, func() { n.wantAdd(pooltest.Pod(1), "10.0.0.2/24", c) }},
		{"DEL", 2, func() { n.del(pooltest.Pod(1), c.Pool) }},
		{"DEL on another node", 4, func() { newNode(t).del(pooltest.Pod(0), c.Pool) }},
		{"DEL of nothing", 1, func() { newNode(t).del(pooltest.Pod(0), c.Pool) }},
	} {
		began := time.Now()
		tc.do()
		got := pooltest.RequestsSince(t, plane, began)
		t.Logf("%s: %v", tc.what, controlplane.Tally(got))
		if len(got) > tc.most {
			t.Errorf("%s: %d requests, want at most %d", tc.what, len(got), tc.most)
		}
	}
	wantEmpty(t, c.Pool)
}

func TestConcurrentAddsOfANodeShareTheirWrites(t *testing.T) {
	const pods = 100
	n, c := newNode(t), pooltest.Claim(t, "burst", "10.0.0.0/24")
	n.wantAdd(pooltest.Pod(pods), "10.0.0.1/24", c)
	began := time.Now()
	got := make([]netip.Prefix, pods)
	pooltest.Parallel(pods, func(i int) {
		if a, err := n.Allocate(pooltest.Context(t), pooltest.Pod(i), []ipam.Claim{c}); err != nil {
			t.Error(err)
		} else {
			got[i] = a[0]
		}
	})
	took := time.Since(began)
	tally := controlplane.Tally(pooltest.RequestsSince(t, plane, began))
	t.Logf("%d ADDs in %s: %v", pods, took.Round(time.Millisecond), tally)
	holders := map[netip.Prefix]int{}
	for i, a := range got {
		if other, twice := holders[a]; twice {
			t.Errorf("%s given to pods %d and %d", a, other, i)
		}
		holders[a] = i
	}
	sum := 0
	for _, k := range tally {
		sum += k
	}
	if shared := sum - pods; shared > pods/2 { // one reservation each
		t.Errorf("%d requests besides the reservations", shared)
	}
	began = time.Now()
	pooltest.Parallel(pods+1, func(i int) {
		if err := n.Release(pooltest.Context(t), pooltest.Pod(i), []ipam.Pool{c.Pool}); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%d DELs in %s: %v", pods+1, time.Since(began).Round(time.Millisecond), controlplane.Tally(pooltest.RequestsSince(t, plane, began)))
	wantEmpty(t, c.Pool)
}

func TestManyNodesOnOnePoolGiveEachAddressOnce(t *testing.T) {
	const nodes, each = 10, 10
	c := pooltest.Claim(t, "nodes", "10.0.0.0/24")
	all := make([]*node, nodes)
	for i := range all {
		all[i] = newNode(t)
	}
	began := time.Now()
	got := make([]netip.Prefix, nodes*each)
	pooltest.Parallel(nodes*each, func(i int) {
		if a, err := all[i%nodes].Allocate(pooltest.Context(t), pooltest.Pod(i), []ipam.Claim{c}); err != nil {
			t.Error(err)
		} else {
			got[i] = a[0]
		}
	})
	t.Logf("%d ADDs on %d nodes in %s: %v", nodes*each, nodes, time.Since(began).Round(time.Millisecond), controlplane.Tally(pooltest.RequestsSince(t, plane, began)))
	seen := map[netip.Prefix]bool{}
	for _, a := range got {
		if seen[a] {
			t.Errorf("%s given twice", a)
		}
		seen[a] = true
	}
	began = time.Now()
	pooltest.Parallel(nodes*each, func(i int) {
		if err := all[i%nodes].Release(pooltest.Context(t), pooltest.Pod(i), []ipam.Pool{c.Pool}); err != nil {
			t.Error(err)
		}
	})
	t.Logf("DELs in %s", time.Since(began).Round(time.Millisecond))
	wantEmpty(t, c.Pool)
}

func TestLastAddressIsReachedByManyNodesAtOnce(t *testing.T) {
	c := pooltest.Claim(t, "last", "10.0.0.0/28") // 14 addresses
	full := make(chan error, 20)
	all := make([]*node, 20)
	for i := range all {
		all[i] = newNode(t)
	}
	pooltest.Parallel(20, func(i int) {
		_, err := all[i].Allocate(pooltest.Context(t), pooltest.Pod(i), []ipam.Claim{c})
		if err != nil {
			full <- err
		}
	})
	close(full)
	failed := 0
	for err := range full {
		failed++
		if failure.KindOf(err) != failure.IPAM || !strings.Contains(err.Error(), "Could not allocate IP in range") {
			t.Errorf("code %d: %v", cnierr.Code(err), err)
		}
	}
	if failed != 6 || len(entries(t, c.Pool)) != 14 {
		t.Errorf("%d ADDs failed, %d addresses held", failed, len(entries(t, c.Pool)))
	}
	for i := range all {
		all[i].del(pooltest.Pod(i), c.Pool)
	}
	wantEmpty(t, c.Pool)
}

func TestSamePodKeepsItsAddressAndALateDelTakesNothing(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "again", "10.0.0.0/24")
	first := pooltest.Pod(0)
	n.wantAdd(first, "10.0.0.1/24", c)
	n.wantAdd(first, "10.0.0.1/24", c)
	second := first
	second.ContainerID = strings.Repeat("f", 64)
	newNode(t).wantAdd(second, "10.0.0.1/24", c) // on another node
	n.del(first, c.Pool)                         // whose note is outdated
	if got := entries(t, c.Pool); got["1"] != api.NewEntry(second) {
		t.Errorf("entries %v", got)
	}
	if len(reservations(t, "again")) != 1 {
		t.Errorf("reservations %v", reservations(t, "again"))
	}
	other := second
	other.IfName = "net2"
	n.wantAdd(other, "10.0.0.2/24", c)
	n.del(second, c.Pool)
	n.del(other, c.Pool)
	wantEmpty(t, c.Pool)
}

func TestAddressReservedByAnotherPoolIsPassedOver(t *testing.T) {
	n := newNode(t)
	wide, narrow := pooltest.Claim(t, "over", "10.0.0.0/16"), pooltest.Claim(t, "over", "10.0.0.0/24")
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/16", wide)
	n.wantAdd(pooltest.Pod(1), "10.0.0.2/24", narrow)
	n.wantAdd(pooltest.Pod(2), "10.0.0.3/16", wide)
	for i := range 3 {
		n.del(pooltest.Pod(i), wide.Pool, narrow.Pool)
	}
	wantEmpty(t, wide.Pool, narrow.Pool)
}

func TestManyForeignReservationsCostOneList(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "foreign", "10.0.0.0/24")
	for i := 1; i <= 40; i++ {
		createReservation(t, fmt.Sprintf("foreign-10.0.0.%d", i), ipam.Owner{PodRef: "other/pod", IfName: "eth0"})
	}
	began := time.Now()
	n.wantAdd(pooltest.Pod(0), "10.0.0.41/24", c)
	tally := controlplane.Tally(pooltest.RequestsSince(t, plane, began))
	t.Log(tally)
	if e := entries(t, c.Pool); len(e) != 1 {
		t.Errorf("entries %v", e)
	}
	n.del(pooltest.Pod(0), c.Pool)
	if e := entries(t, c.Pool); len(e) != 0 {
		t.Errorf("entries %v", e)
	}
	if r := reservations(t, "foreign"); len(r) != 40 {
		t.Errorf("%d foreign reservations are left, want 40", len(r))
	}
	sum := 0
	for _, k := range tally {
		sum += k
	}
	if sum > 20 {
		t.Errorf("%d requests", sum)
	}
}

func TestEntryWithAForeignReservationIsGivenUpForTheNext(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "torn", "10.0.0.0/24")
	createPool(t, c.Pool, map[string]api.Entry{"1": api.NewEntry(pooltest.Pod(0))})
	createReservation(t, "torn-10.0.0.1", ipam.Owner{PodRef: "other/pod", IfName: "eth0"})
	n.wantAdd(pooltest.Pod(0), "10.0.0.2/24", c)
	if e := entries(t, c.Pool); len(e) != 1 || e["2"] != api.NewEntry(pooltest.Pod(0)) {
		t.Errorf("entries %v", e)
	}
	n.del(pooltest.Pod(0), c.Pool)
	if r := reservations(t, "torn"); len(r) != 1 || r["torn-10.0.0.1"].PodRef != "other/pod" {
		t.Errorf("reservations %v", r)
	}
}

func TestWriterKilledBetweenTheWritesIsFinished(t *testing.T) {
	c := pooltest.Claim(t, "killed", "10.0.0.0/24")
	createPool(t, c.Pool, map[string]api.Entry{"1": api.NewEntry(pooltest.Pod(0)), "2": api.NewEntry(pooltest.Pod(1))})
	n := newNode(t)
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
	if r := reservations(t, "killed"); !r["killed-10.0.0.1"].BelongsTo(pooltest.Pod(0)) {
		t.Errorf("reservations %v", r)
	}
	n.del(pooltest.Pod(0), c.Pool)
	n.del(pooltest.Pod(1), c.Pool)
	wantEmpty(t, c.Pool)
}

func TestPlaceholdersAndKeysOfOthersStay(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "others", "10.0.0.0/24")
	theirs := map[string]api.Entry{
		"1": {ContainerID: "block-of-node", PodRef: ""}, "2": {ContainerID: "x", PodRef: "ns/other", IfName: "net1"},
		"-3": {ContainerID: "y", PodRef: "ns/minus"}, "999999999999999999999": {ContainerID: "z", PodRef: "ns/far"},
	}
	createPool(t, c.Pool, theirs)
	n.wantAdd(pooltest.Pod(0), "10.0.0.3/24", c)
	n.del(pooltest.Pod(0), c.Pool)
	got := entries(t, c.Pool)
	if len(got) != len(theirs) {
		t.Errorf("%v", got)
	}
	for key, e := range theirs {
		if got[key] != e {
			t.Errorf("%s: %v, want %v", key, got[key], e)
		}
	}
}

func TestEntryFromBeforeInterfaceNamesIsFreed(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "old", "10.0.0.0/24")
	old := api.NewEntry(pooltest.Pod(0))
	old.IfName = ""
	createPool(t, c.Pool, map[string]api.Entry{"7": old})
	createReservation(t, "old-10.0.0.7", ipam.Owner{ContainerID: old.ContainerID, PodRef: old.PodRef})
	n.del(pooltest.Pod(0), c.Pool)
	wantEmpty(t, c.Pool)
}

func TestDelLeavesAnotherPodsReservationAlone(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "notmine", "10.0.0.0/24")
	createPool(t, c.Pool, map[string]api.Entry{"1": api.NewEntry(pooltest.Pod(0))})
	createReservation(t, "notmine-10.0.0.1", ipam.Owner{PodRef: "other/pod", IfName: "eth0"})
	n.del(pooltest.Pod(0), c.Pool)
	if r := reservations(t, "notmine"); len(r) != 1 {
		t.Errorf("reservations %v", r)
	}
	if e := entries(t, c.Pool); len(e) != 0 {
		t.Errorf("entries %v", e)
	}
}

func TestSecondRangeGetsItsReservationAndDelGoesOnAfterTheFirst(t *testing.T) {
	n := newNode(t)
	v4, v6 := pooltest.Claim(t, "dual", "10.0.0.0/24"), pooltest.Claim(t, "dual", "2001:db8::/64")
	got := n.add(pooltest.Pod(0), v4, v6)
	if got[0].String() != "10.0.0.1/24" || got[1].String() != "2001:db8::1/64" {
		t.Fatal(got)
	}
	if r := reservations(t, "dual"); len(r) != 2 {
		t.Errorf("reservations %v", r)
	}
	// The first pool has lost the entry; the second is still freed.
	none := pooltest.Claim(t, "dual", "10.9.0.0/24")
	newNode(t).del(pooltest.Pod(0), none.Pool, v4.Pool, v6.Pool)
	wantEmpty(t, v4.Pool, v6.Pool)
}

func TestOverlappingRangesGiveAnInterfaceTwoAddresses(t *testing.T) {
	n := newNode(t)
	narrow, wide := pooltest.Claim(t, "nested", "10.0.0.0/24"), pooltest.Claim(t, "nested", "10.0.0.0/16")
	for range 2 {
		if got := n.add(pooltest.Pod(0), narrow, wide); got[0].String() != "10.0.0.1/24" || got[1].String() != "10.0.0.2/16" {
			t.Error(got)
		}
	}
	n.del(pooltest.Pod(0), narrow.Pool, wide.Pool)
	wantEmpty(t, narrow.Pool, wide.Pool)
}

func TestFailedSecondRangeGivesTheFirstBack(t *testing.T) {
	n := newNode(t)
	v4, tiny := pooltest.Claim(t, "undo", "10.0.0.0/24"), pooltest.Claim(t, "undo", "10.1.0.0/30")
	n.add(pooltest.Pod(1), tiny)
	n.add(pooltest.Pod(2), tiny)
	_, err := n.Allocate(pooltest.Context(t), pooltest.Pod(0), []ipam.Claim{v4, tiny})
	if failure.KindOf(err) != failure.IPAM {
		t.Fatal(err)
	}
	n.del(pooltest.Pod(1), tiny.Pool)
	n.del(pooltest.Pod(2), tiny.Pool)
	wantEmpty(t, v4.Pool, tiny.Pool)
}

func TestDistantIPv6AddressesAreExact(t *testing.T) {
	n := newNode(t)
	p := netip.MustParsePrefix("2001:db8::/32")
	rng, err := ipam.NewRange(ipam.RangeSpec{Prefix: p, Start: netip.MustParseAddr("2001:db8:ffff::1")})
	if err != nil {
		t.Fatal(err)
	}
	c := ipam.Claim{Pool: ipam.Pool{Space: "far", Prefix: p}, Range: rng, Exclusive: true}
	n.wantAdd(pooltest.Pod(0), "2001:db8:ffff::1/32", c)
	n.wantAdd(pooltest.Pod(1), "2001:db8:ffff::2/32", c)
	n.wantAdd(pooltest.Pod(0), "2001:db8:ffff::1/32", c)
	n.del(pooltest.Pod(0), c.Pool)
	n.del(pooltest.Pod(1), c.Pool)
	wantEmpty(t, c.Pool)
}

func TestWantedAddress(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "want", "10.0.0.0/24")
	c.Want = netip.MustParseAddr("10.0.0.77")
	n.wantAdd(pooltest.Pod(0), "10.0.0.77/24", c)
	n.wantAdd(pooltest.Pod(0), "10.0.0.77/24", c)
	refused := func(o ipam.Owner, why string) {
		t.Helper()
		_, err := n.Allocate(pooltest.Context(t), o, []ipam.Claim{c})
		if failure.KindOf(err) != failure.IPAM || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	refused(pooltest.Pod(1), "default/pod-0 holds it")
	createReservation(t, "want-10.0.0.78", ipam.Owner{PodRef: "other/pod"})
	c.Want = netip.MustParseAddr("10.0.0.78")
	refused(pooltest.Pod(1), "another pool of the same address space holds it")
	if e := entries(t, c.Pool); len(e) != 1 {
		t.Errorf("entries %v", e)
	}
	refused(pooltest.Pod(0), "already holds 10.0.0.77")
}

func TestHostBitsInThePoolsRangeShiftTheKeys(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "bits", "10.0.0.0/24")
	pooltest.Create(t, plane, poolPath(""), api.NewIPPool(c.Pool.Name(), testNamespace, "10.0.0.10/24",
		map[string]api.Entry{"1": {ContainerID: "x", PodRef: "ns/x", IfName: "net1"}}))
	c.Want = netip.MustParseAddr("10.0.0.12")
	n.wantAdd(pooltest.Pod(0), "10.0.0.12/24", c)
	if e := entries(t, c.Pool); e["2"] != api.NewEntry(pooltest.Pod(0)) {
		t.Errorf("entries %v", e)
	}
	c.Want = netip.MustParseAddr("10.0.0.5")
	if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(1), []ipam.Claim{c}); failure.KindOf(err) != failure.BadRecord {
		t.Errorf("an address below the base: %v", err)
	}
}

func TestDelWhileTheServerIsAwayIsDoneLater(t *testing.T) {
	own := controlplane.Start(t, controlplane.Options{})
	n, c := newNodeAt(t, own.AdminKubeconfig(), t.TempDir()), pooltest.Claim(t, "away", "10.0.0.0/24")
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
	n.wantAdd(pooltest.Pod(1), "10.0.0.2/24", c)
	own.KillAPIServer()
	began := time.Now()
	pooltest.Parallel(2, func(i int) { n.del(pooltest.Pod(i), c.Pool) })
	if took := time.Since(began); took > RetryFor+20*time.Second {
		t.Errorf("DEL took %s", took)
	}
	if err := own.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := own.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.wantAdd(pooltest.Pod(2), "10.0.0.3/24", c) // and frees the others in the same patch
	n.wantJournal("after the ADD", 0)
	_, data, err := own.Admin().Get(context.Background(), poolPath(c.Pool.Name()))
	if err != nil {
		t.Fatal(err)
	}
	if state, err := api.ParsePool(data); err != nil || len(state.Entries) != 1 {
		t.Errorf("%v, %v", state, err)
	}
}

func TestServerThatDoesNotAnswerCostsADelOfManyPoolsItsTimeOnce(t *testing.T) {
	var requests sync.Map // by path
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Store(r.URL.Path, true)
		http.Error(w, "away", http.StatusServiceUnavailable)
	}))
	t.Cleanup(silent.Close)
	n := newNodeAt(t, pooltest.Kubeconfig(t, plane, silent.URL, testNamespace), t.TempDir())
	var pools []ipam.Pool
	for i := range 4 {
		pools = append(pools, pooltest.Claim(t, fmt.Sprintf("silent%d", i), "10.0.0.0/24").Pool)
	}
	began := time.Now()
	n.del(pooltest.Pod(0), pools...)
	if took := time.Since(began); took > RetryFor+10*time.Second {
		t.Errorf("DEL took %s", took)
	}
	n.wantJournal("after the DEL", len(pools))
	requests.Range(func(path, _ any) bool {
		if path != poolPath(pools[0].Name()) {
			t.Errorf("it asked for %s", path)
		}
		return true
	})
}

func TestDelWhereTheQueueCannotBeWrittenIsDoneLater(t *testing.T) {
	need.Root(t)
	state, c := t.TempDir(), pooltest.Claim(t, "fullrun", "10.0.0.0/24")
	run := state + "/run"
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=0700,size=128k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(run, unix.MNT_DETACH) })
	n := newNodeAt(t, plane.AdminKubeconfig(), state)
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
	if err := os.WriteFile(run+"/much", make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(1), []ipam.Claim{c}); failure.KindOf(err) != failure.IO || !strings.Contains(err.Error(), "free space") {
		t.Errorf("ADD: %v", err)
	}
	n.wantJournal("after the ADD, which is undone", 1)
	n.del(pooltest.Pod(0), c.Pool)
	n.wantJournal("after the DEL", 2)
	if err := os.Remove(run + "/much"); err != nil {
		t.Fatal(err)
	}
	if left, err := n.Replay(pooltest.Context(t)); left != 0 || err != nil {
		t.Errorf("%d are left: %v", left, err)
	}
	wantEmpty(t, c.Pool)
}

// definition returns the path of a CRD of whereabouts.
func definition(plural string) string {
	return "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + plural + "." + api.Group
}

func TestDelWhereTheServerKnowsNoPoolsAnyMoreIsDoneLater(t *testing.T) {
	own := controlplane.Start(t, controlplane.Options{})
	ask := func(method, path string, body any, want int) []byte {
		t.Helper()
		code, data, err := own.Admin().Do(t.Context(), method, path, "application/json", body)
		if err != nil || code != want {
			t.Fatal(method, path, code, string(data), err)
		}
		return data
	}
	for i, plural := range []string{"overlappingrangeipreservations", "ippools"} {
		n, c := newNodeAt(t, own.AdminKubeconfig(), t.TempDir()), pooltest.Claim(t, "unknown", "10.0.0.0/24")
		n.wantAdd(pooltest.Pod(i), "10.0.0.1/24", c)
		var crd struct {
			APIVersion string         `json:"apiVersion"`
			Kind       string         `json:"kind"`
			Metadata   map[string]any `json:"metadata"`
			Spec       map[string]any `json:"spec"`
		}
		if err := json.Unmarshal(ask("GET", definition(plural), nil, 200), &crd); err != nil {
			t.Fatal(err)
		}
		crd.Metadata = map[string]any{"name": crd.Metadata["name"], "annotations": crd.Metadata["annotations"]}
		served := func(want bool) {
			t.Helper()
			pooltest.Eventually(t, fmt.Sprintf("%s served: %v", plural, want), func() bool {
				code, _, err := own.Admin().Get(t.Context(), crPath(plural, ""))
				return err == nil && (code == 200) == want
			})
		}
		ask("DELETE", definition(plural), nil, 200)
		served(false)
		n.del(pooltest.Pod(i), c.Pool)
		n.wantJournal("without "+plural, 1)
		if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(9), []ipam.Claim{c}); failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), "apply the CRD") {
			t.Errorf("ADD without %s: %v", plural, err)
		}
		ask("POST", strings.TrimSuffix(definition(""), "/."+api.Group), crd, 201)
		served(true)
		if left, err := n.Replay(pooltest.Context(t)); left != 0 || err != nil {
			t.Errorf("with %s again: %d are left: %v", plural, left, err)
		}
		n.wantAdd(pooltest.Pod(i), "10.0.0.1/24", c)
		n.del(pooltest.Pod(i), c.Pool)
	}
}

func TestDelWhereAnotherServerAnswersIsDoneLater(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>log in first</html>")) })
	plain, untrusted := httptest.NewServer(page), httptest.NewUnstartedServer(page)
	t.Cleanup(plain.Close)
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshakes
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	c := pooltest.Claim(t, "mistaken", "10.0.0.0/24")
	for i, tc := range []struct{ server, says string }{
		{untrusted.URL, "check the server and the CA in"},
		{strings.Replace(plain.URL, "http:", "https:", 1), "check the server and the CA in"},
		{plain.URL, "not JSON"},
		{strings.Replace(plane.Server(), "https:", "http:", 1), "HTTPS server. (400)"},
	} {
		state, kubeconfig := t.TempDir(), pooltest.Kubeconfig(t, plane, "", testNamespace)
		healthy, err := os.ReadFile(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		newNodeAt(t, kubeconfig, state).wantAdd(pooltest.Pod(i), "10.0.0.1/24", c)
		if err := os.Rename(pooltest.Kubeconfig(t, plane, tc.server, testNamespace), kubeconfig); err != nil {
			t.Fatal(err)
		}
		n := newNodeAt(t, kubeconfig, state)
		n.del(pooltest.Pod(i), c.Pool)
		n.wantJournal("at "+tc.server, 1)
		if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(9), []ipam.Claim{c}); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("ADD at %s: %v, want %q", tc.server, err, tc.says)
		}
		if err := os.WriteFile(kubeconfig, healthy, 0o600); err != nil {
			t.Fatal(err)
		}
		if left, err := newNodeAt(t, kubeconfig, state).Replay(pooltest.Context(t)); left != 0 || err != nil {
			t.Errorf("after %s: %d are left: %v", tc.server, left, err)
		}
		wantEmpty(t, c.Pool)
	}
}

func TestAddWhoseAnswersWereLostIsUndoneLater(t *testing.T) {
	var broken atomic.Bool // by the first write
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			http.Error(w, "shut", http.StatusForbidden)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		code, answer, err := plane.Admin().Do(r.Context(), r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), body)
		if err != nil {
			t.Error(err)
		}
		if r.Method != http.MethodGet {
			broken.Store(true)
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(answer)
	}))
	t.Cleanup(between.Close)
	c := pooltest.Claim(t, "lost", "10.0.0.0/24")
	n := newNodeAt(t, pooltest.Kubeconfig(t, plane, between.URL, testNamespace), t.TempDir())
	if _, err := n.Allocate(pooltest.Context(t), pooltest.Pod(0), []ipam.Claim{c}); err == nil || !broken.Load() {
		t.Fatal(err)
	}
	if len(entries(t, c.Pool)) != 1 {
		t.Error("nothing was written")
	}
	n.wantJournal("after the ADD", 1)
	n.del(pooltest.Pod(0), c.Pool)
	n.wantJournal("after the DEL", 1)
	broken.Store(false)
	_, _ = n.Replay(pooltest.Context(t)) // its answer is lost, too
	wantEmpty(t, c.Pool)
}

func TestTurnReadsOfTheJournalWhatMayBeOfItsPool(t *testing.T) {
	n, c, other := newNode(t), pooltest.Claim(t, "pending", "10.0.0.0/24"), pooltest.Claim(t, "pending", "10.1.0.0/24")
	long := pooltest.Claim(t, strings.Repeat("a-long-name.", 15), "10.0.0.0/24")
	put := func(pool ipam.Pool, kubeconfig string, o ipam.Owner) string {
		d := &deferred{Kubeconfig: kubeconfig, Server: plane.Server(), Namespace: testNamespace, Pool: pool, Owner: o, Since: time.Now()}
		before, _ := n.journal.all()
		if err := n.journal.put(d); err != nil {
			t.Fatal(err)
		}
		after, _ := n.journal.all()
		for file := range after {
			if before[file] == nil {
				return n.journal.Path + "/" + file
			}
		}
		t.Fatal("nothing was put")
		return ""
	}
	rename := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	put(c.Pool, n.kubeconfig, pooltest.Pod(0))
	put(c.Pool, "/"+strings.Repeat("long/", 40), pooltest.Pod(1)) // its name is cut
	rename(put(c.Pool, n.kubeconfig, pooltest.Pod(2)), n.journal.Path+"/by-hand"+journalSuffix)
	put(long.Pool, n.kubeconfig, pooltest.Pod(3))
	// A turn of c's pool would carry out this entry if it read the entry.
	theirs := put(other.Pool, n.kubeconfig, pooltest.Pod(4))
	rename(put(c.Pool, n.kubeconfig, pooltest.Pod(5)), theirs)
	got := map[string]int{}
	for _, pool := range []ipam.Pool{c.Pool, other.Pool, long.Pool} {
		for _, p := range n.journal.jobs(n.client, pool) {
			got[pool.Name()+" "+p.Owner.PodRef]++
		}
	}
	for _, want := range []string{c.Pool.Name() + " default/pod-0", c.Pool.Name() + " default/pod-1", c.Pool.Name() + " default/pod-2", long.Pool.Name() + " default/pod-3"} {
		if got[want] != 1 {
			t.Errorf("%s is not found", want)
		}
	}
	if len(got) != 4 {
		t.Errorf("found %v", got)
	}
}

func TestTurnTakesNoMoreOfTheJournalThanOnePatchHolds(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "many", "10.0.0.0/16")
	for i := range maxTurn + 10 {
		n.putJournal(c.Pool, pooltest.Pod(i))
	}
	if got := n.journal.jobs(n.client, c.Pool); len(got) != maxTurn {
		t.Errorf("%d of %d", len(got), maxTurn+10)
	}
}

func TestGCFreesWhatThisNodeGotAndTheRuntimeDoesNotName(t *testing.T) {
	a, b, c := newNode(t), newNode(t), pooltest.Claim(t, "gc", "10.0.0.0/24")
	a.add(pooltest.Pod(0), c)
	a.add(pooltest.Pod(1), c)
	b.add(pooltest.Pod(2), c)
	other := pooltest.Pod(3)
	other.Network = "another"
	a.add(other, c)
	valid := []ipam.Attachment{{ContainerID: pooltest.Pod(1).ContainerID, IfName: "net1"}}
	if err := a.GC(pooltest.Context(t), "net", []ipam.Pool{c.Pool}, valid); err != nil {
		t.Fatal(err)
	}
	got := entries(t, c.Pool)
	if _, there := got["1"]; there || len(got) != 3 {
		t.Errorf("entries %v", got)
	}
	for i := 1; i < 4; i++ {
		a.del(pooltest.Pod(i), c.Pool)
	}
	wantEmpty(t, c.Pool)
}

func TestStatus(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "status", "10.0.0.0/30")
	if err := n.Status(pooltest.Context(t), []ipam.Claim{c}); err != nil {
		t.Error(err)
	}
	n.add(pooltest.Pod(0), c)
	n.add(pooltest.Pod(1), c)
	if err := n.Status(pooltest.Context(t), []ipam.Claim{c}); failure.KindOf(err) != failure.NotAvailable {
		t.Errorf("exhausted: %v", err)
	}
	n.del(pooltest.Pod(0), c.Pool)
	n.del(pooltest.Pod(1), c.Pool)
}

func TestJournalTakesNothingFromAnAttachmentThatCameAgain(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "cameagain", "10.0.0.0/24")
	for _, replay := range []bool{false, true} {
		n.putJournal(c.Pool, pooltest.Pod(0))
		n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
		if replay {
			if left, err := n.Replay(pooltest.Context(t)); left != 0 || err != nil {
				t.Error(left, err)
			}
		}
		if e := entries(t, c.Pool); e["1"] != api.NewEntry(pooltest.Pod(0)) || len(reservations(t, "cameagain")) != 1 {
			t.Errorf("entries %v, reservations %v", e, reservations(t, "cameagain"))
		}
		n.del(pooltest.Pod(0), c.Pool)
	}
	wantEmpty(t, c.Pool)
}

func TestReservationOfAFormerContainerIsMadeAnew(t *testing.T) {
	first, second := pooltest.Pod(0), pooltest.Pod(0)
	second.ContainerID = strings.Repeat("e", 64)
	n, c := newNode(t), pooltest.Claim(t, "former", "10.0.0.0/24")
	n.wantAdd(first, "10.0.0.1/24", c)
	late := n.notes.get(first, c.Pool.Name()).held()
	newNode(t).wantAdd(second, "10.0.0.1/24", c)
	if err := n.freeReservation(pooltest.Context(t), c.Pool, late); err != nil { // an unfinished DEL's
		t.Fatal(err)
	}
	if r := reservations(t, "former"); r["former-10.0.0.1"].ContainerID != second.ContainerID {
		t.Errorf("reservations %v", r)
	}
	n.del(second, c.Pool)
	wantEmpty(t, c.Pool)
}

// Real whereabouts names no container in its reservations, and keeps an
// existing one for the pod's next container. A late DEL must leave those that
// the next container uses.
func TestLateDelLeavesTheNextContainersReservation(t *testing.T) {
	first, second := pooltest.Pod(0), pooltest.Pod(0)
	second.ContainerID = strings.Repeat("e", 64)
	theirs := ipam.Owner{PodRef: first.PodRef, IfName: first.IfName}
	for name, c := range map[string]struct {
		was  func(n *node, c ipam.Claim, object string)
		late func(n *node, c ipam.Claim) error
	}{
		"made by real whereabouts before the switch": {
			was: func(n *node, c ipam.Claim, object string) {
				createPool(n.t, c.Pool, map[string]api.Entry{"1": api.NewEntry(first)})
				createReservation(n.t, object, theirs)
				n.wantAdd(second, "10.0.0.1/24", c)
			},
			late: func(n *node, c ipam.Claim) error {
				h := held{addr: netip.MustParseAddr("10.0.0.1"), key: "1", entry: api.NewEntry(first), reserved: true}
				return n.freeReservation(pooltest.Context(n.t), c.Pool, h)
			},
		},
		"made by real whereabouts meanwhile": {
			was: func(n *node, c ipam.Claim, object string) {
				n.wantAdd(first, "10.0.0.1/24", c)
				if err := n.client.Delete(pooltest.Context(n.t), api.Reservations(testNamespace), object, kube.Preconditions{}); err != nil {
					n.t.Fatal(err)
				}
				createReservation(n.t, object, theirs)
			},
			late: func(n *node, c ipam.Claim) error {
				return n.freeReservation(pooltest.Context(n.t), c.Pool, n.notes.get(first, c.Pool.Name()).held())
			},
		},
		"taken over by real whereabouts, and the DEL names no pod": {
			was: func(n *node, c ipam.Claim, _ string) {
				n.wantAdd(first, "10.0.0.1/24", c)
				taken := []kube.PatchOp{{Op: "replace", Path: "/spec/allocations/1/id", Value: second.ContainerID}}
				if _, err := n.client.Patch(pooltest.Context(n.t), api.Pools(testNamespace), c.Pool.Name(), taken); err != nil {
					n.t.Fatal(err)
				}
			},
			late: func(n *node, c ipam.Claim) error {
				nameless := first
				nameless.PodRef = first.ContainerID
				n.del(nameless, c.Pool)
				return nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			space := fmt.Sprintf("nextone%d", len(name))
			n, claim := newNode(t), pooltest.Claim(t, space, "10.0.0.0/24")
			c.was(n, claim, space+"-10.0.0.1")
			if err := c.late(n, claim); err != nil {
				t.Fatal(err)
			}
			if r := reservations(t, space); len(r) != 1 {
				t.Errorf("reservations %v", r)
			}
		})
	}
}

func TestWhatATurnFreesIsGivenInTheSameTurn(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "sameturn", "10.0.0.0/30")
	n.add(pooltest.Pod(0), c)
	n.add(pooltest.Pod(1), c)
	n.putJournal(c.Pool, pooltest.Pod(0))
	n.wantAdd(pooltest.Pod(2), "10.0.0.1/30", c)
	n.del(pooltest.Pod(1), c.Pool)
	n.del(pooltest.Pod(2), c.Pool)
	wantEmpty(t, c.Pool)
}

func TestAskingForAnotherAddressThanAFormerContainerHad(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "moved", "10.0.0.0/24")
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
	now := pooltest.Pod(0)
	now.ContainerID = strings.Repeat("d", 64)
	c.Want = netip.MustParseAddr("10.0.0.9")
	n.wantAdd(now, "10.0.0.9/24", c)
	if e := entries(t, c.Pool); len(e) != 1 || len(reservations(t, "moved")) != 1 {
		t.Errorf("entries %v, reservations %v", e, reservations(t, "moved"))
	}
	n.del(now, c.Pool)
	n.del(pooltest.Pod(0), c.Pool)
	wantEmpty(t, c.Pool)
}

// putJournal writes to n's journal that owners' addresses in pool must be
// freed.
func (n *node) putJournal(pool ipam.Pool, owners ...ipam.Owner) {
	n.t.Helper()
	for _, o := range owners {
		d := &deferred{Kubeconfig: n.kubeconfig, Namespace: testNamespace, Pool: pool, Owner: o, Since: time.Now()}
		if err := n.journal.put(d); err != nil {
			n.t.Fatal(err)
		}
	}
}

// wantJournal fails the test unless the node's journal has so many entries.
func (n *node) wantJournal(when string, want int) {
	n.t.Helper()
	if waiting, err := n.journal.all(); err != nil || len(waiting) != want {
		n.t.Errorf("%s the journal has %d entries, want %d: %v", when, len(waiting), want, err)
	}
}

func TestTwoDelsThatEndOneEntryBlockNobody(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "twoends", "10.0.0.0/24")
	old := api.NewEntry(pooltest.Pod(0))
	old.IfName = "" // of a version before whereabouts 0.8: any interface ends it
	createPool(t, c.Pool, map[string]api.Entry{"7": old})
	createReservation(t, "twoends-10.0.0.7", ipam.Owner{ContainerID: old.ContainerID, PodRef: old.PodRef})
	second := pooltest.Pod(0)
	second.IfName = "net2"
	n.putJournal(c.Pool, pooltest.Pod(0), second)
	n.wantAdd(pooltest.Pod(1), "10.0.0.1/24", c)
	n.wantJournal("after the ADD", 0)
	n.del(pooltest.Pod(1), c.Pool)
	wantEmpty(t, c.Pool)
}

func TestAddThatWouldTakeOverWhatAnOldDelEndsGetsAnAddress(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "endsandtakes", "10.0.0.0/24")
	n.wantAdd(pooltest.Pod(0), "10.0.0.1/24", c)
	late := pooltest.Pod(0)
	late.PodRef = late.ContainerID // its DEL came without CNI_ARGS
	n.putJournal(c.Pool, late)
	now := pooltest.Pod(0)
	now.ContainerID = strings.Repeat("c", 64)
	n.add(now, c)
	n.wantJournal("after the ADD", 0)
	if e := entries(t, c.Pool); len(e) != 1 || len(reservations(t, "endsandtakes")) != 1 {
		t.Errorf("entries %v, reservations %v", e, reservations(t, "endsandtakes"))
	}
	n.del(now, c.Pool)
	wantEmpty(t, c.Pool)
}

func TestJournalIsOnlyForTheServerAndNamespaceThatAnEntryIsOf(t *testing.T) {
	n, c := newNode(t), pooltest.Claim(t, "whose", "10.0.0.0/24")
	nobody := "https://127.0.0.1:1"
	here, elsewhere, space := pooltest.Kubeconfig(t, plane, "", testNamespace), pooltest.Kubeconfig(t, plane, nobody, testNamespace), pooltest.Kubeconfig(t, plane, "", "default")
	for i, tc := range []struct {
		what string
		deferred
		ours bool
	}{
		{"another server's", deferred{Kubeconfig: elsewhere, Server: nobody, Namespace: testNamespace}, false},
		{"another server's, by a kubeconfig that could not be read", deferred{Kubeconfig: elsewhere}, false},
		{"another namespace's", deferred{Kubeconfig: here, Server: plane.Server(), Namespace: "default"}, false},
		{"another namespace's, by a kubeconfig that could not be read", deferred{Kubeconfig: space}, false},
		{"unknown: its kubeconfig is gone", deferred{Kubeconfig: "/nonexistent"}, false},
		{"ours, though its kubeconfig is gone", deferred{Kubeconfig: "/nonexistent", Server: plane.Server(), Namespace: testNamespace}, true},
		{"ours, by a kubeconfig that could not be read", deferred{Kubeconfig: here}, true},
		{"ours, whose server has another URL now", deferred{Kubeconfig: here, Server: nobody, Namespace: testNamespace}, true},
	} {
		o := pooltest.Pod(i)
		n.add(o, c)
		d := tc.deferred
		d.Pool, d.Owner, d.Since = c.Pool, o, time.Now()
		if err := n.journal.put(&d); err != nil {
			t.Fatal(err)
		}
		want := 1
		if tc.ours {
			want = 0
		}
		if left, err := n.Replay(pooltest.Context(t)); err != nil || left != want {
			t.Errorf("%s: %d are left after the replay, want %d: %v", tc.what, left, want, err)
		}
		n.add(pooltest.Pod(100), c) // is the writer, and carries out the journal as well
		n.wantJournal(tc.what+": after an ADD", want)
		held := false
		for _, e := range entries(t, c.Pool) {
			held = held || e == api.NewEntry(o)
		}
		if held == tc.ours {
			t.Errorf("%s: held is %v", tc.what, held)
		}
		n.del(pooltest.Pod(100), c.Pool)
		n.del(o, c.Pool)
		found, err := n.journal.all()
		if err != nil {
			t.Fatal(err)
		}
		for name := range found {
			if err := n.journal.drop(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantEmpty(t, c.Pool)
}

func TestDelAfterTheKubeconfigLeadsElsewhereForgetsTheOldNotes(t *testing.T) {
	c, state := pooltest.Claim(t, "moved-server", "10.0.0.0/24"), t.TempDir()
	old := strings.Replace(plane.Server(), "127.0.0.1", "localhost", 1) // the same server by another URL
	if old == plane.Server() {
		t.Fatal("no other URL for", old)
	}
	kubeconfig := pooltest.Kubeconfig(t, plane, old, testNamespace)
	before := newNodeAt(t, kubeconfig, state)
	for i := range 3 {
		before.add(pooltest.Pod(i), c)
	}
	now, err := os.ReadFile(pooltest.Kubeconfig(t, plane, "", testNamespace))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, now, 0o600); err != nil {
		t.Fatal(err)
	}
	after := newNodeAt(t, kubeconfig, state)
	if len(Allocations(state+"/run")) != 3 {
		t.Fatal(Allocations(state + "/run"))
	}
	after.del(pooltest.Pod(0)) // by the note alone
	after.putJournal(c.Pool, pooltest.Pod(1))
	newNodeAt(t, plane.AdminKubeconfig(), state).add(pooltest.Pod(2), c) // by another kubeconfig, to which these notes do not belong
	if e := entries(t, c.Pool); len(e) != 1 || e["3"] != api.NewEntry(pooltest.Pod(2)) {
		t.Errorf("entries %v", e)
	}
	if left := Allocations(state + "/run"); len(left) != 2 || left[0].Owner != pooltest.Pod(2) || left[1].Owner != pooltest.Pod(2) {
		t.Errorf("notes of %v, want the two of %v", left, pooltest.Pod(2))
	}
	after.del(pooltest.Pod(2), c.Pool)
	if left := Allocations(state + "/run"); len(left) != 0 {
		t.Errorf("notes of %v are left", left)
	}
	wantEmpty(t, c.Pool)
}
