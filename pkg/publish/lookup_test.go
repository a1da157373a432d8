package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// podOf makes a pod with n rails on a node, and puts their records into its ledger.
func (l *lab) podOf(container, uid string, n int) {
	l.t.Helper()
	pod, r := l.pod(container, uid, "10.3.0.17/16")
	for i := range n {
		each := *r
		each.IfName, each.Rail = fmt.Sprint("net", i+1), &i
		if i > 0 {
			pod.IP("link", "add", each.IfName, "link", "ens5np0", "type", "macvlan", "mode", "bridge")
			pod.IP("addr", "add", fmt.Sprintf("10.%d.0.17/16", i+10), "dev", each.IfName)
			pod.IP("link", "set", each.IfName, "up")
			index, err := pod.Index(each.IfName)
			if err != nil {
				l.t.Fatal(err)
			}
			each.Child = &ledger.Child{Master: "ens5np0", Mode: "bridge", PodIndex: index}
		}
		l.put(&each)
	}
}

// A pod whose root changes its addresses all the time, or whose build hangs in the kernel, must not
// delay another pod.
func TestLookupWaitsForNoOtherPod(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	if _, err := l.keeper.Lookup(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	list, hangs, goOn := l.keeper.list, make(chan struct{}), make(chan struct{})
	l.keeper.list = func() (*inventory.NICList, error) {
		close(hangs)
		<-goOn
		return list()
	}
	l.keeper.facts.Store(&facts{list: l.keeper.facts.Load().list}) // old ones
	_, other := l.pod("c2", "other", "10.3.0.18/16")
	other.Child.Master = "ens9np0" // of which the facts have nothing
	l.put(other)
	type answer struct {
		told *Publication
		err  error
	}
	late := make(chan answer, 1)
	go func() {
		told, err := l.keeper.Lookup(context.Background(), "c2")
		late <- answer{told, err}
	}()
	<-hangs

	if told, err := l.keeper.Lookup(t.Context(), "c1"); err != nil || told == nil {
		t.Errorf("another pod: %+v, %v", told, err)
	}
	if told, err := l.keeper.Lookup(t.Context(), "none"); err != nil || told != nil {
		t.Errorf("a pod without rails: %+v, %v", told, err)
	}
	if l.published() != 2 {
		t.Errorf("%d pods, %d panics", l.published(), l.keeper.reporter.Panics())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.keeper.Lookup(ctx, "c2"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the same pod: %v", err)
	}
	if err := l.ledger.Remove(other); err != nil {
		t.Fatal(err)
	}
	l.keeper.scan()
	if !l.keeper.left || l.published() != 2 {
		t.Error("the pod was removed while its files are built")
	}
	if l.keeper.refreshFacts() { // it must not wait either
		t.Error("the facts are read twice at a time")
	}
	close(goOn)
	if a := <-late; a.err != nil || a.told == nil {
		t.Errorf("got %+v, %v", a.told, a.err)
	}
	l.keeper.scan()
	if l.keeper.left || l.rails("other") != nil || l.rails(uid) == nil {
		t.Error("the pod is still there")
	}
}

// A Lookup does not build a pod again that is current, but it builds a pod that has changed.
func TestLookupBuildsOnlyWhatHasChanged(t *testing.T) {
	l := newLab(t)
	pod, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	addresses := func() int {
		t.Helper()
		told, err := l.keeper.Lookup(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		return len(told.Rails.Rails[0].Addresses)
	}
	if n := addresses(); n != 1 {
		t.Errorf("%d addresses", n)
	}
	pod.IP("addr", "add", "10.3.0.99/16", "dev", "net1")
	l.keeper.allDue() // as every half minute
	if n := addresses(); n != 1 {
		t.Error("a look that is due delays the Lookup")
	}
	l.spoil(uid)
	if n := addresses(); n != 2 {
		t.Errorf("%d addresses after a change", n)
	}
	pod.IP("addr", "del", "10.3.0.99/16", "dev", "net1")
	l.put(r)
	if n := addresses(); n != 1 {
		t.Errorf("%d addresses after a change of the record", n)
	}
}

// A Lookup answers with its own build, or with the error of that build. Only for a pod without
// rails it returns nothing and no error.
func TestBuildReturnsRailsOrAnError(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	k := l.keeper
	if err := k.read(); err != nil {
		t.Fatal(err)
	}
	build := func() (*railinfo.Rails, error) {
		t.Helper()
		p, w := k.takeDue(uid)
		if p == nil {
			t.Fatal("no build is due")
		}
		defer func() { <-p.token }()
		return k.build(k.opened, uid, p, w)
	}
	rails, err := build()
	if err != nil || rails == nil {
		t.Fatalf("got %+v, %v", rails, err)
	}
	list := k.list
	k.list = func() (*inventory.NICList, error) { return nil, errors.New("no list") }
	k.facts.Store(nil)
	l.spoil(uid)
	if rails, err := build(); err == nil || rails != nil {
		t.Errorf("without the NICs: %+v, %v", rails, err)
	}
	if told, err := k.Lookup(t.Context(), "c1"); err == nil || told != nil {
		t.Errorf("Lookup: %+v, %v", told, err)
	}
	// The same Lookup with nothing new in the ledger: the former answer may no longer be true.
	failing := k.list
	k.list = list
	if told, err := k.Lookup(t.Context(), "c1"); err != nil || told == nil {
		t.Fatalf("Lookup with the NICs: %+v, %v", told, err)
	}
	k.list = failing
	k.facts.Store(nil)
	k.allDue()
	if rails, err := build(); err == nil || rails != nil {
		t.Errorf("due, without the NICs: %+v, %v", rails, err)
	}
	if told, err := k.Lookup(t.Context(), "c1"); err == nil || told != nil {
		t.Errorf("Lookup after a build that failed: %+v, %v", told, err)
	}
}

// Records that were read earlier do not replace records that were read later. But each sandbox of a
// pod gets the answer about its own records.
func TestOlderRecordsReplaceNoNewerOnes(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	second := *r
	second.IfName = "net2"
	k := l.keeper
	first, later := k.beginScan(), k.beginScan()
	o, err := k.open()
	if err != nil {
		t.Fatal(err)
	}
	p, _ := k.holdCurrent(o, uid, []*ledger.Record{r, &second}, later)
	k.holdCurrent(o, uid, []*ledger.Record{r}, first)
	if len(p.records) != 2 {
		t.Errorf("%d records", len(p.records))
	}
	_, other := l.pod("c2", uid, "10.3.0.18/16")
	told, err := k.lookup(t.Context(), o, uid, []*ledger.Record{other}, first)
	if err != nil || told == nil || told.Rails.Rails[0].Addresses[0] != "10.3.0.18/16" {
		t.Errorf("another sandbox: %+v, %v", told, err)
	}
}

// A Lookup that has read the records of a pod before the pod ended must not make a directory after
// the end.
func TestDirectoryOfAPodThatEndedDoesNotComeBack(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	k := l.keeper
	o, err := k.open()
	if err != nil {
		t.Fatal(err)
	}
	look := k.beginScan()
	records, _ := o.ofContainer("c1")
	if err := l.ledger.Remove(r); err != nil {
		t.Fatal(err)
	}
	k.scan()
	if told, err := k.lookup(t.Context(), o, uid, records, look); told != nil || err != nil {
		t.Errorf("got %+v, %v", told, err)
	}
	if l.rails(uid) != nil || l.published() != 0 {
		t.Error("the directory is there")
	}
}

// A scan that began before an ADD has not seen the ADD's record. It must not remove what a Lookup
// has written since.
func TestDirectoryOfAPodThatBeganDuringAScanStays(t *testing.T) {
	l := newLab(t)
	k := l.keeper
	if err := k.read(); err != nil {
		t.Fatal(err)
	}
	look := k.beginRead()
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	if told, err := k.Lookup(t.Context(), "c1"); err != nil || told == nil {
		t.Fatalf("got %+v, %v", told, err)
	}
	if err := k.drop(k.opened, uid, look); err != nil {
		t.Fatal(err)
	}
	if l.rails(uid) == nil || l.published() != 1 {
		t.Error("the directory of the pod was removed")
	}
	if told, err := k.Lookup(t.Context(), "c1"); err != nil || told == nil || told.Rails.Generation != 1 {
		t.Errorf("got %+v, %v", told, err)
	}
}

// The node file has the rails of the NICs. Rails of an earlier node file are not published, even if
// the file changes while the NICs are read.
func TestNICsAreReadAgainAfterTheNodeFile(t *testing.T) {
	l := newLab(t)
	file := filepath.Join(t.TempDir(), "node.yaml")
	t.Setenv("RAIL_CNI_NODE_FILE", file)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	list, reads := l.keeper.list, 0
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l.keeper.list = func() (*inventory.NICList, error) {
		if reads++; reads == 1 {
			write("fabric: flat")
			l.keeper.refreshSettings()
		}
		return list()
	}
	for i, want := range []int{1, 2, 2, 3} {
		if i == 3 {
			write("publish: {mount: false}")
		}
		if _, err := l.keeper.Lookup(t.Context(), "c1"); err != nil || reads != want {
			t.Errorf("Lookup %d: the NICs were read %d times, want %d: %v", i, reads, want, err)
		}
		if i == 1 {
			l.spoil(uid)
		}
	}
}

// After a panic neither the keeper's lock nor the pod's token is held.
func TestPanicLeavesNothingLocked(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	if _, err := l.keeper.Lookup(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	k, broken := l.keeper, []*ledger.Record{nil}
	p := k.pods[uid]
	for name, f := range map[string]func(){
		"read": func() { k.holdNewest(map[string][]*ledger.Record{uid: broken}, k.beginScan()) },
		"forget": func() {
			k.watches["broken"] = nil
			defer delete(k.watches, "broken")
			k.forget()
		},
		"Lookup": func() {
			l.spoil(uid)
			k.list = func() (*inventory.NICList, error) { panic("a defect") }
			k.generation.Add(1)
			_, _ = k.lookup(context.Background(), k.opened, uid, []*ledger.Record{r}, k.beginScan())
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
		if !k.mu.TryLock() {
			t.Fatalf("%s: the keeper stays locked", name)
		}
		k.mu.Unlock()
		if len(p.token) != 0 || !k.reading.TryLock() {
			t.Fatalf("%s: the token or the facts stay locked", name)
		}
		k.reading.Unlock()
	}
}

// The time until a pod has its files counts once the files are written. It does not count for a pod
// that has waited for the agent.
func TestTimeUntilTheFilesCountsOnce(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	r.Created = l.keeper.started.Add(-time.Minute)
	l.put(r)
	count := func(container string) bool {
		t.Helper()
		before := l.timed()
		_, _ = l.keeper.Lookup(t.Context(), container)
		return l.timed() != before
	}
	if count("c1") {
		t.Error("a pod that is older than the agent counts")
	}
	_, young := l.pod("c2", "young", "10.3.0.18/16")
	l.put(young)
	inTheWay := filepath.Join(l.dir, "pods", "young")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if count("c2") || l.keeper.metrics.fileFailures != 1 {
		t.Error("files that were not written count")
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if !count("c2") {
		t.Error("the files do not count")
	}
	l.spoil("young")
	if count("c2") {
		t.Error("the files count twice")
	}
}

// BenchmarkLookup measures the cost for a container of a pod with eight rails whose files are
// written. It measures that while nothing happens, and while another such pod is built all the
// time, as happens when a pod changes its addresses all the time. It reports percentiles in
// microseconds.
func BenchmarkLookup(b *testing.B) {
	for _, busy := range []bool{false, true} {
		name := "alone"
		if busy {
			name = "another is built"
		}
		b.Run(name, func(b *testing.B) {
			l := newLab(b)
			l.podOf("c1", uid, 8)
			l.podOf("c2", "other", 8)
			if err := l.keeper.read(); err != nil {
				b.Fatal(err)
			}
			l.keeper.buildDue(b.Context())
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for busy && ctx.Err() == nil {
					l.spoil("other")
					l.keeper.buildDue(ctx)
				}
			}()
			var times []time.Duration
			for b.Loop() {
				began := time.Now()
				told, err := l.keeper.Lookup(b.Context(), "c1")
				if err != nil || len(told.Rails.Rails) != 8 {
					b.Fatal(told, err)
				}
				times = append(times, time.Since(began))
			}
			cancel()
			<-done
			slices.Sort(times)
			for _, p := range []int{50, 99} {
				b.ReportMetric(float64(times[(len(times)-1)*p/100].Microseconds()), fmt.Sprintf("p%d-µs", p))
			}
			b.ReportMetric(float64(times[len(times)-1].Microseconds()), "longest-µs")
		})
	}
}

// spoil makes the pod need a build, as a change of its GIDs does.
func (l *lab) spoil(name string) {
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.keeper.pods[name].changed()
}
