package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/pcie/pcietest"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// lab is a node with a ledger, and a keeper.
type lab struct {
	t      testing.TB
	dir    string
	ledger *ledger.Ledger
	keeper *Keeper
	log    *syncBuffer
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func newLab(t testing.TB) *lab {
	t.Helper()
	return newLabIn(t, t.TempDir())
}

// newLabIn is newLab with the state below a directory.
func newLabIn(t testing.TB, dir string) *lab {
	t.Helper()
	need.Root(t)
	l := &lab{t: t, dir: filepath.Join(dir, "state"), log: &syncBuffer{}}
	var err error
	if l.ledger, err = ledger.Open(l.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.ledger.Close)
	m := machineOf(t, pcietest.Function{Path: "pci0000:00/0000:00:05.0", Class: pcietest.ClassRoCE})
	dirs := notify.NewDirs(slog.New(slog.DiscardHandler))
	t.Cleanup(dirs.Close)
	l.keeper = NewKeeper(Options{
		StateDirs: []string{l.dir}, Node: "node-1", NodeFile: &nodefile.Reader{}, Dirs: dirs,
		Log: slog.New(slog.NewTextHandler(l.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	t.Cleanup(func() {
		if o := l.keeper.opened; o != nil {
			o.close()
		}
	})
	rail := 3
	l.keeper.list = func() (*inventory.NICList, error) {
		return &inventory.NICList{Tree: m.Tree, NICs: []inventory.NIC{{Name: "ens5np0", PCI: "0000:00:05.0", Rail: &rail, Mbps: 100000}}}, nil
	}
	return l
}

// run runs the keeper until the test ends.
func (l *lab) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { l.keeper.Run(ctx); close(done) }()
	l.t.Cleanup(func() { cancel(); <-done })
}

// pod makes a pod with a macvlan "net1". It returns the pod's namespace and its record, which is
// not in the ledger yet.
func (l *lab) pod(container, uid, address string) (*testnet.Netns, *ledger.Record) {
	l.t.Helper()
	pod := testnet.NewNetns(l.t, "pod")
	pod.IP("link", "add", "ens5np0", "type", "veth", "peer", "name", "leaf0")
	pod.IP("link", "set", "leaf0", "up")
	pod.IP("link", "add", "net1", "link", "ens5np0", "mtu", "1400", "type", "macvlan", "mode", "bridge")
	pod.IP("addr", "add", address, "dev", "net1")
	pod.IP("link", "set", "ens5np0", "up")
	pod.IP("link", "set", "net1", "up")
	index, err := pod.Index("net1")
	if err != nil {
		l.t.Fatal(err)
	}
	host, err := netns.Current()
	if err != nil {
		l.t.Fatal(err)
	}
	defer host.Close()
	rail := 3
	return pod, &ledger.Record{
		Key: ledger.Key{ContainerID: container, IfName: "net1"}, Network: "rails", Plugin: "macvlan", Phase: ledger.Lent, Created: time.Now().UTC(),
		Pod:   &ledger.Pod{Namespace: "default", Name: "pod-" + container, UID: uid},
		Netns: ledger.Netns{ID: pod.ID, Path: pod.Path}, HostNetns: ledger.Netns{ID: host.ID},
		Child: &ledger.Child{Master: "ens5np0", Mode: "bridge", PodIndex: index}, Addresses: []string{address}, Gateways: []string{"10.3.0.1"}, Rail: &rail,
	}
}

func (l *lab) put(r *ledger.Record) {
	l.t.Helper()
	if err := l.ledger.Put(r); err != nil {
		l.t.Fatal(err)
	}
}

// rails returns the file rails.json of a pod, or nil if there is none.
func (l *lab) rails(name string) *railinfo.Rails {
	l.t.Helper()
	data, err := os.ReadFile(filepath.Join(l.dir, "pods", name, "rails.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		l.t.Fatal(err)
	}
	r := &railinfo.Rails{}
	if err := json.Unmarshal(data, r); err != nil {
		l.t.Fatalf("%v\n%s", err, data)
	}
	return r
}

// await waits until is returns true.
func (l *lab) await(what string, is func() bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 30*time.Second)
	defer cancel()
	if err := wait.Until(ctx, 20*time.Millisecond, func() (bool, error) { return is(), nil }); err != nil {
		l.t.Fatalf("%s: %v\n%s", what, err, l.log)
	}
}

const uid = "6f1c0a52-8d3e-4a57-9a0b-0e6f1d2c3b4a"

func TestKeeperFollowsTheLedger(t *testing.T) {
	l := newLab(t)
	l.run()
	pod, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	l.await("the files come", func() bool { return l.rails(uid) != nil })
	got := l.rails(uid)
	if got.Schema != railinfo.Schema || got.Generation != 1 || got.Pod != (railinfo.PodRef{UID: uid, Namespace: "default", Name: "pod-c1", Node: "node-1"}) || len(got.Rails) != 1 {
		t.Fatalf("got %+v", got)
	}
	now, err := link.ByIndex(pod.Netns, r.Child.PodIndex)
	if err != nil {
		t.Fatal(err)
	}
	rail := got.Rails[0]
	if rail.IfName != "net1" || *rail.Rail != 3 || rail.MTU != 1400 || rail.MAC != now.MAC.String() || rail.PCI != "0000:00:05.0" ||
		rail.State != inventory.LinkUp || rail.SpeedMbps != 10000 || !slices.Equal(rail.Addresses, []string{"10.3.0.17/16"}) || rail.Gateway != "10.3.0.1" || *rail.NUMA != 0 {
		t.Errorf("got %+v", rail)
	}
	if l.published() != 1 {
		t.Errorf("%d pods, %d panics", l.published(), l.keeper.reporter.Panics())
	}

	second := *r
	second.IfName, second.Rail = "net0", nil
	second.Created = second.Created.Add(time.Second)
	second.RDMA = nil
	second.Loan = nil
	four := 4
	second.Rail = &four
	l.put(&second)
	l.await("the second rail comes", func() bool { return len(l.rails(uid).Rails) == 2 })
	if got := l.rails(uid); got.Generation != 2 || *got.Rails[1].Rail != 4 {
		t.Errorf("got %+v", got)
	}
	for _, record := range []*ledger.Record{r, &second} {
		if err := l.ledger.Remove(record); err != nil {
			t.Fatal(err)
		}
	}
	l.await("the files go", func() bool {
		_, err := os.Lstat(filepath.Join(l.dir, "pods", uid))
		return errors.Is(err, fs.ErrNotExist)
	})
	l.await("the keeper forgets it", func() bool { return l.published() == 0 })
}

// The kernel returns a pod's NIC once nothing has the namespace open any more.
func TestKeeperDoesNotKeepANamespaceAlive(t *testing.T) {
	l := newLab(t)
	l.run()
	pod, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	l.await("the files come", func() bool { return l.rails(uid) != nil })
	pod.Delete() // it fails if the namespace stays
}

// A hook asks at once after ADD, before the keeper may have seen the record, or without a running
// keeper.
func TestLookupSeesAnADDThatHasJustEnded(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	if told, err := l.keeper.Lookup(t.Context(), "c1"); told != nil || err != nil {
		t.Fatalf("before ADD: %+v, %v", told, err)
	}
	r.Phase = ledger.Lending
	l.put(r)
	if told, err := l.keeper.Lookup(t.Context(), "c1"); told != nil || err != nil {
		t.Fatalf("during ADD: %+v, %v", told, err)
	}
	r.Phase = ledger.Lent
	l.put(r)
	told, err := l.keeper.Lookup(t.Context(), "c1")
	if err != nil || told == nil {
		t.Fatalf("after ADD: %+v, %v", told, err)
	}
	if want := filepath.Join(l.dir, "pods", uid); told.Dir != want || l.rails(uid) == nil || !told.Settings.Mount || told.Rails.Rails[0].IfName != "net1" {
		t.Errorf("got %+v", told)
	}
	if told, err := l.keeper.Lookup(t.Context(), "c2"); told != nil || err != nil {
		t.Errorf("of another container: %+v, %v", told, err)
	}
	r.Phase = ledger.Returning
	l.put(r)
	if told, err := l.keeper.Lookup(t.Context(), "c1"); told != nil || err != nil {
		t.Errorf("during DEL: %+v, %v", told, err)
	}
}

// Without a UID the name of the directory is the container's ID. A UID that is a path is refused.
func TestDirectoryOfAPodHasASafeName(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", "", "10.3.0.17/16")
	for _, bad := range []string{"", "../../etc", "a/b", ".", "..", "a b", strings.Repeat("a", 200)} {
		r.Pod.UID = bad
		l.put(r)
		told, err := l.keeper.Lookup(t.Context(), "c1")
		if err != nil || told.Dir != filepath.Join(l.dir, "pods", "c1") {
			t.Errorf("UID %q: %+v, %v", bad, told, err)
		}
	}
	r.Pod = nil
	l.put(r)
	if told, err := l.keeper.Lookup(t.Context(), "c1"); err != nil || told.Rails.Pod.Name != "" {
		t.Errorf("without a pod: %+v, %v", told, err)
	}
}

// A pod whose sandbox was made again has two containers for a while.
func TestPodHasTheRailsOfItsNewestSandbox(t *testing.T) {
	l := newLab(t)
	_, old := l.pod("c1", uid, "10.3.0.17/16")
	_, young := l.pod("c2", uid, "10.3.0.18/16")
	young.Created = old.Created.Add(time.Minute)
	l.put(young)
	l.put(old)
	l.run()
	l.await("the files come", func() bool { return l.rails(uid) != nil })
	if got := l.rails(uid).Rails; len(got) != 1 || got[0].Addresses[0] != "10.3.0.18/16" {
		t.Errorf("got %+v", got)
	}
}

// The generation continues where the earlier agent ended, and does not change when nothing has
// changed.
func TestGenerationGoesOnAfterARestart(t *testing.T) {
	l := newLab(t)
	pod, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	lookup := func() uint64 {
		t.Helper()
		told, err := l.keeper.Lookup(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		return told.Rails.Generation
	}
	restart := func() {
		list := l.keeper.list
		l.keeper = NewKeeper(l.keeper.Options)
		l.keeper.list = list
	}
	if got := lookup(); got != 1 {
		t.Errorf("first: %d", got)
	}
	restart()
	if got := lookup(); got != 1 {
		t.Errorf("after a restart: %d", got)
	}
	restart()
	pod.IP("addr", "add", "10.3.0.99/16", "dev", "net1")
	if got := lookup(); got != 2 || len(l.rails(uid).Rails[0].Addresses) != 2 {
		t.Errorf("after a change: %d, %+v", got, l.rails(uid))
	}
}

// A panic is a defect of the publisher. NICs must still return.
func TestPanicDoesNotEndTheProcess(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	list := l.keeper.list
	var mu sync.Mutex
	panics := 0
	l.keeper.list = func() (*inventory.NICList, error) {
		mu.Lock()
		defer mu.Unlock()
		if panics++; panics <= 2 {
			panic("a defect")
		}
		return list()
	}
	l.put(r)
	if told, err := l.keeper.Lookup(t.Context(), "c1"); err == nil || told != nil {
		t.Errorf("got %+v", told)
	}
	l.run()
	l.await("it starts again", func() bool { return l.rails(uid) != nil })
	if l.keeper.reporter.Panics() != 2 {
		t.Errorf("%d pods, %d panics", l.published(), l.keeper.reporter.Panics())
	}
	if !strings.Contains(l.log.String(), "a defect") {
		t.Errorf("the log is %s", l.log)
	}
}

func TestPlainMacvlanIsNoRail(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	r.Rail = nil
	l.put(r)
	if told, err := l.keeper.Lookup(t.Context(), "c1"); told != nil || err != nil {
		t.Errorf("got %+v, %v", told, err)
	}
}

// A record on a disk may be from another boot. A record in a directory that several host netns
// share may belong to another host netns. The NICs and the pod's netns that such a record names may
// belong to others now.
func TestPodIsToldOfRailsThatItHasHereAndNow(t *testing.T) {
	l := newLabIn(t, testnet.OnDisk(t))
	for name, change := range map[string]func(*ledger.Record){
		"another boot":       func(r *ledger.Record) { r.BootID = "11111111-2222-3333-4444-555555555555" },
		"another host netns": func(r *ledger.Record) { r.HostNetns.Inode += 1 << 20; r.HostNetns.Cookie += 1 << 40 },
		"neither":            func(*ledger.Record) {},
	} {
		_, r := l.pod("c1", uid, "10.3.0.17/16")
		change(r)
		l.put(r)
		told, err := l.keeper.Lookup(t.Context(), "c1")
		if err != nil || (told != nil) != (name == "neither") {
			t.Errorf("%s: a Lookup returns %+v, %v", name, told, err)
		}
		if err := l.keeper.read(); err != nil {
			t.Fatal(err)
		}
		if published := l.published(); (published == 1) != (name == "neither") {
			t.Errorf("%s: %d pods are told", name, published)
		}
		if err := errors.Join(l.ledger.Remove(r), l.keeper.read()); err != nil {
			t.Fatal(err)
		}
	}
}

// An unreadable record may belong to a pod that exists, so nothing is removed then.
func TestNothingIsRemovedWhileARecordCannotBeRead(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	if _, err := l.keeper.Lookup(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(l.dir, "attachments", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.WriteFile(files[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.keeper.scan()
	if l.rails(uid) == nil {
		t.Error("the files are gone")
	}
}

// The node file is read again when it changes.
func TestSettingsFollowTheNodeFile(t *testing.T) {
	l := newLab(t)
	file := filepath.Join(t.TempDir(), "node.yaml")
	t.Setenv("RAIL_CNI_NODE_FILE", file)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	for i, c := range []struct {
		text  string
		mount bool
	}{{"", true}, {"publish: {mount: false}", false}, {"publish: {mount: tru", false}, {"fabric: flat", true}} {
		if c.text != "" {
			if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		told, err := l.keeper.Lookup(t.Context(), "c1")
		if err != nil || told.Settings.Mount != c.mount {
			t.Errorf("%d, %q: %+v, %v", i, c.text, told, err)
		}
	}
}

// BenchmarkLookupOfAPodWithoutRails measures the cost for a pod without rails, on a node with many
// pods that have rails.
func BenchmarkLookupOfAPodWithoutRails(b *testing.B) {
	need.Root(b)
	dir := filepath.Join(b.TempDir(), "state")
	records, err := ledger.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer records.Close()
	for i := range 800 {
		r := &ledger.Record{Key: ledger.Key{ContainerID: fmt.Sprintf("%064d", i), IfName: "net1"}, Phase: ledger.Lent, Child: &ledger.Child{Master: "ens5np0"}}
		if err := records.Put(r); err != nil {
			b.Fatal(err)
		}
	}
	k := NewKeeper(Options{StateDirs: []string{dir}, NodeFile: &nodefile.Reader{}, Log: slog.New(slog.DiscardHandler)})
	for b.Loop() {
		if told, err := k.Lookup(b.Context(), "none"); told != nil || err != nil {
			b.Fatal(told, err)
		}
	}
}

// ADDs and DELs that follow each other closely must not prevent the keeper from reading the GID
// tables.
func TestKeeperLooksAtGIDsWhileTheLedgerChanges(t *testing.T) {
	l := newLab(t)
	l.run()
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	l.await("the files come", func() bool { return l.rails(uid) != nil })
	l.keeper.mu.Lock()
	l.keeper.watches["gone"] = &watched{watch: &ibaddr.GIDWatch{}, lent: true, pods: map[string]bool{uid: true}}
	l.keeper.mu.Unlock()
	other := filepath.Join(l.dir, "attachments", "other")
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
		if err := os.WriteFile(other, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		l.keeper.mu.Lock()
		_, is := l.keeper.watches["gone"]
		l.keeper.mu.Unlock()
		if !is {
			return
		}
	}
	t.Error("no look at the table")
}

// A record that cannot be read stays unreadable, while other pods come and go.
func TestDamagedRecordKeepsNoOtherPod(t *testing.T) {
	l := newLab(t)
	_, r := l.pod("c1", uid, "10.3.0.17/16")
	l.put(r)
	_, second := l.pod("c2", "stays", "10.3.0.18/16")
	l.put(second)
	if err := l.keeper.read(); err != nil {
		t.Fatal(err)
	}
	l.keeper.buildDue(t.Context())
	if l.rails(uid) == nil || l.rails("stays") == nil {
		t.Fatal("no files")
	}
	if err := os.WriteFile(filepath.Join(l.dir, "attachments", "c9@net1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.ledger.Remove(r); err != nil {
		t.Fatal(err)
	}
	if err := l.keeper.read(); err != nil {
		t.Fatal(err)
	}
	if _, errs := l.ledger.List(); len(errs) == 0 {
		t.Error("the damaged record can be read")
	}
	if l.rails(uid) != nil || l.rails("stays") == nil || l.published() != 1 {
		t.Errorf("directories: %v, %v", l.rails(uid), l.rails("stays"))
	}
}

// Root in a pod can add any number of addresses.
func TestPodIsToldOfAFewAddresses(t *testing.T) {
	l := newLab(t)
	pod, r := l.pod("c1", uid, "10.3.0.17/16")
	for i := range maxAddresses + 10 {
		pod.IP("addr", "add", fmt.Sprintf("10.4.%d.1/32", i), "dev", "net1")
	}
	l.put(r)
	told, err := l.keeper.Lookup(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	if got := told.Rails.Rails[0].Addresses; len(got) != maxAddresses || got[0] != "10.3.0.17/16" {
		t.Errorf("%d addresses: %q", len(got), got)
	}
}

// A sandbox that replaces another one gets nothing that the other one had.
func TestLookupDoesNotTellWhatAFormerSandboxHad(t *testing.T) {
	l := newLab(t)
	_, old := l.pod("c1", uid, "10.3.0.17/16")
	l.put(old)
	if told, err := l.keeper.Lookup(t.Context(), "c1"); err != nil || told == nil {
		t.Fatalf("got %+v, %v", told, err)
	}
	list := l.keeper.list
	failing := func() (*inventory.NICList, error) { return nil, errors.New("no list") }
	l.keeper = NewKeeper(l.keeper.Options)
	l.keeper.list = failing
	if err := l.ledger.Remove(old); err != nil {
		t.Fatal(err)
	}
	_, young := l.pod("c2", uid, "10.3.0.18/16")
	l.put(young)
	if told, err := l.keeper.Lookup(t.Context(), "c2"); err == nil || told != nil {
		t.Errorf("got %+v, %v", told, err)
	}
	l.keeper.list = list
	told, err := l.keeper.Lookup(t.Context(), "c2")
	if err != nil || told.Rails.Generation != 2 || told.Rails.Rails[0].Addresses[0] != "10.3.0.18/16" {
		t.Errorf("got %+v, %v", told, err)
	}
}

// published returns the number of pods that the metrics show.
func (l *lab) published() int {
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	return len(l.keeper.pods)
}

// timed returns the number of pods in the histogram of the time until their files were written.
func (l *lab) timed() uint64 {
	count, _, _ := l.keeper.metrics.took.Read()
	return count
}
