package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Times of the keeper.
const (
	pollGIDs = 500 * time.Millisecond // time between scans of the GID tables of rails
	slow     = 30 * time.Second       // time between scans of everything: no message reports a link's state
	rest     = 500 * time.Millisecond // longest pause between two passes, which otherwise is as long as the pass
	minGap   = 5 * time.Millisecond   // least pause between two passes
	factsFor = time.Minute            // the age at which the NICs' facts are read again
	again    = 5 * time.Second        // pause after a failure or a panic
)

// Options configures a [Keeper].
type Options struct {
	StateDirs []string // state directories of the plugins; the first one gets the directory "pods"
	Node      string   // the node's name in the cluster
	// Client writes annotations, if the node file requires them. With nil no annotations are
	// written.
	Client *kube.Client
	// NodeFile is the process's reader of the node file.
	NodeFile *nodefile.Reader
	Dirs     *notify.Dirs // the process's Dirs, which reports changes of records
	Log      *slog.Logger
	// Notify, if it is not nil, passes on notices.
	Notify func(component.Notice)
}

// Keeper keeps the files of each pod that holds a rail. Its methods are safe for concurrent
// use.
//
// A Lookup waits for no other pod than its own: mu is held only while fields are used, never while
// something is read or written. Only one goroutine at a time builds a pod's files, and it holds the
// pod's token.
type Keeper struct {
	Options
	annotator *annotator
	reporter  *component.Reporter

	// list is inventory.NICs, except in tests.
	list func() (*inventory.NICList, error)

	opening sync.Mutex            // guards opened
	opened  *opened               // nil until open has succeeded
	facts   atomic.Pointer[facts] // nil until the facts have been read
	reading sync.Mutex            // held by the reader of the facts
	started time.Time             // when NewKeeper was called

	refreshing sync.Mutex    // held by the reader of the settings
	generation atomic.Uint64 // generation of the node file from which the settings come, 0 for none

	mu       sync.Mutex
	settings railinfo.Settings
	pods     map[string]*pod // by the names of their directories
	scans    uint64          // number of the last scan of the ledgers that Run or a Lookup has begun
	lastRead uint64          // number of the last scan that read has begun
	watches  watches         // only Run closes a watch
	metrics  metrics

	left bool // a directory was not removed, because its pod was being built; only Run uses it
}

// opened has what the keeper needs. It is not changed after it is made.
type opened struct {
	host    *netns.Netns
	ledgers []*ledger.Ledger
	caches  []*ledger.Cache // caches of the ledgers
	files   *files
}

// facts are the node's NICs at one point in time.
type facts struct {
	list *inventory.NICList
	time time.Time

	generation uint64 // generation of the node file (which has the rails) when the reading began
}

// pod is a pod that holds a rail. The keeper's mu guards it.
type pod struct {
	token   chan struct{} // has one element while its files are built or removed
	scans   uint64        // the last scan that began before its records were read
	records []*ledger.Record
	rails   *railinfo.Rails // the content of its files, nil until they are written

	// changes counts changes of records, GIDs and settings. built is the value that changes had
	// when the last build without errors began. due requests a build without a change.
	changes, built uint64
	due            bool
	next           time.Time // when Run may build it again

	counted bool // the metrics have the pod: its first files are written
}

// work is the state that a pod had when its build began.
type work struct {
	records  []*ledger.Record
	settings railinfo.Settings
	changes  uint64
	before   *railinfo.Rails
}

func newPod() *pod { return &pod{token: make(chan struct{}, 1)} }

// changed requests a build. mu is held.
func (p *pod) changed() {
	p.changes++
	p.next = time.Time{}
}

// current reports whether the files contain all known changes. mu is held.
func (p *pod) current() bool { return p.built == p.changes && p.rails != nil }

// NewKeeper returns a Keeper that has done nothing yet. The caller must call Run once.
func NewKeeper(o Options) *Keeper {
	k := &Keeper{Options: o, reporter: component.NewReporter("publisher", o.Log, o.Notify), metrics: newMetrics(), started: time.Now(), settings: railinfo.SettingsOf(nil), pods: map[string]*pod{}, watches: watches{}}
	k.list = func() (*inventory.NICList, error) { return inventory.NICsBy(o.NodeFile, o.StateDirs...) }
	k.annotator = newAnnotator(k)
	return k
}

// Publication is the rail information of a pod, and where its files are.
type Publication struct {
	Rails    *railinfo.Rails
	Settings railinfo.Settings // settings of the node, without the pod's annotation
	// Dir is the directory of the pod's files on the host.
	Dir string
}

// Lookup returns the current rail information of the pod of a sandbox, or nil if the pod holds no rail. It
// reads the ledger, so that an ADD that has just ended counts. It writes the files before it returns. It may
// be called before Run, and after a panic in Run.
func (k *Keeper) Lookup(ctx context.Context, sandboxID string) (*Publication, error) {
	return component.Value(k.reporter, func() (*Publication, error) { return k.find(ctx, sandboxID) })
}

// find is Lookup without the recovery from a panic.
func (k *Keeper) find(ctx context.Context, sandboxID string) (*Publication, error) {
	o, err := k.open()
	if err != nil {
		return nil, err
	}
	k.refreshSettings()
	for {
		scan := k.beginScan()
		records, errs := o.ofContainer(sandboxID)
		if len(records) == 0 || ctx.Err() != nil {
			return nil, errors.Join(append(errs, ctx.Err())...)
		}
		name := nameOf(records[0])
		if name == "" {
			return nil, fmt.Errorf("%s: neither the pod's UID nor the container's ID can be the name of a directory", records[0].Holder())
		}
		if publication, err := k.lookup(ctx, o, name, records, scan); publication != nil || err != nil {
			return publication, err
		}
	}
}

// beginScan returns the number of a scan of the ledgers that is about to begin.
func (k *Keeper) beginScan() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scans++
	return k.scans
}

// lookup is Lookup for the pod with these records, which were read after the scan began. It returns
// nil without an error if the records must be read again.
func (k *Keeper) lookup(ctx context.Context, o *opened, name string, records []*ledger.Record, scan uint64) (*Publication, error) {
	p, publication := k.holdCurrent(o, name, records, scan)
	if p == nil || publication != nil {
		return publication, nil
	}
	select {
	case p.token <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.token }()
	publication, w := k.takeHeld(o, name, p, records, scan)
	if w == nil {
		return publication, nil
	}
	rails, err := k.build(o, name, p, w)
	if rails == nil {
		return nil, err
	}
	return &Publication{Rails: rails, Settings: w.settings, Dir: o.files.dir(name)}, nil
}

// holdCurrent sets the records that a Lookup has read. It returns the pod, or nil if the records
// must be read again. It also returns the pod's publication, if that is current.
func (k *Keeper) holdCurrent(o *opened, name string, records []*ledger.Record, scan uint64) (*pod, *Publication) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods[name] == nil && scan < k.lastRead { // the pod may have ended since
		return nil, nil
	}
	p := k.hold(name, records, scan)
	if !p.current() {
		return p, nil
	}
	return p, k.publicationOf(o, name, p)
}

// takeHeld is holdCurrent for a caller that holds the token of p. It returns the pod's publication
// if that is current. Otherwise it returns what to build. It returns neither if the pod has been
// removed.
func (k *Keeper) takeHeld(o *opened, name string, p *pod, records []*ledger.Record, scan uint64) (*Publication, *work) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods[name] != p {
		return nil, nil
	}
	k.hold(name, records, scan)
	if p.current() {
		return k.publicationOf(o, name, p), nil
	}
	return nil, k.take(p)
}

// take returns what to build now. mu is held.
func (k *Keeper) take(p *pod) *work {
	p.due = false
	return &work{records: p.records, settings: k.settings, changes: p.changes, before: p.rails}
}

// publicationOf returns the pod's publication. mu is held.
func (k *Keeper) publicationOf(o *opened, name string, p *pod) *Publication {
	return &Publication{Rails: p.rails, Settings: k.settings, Dir: o.files.dir(name)}
}

// refreshSettings reads the settings from the node file if the file has changed. If the file cannot
// be read, the settings stay the same: no NIC is lent in that case either.
func (k *Keeper) refreshSettings() {
	k.refreshing.Lock()
	defer k.refreshing.Unlock()
	file, generation, err := k.NodeFile.Read()
	before := k.generation.Load()
	if generation == before || err != nil && before != 0 {
		return
	}
	k.generation.Store(generation)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settings = railinfo.SettingsOf(file)
	for _, p := range k.pods {
		p.changed()
	}
}

// open opens what the keeper needs, on the first call.
func (k *Keeper) open() (*opened, error) {
	k.opening.Lock()
	defer k.opening.Unlock()
	if k.opened != nil {
		return k.opened, nil
	}
	o := &opened{}
	var err error
	if o.host, err = netns.Current(); err != nil {
		return nil, err
	}
	for _, dir := range k.StateDirs {
		l, err := ledger.Open(dir)
		if err != nil {
			o.close()
			return nil, err
		}
		o.ledgers, o.caches = append(o.ledgers, l), append(o.caches, l.NewCache())
	}
	if o.files, err = openFiles(k.StateDirs[0]); err != nil {
		o.close()
		return nil, err
	}
	k.opened = o
	return o, nil
}

func (o *opened) close() {
	for _, l := range o.ledgers {
		l.Close()
	}
	if o.files != nil {
		o.files.close()
	}
	o.host.Close()
}

// ofContainer returns the records of rails of a container, and the errors of records that could not
// be read.
func (o *opened) ofContainer(id string) (records []*ledger.Record, errs []error) {
	for _, cache := range o.caches {
		found, unread := cache.HeldBy(id, o.host.ID, IsRail)
		errs = append(errs, unread...)
		records = append(records, found...)
	}
	return records, errs
}

// close is called when Run ends. Files that a Lookup uses stay open until the process ends.
func (k *Keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watches.close()
}

// hold sets the records of a pod, which were read after the scan with this number began. mu is
// held.
func (k *Keeper) hold(name string, records []*ledger.Record, scan uint64) *pod {
	p := k.pods[name]
	if p == nil {
		p = newPod()
		k.pods[name] = p
	}
	// The records of a later scan are newer. But a Lookup must not show a sandbox the records of
	// another one.
	if scan < p.scans && p.records[0].ContainerID == records[0].ContainerID {
		return p
	}
	p.scans = max(p.scans, scan)
	if !slices.EqualFunc(p.records, records, func(a, b *ledger.Record) bool {
		return a == b || a.Same(b) && a.Updated.Equal(b.Updated)
	}) {
		p.records = records
		p.changed()
	}
	return p
}

// Run keeps the files up to date until ctx ends. It starts again after a panic, which does not end
// the process.
func (k *Keeper) Run(ctx context.Context) {
	defer k.close()
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { k.annotator.run(ctx) })
	k.reporter.Run(ctx, k.run)
}

// run is one run, which ends when ctx ends or something panics.
func (k *Keeper) run(ctx context.Context) {
	changed := component.NewTrigger()
	records := k.Dirs.Subscribe(changed.Fire)
	defer records.Close()
	var full time.Time
	polled := time.Now()
	began := polled // start of a pass, which begins with what woke Run
	for ctx.Err() == nil {
		for _, dir := range k.StateDirs {
			records.Watch(filepath.Join(dir, "attachments"))
		}
		if now := time.Now(); !now.Before(full) {
			full = now.Add(slow)
			k.scan()
			k.allDue()
		}
		if k.refreshFacts() {
			k.allDue()
		}
		k.buildDue(ctx)
		took := time.Since(began)
		pause := time.Until(full)
		if k.busy() {
			pause = min(pause, pollGIDs)
		}
		if time.Since(polled) > 2*pollGIDs { // ADDs that follow each other closely must not prevent a poll
			polled = time.Now()
			k.poll()
		}
		_ = wait.For(ctx, min(max(took, minGap), rest))
		fired := changed.Wait(ctx, pause)
		began = time.Now()
		if fired {
			k.scan()
			continue
		}
		polled = began
		k.poll()
		if k.left {
			k.scan()
		}
	}
}

// busy reports whether there are GIDs to poll, or pods to be built or removed.
func (k *Keeper) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.due || !p.current() {
			return true
		}
	}
	return len(k.watches) > 0 || k.left
}

// allDue makes the next buildDue build all pods. Until then the files of the pods count as current.
func (k *Keeper) allDue() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		p.due, p.next = true, time.Time{}
	}
}

// scan reads the ledgers.
func (k *Keeper) scan() {
	err := k.read()
	k.report("ledgers", err)
}

// buildDue writes the files of the pods that have changed, one by one.
func (k *Keeper) buildDue(ctx context.Context) {
	o, err := k.open()
	if err != nil {
		return // the scan has reported it
	}
	k.mu.Lock()
	names := slices.Sorted(maps.Keys(k.pods))
	k.mu.Unlock()
	for _, name := range names {
		if ctx.Err() != nil {
			return
		}
		if p, w := k.takeDue(name); p != nil {
			if err := k.buildHeld(o, name, p, w); err != nil {
				k.Log.Debug("cannot read all of a pod's rails", "pod", name, "err", err)
			}
		}
	}
}

// takeDue returns a pod that is due, with its token held, and what to build. It returns nil if the
// pod is not due, or if a Lookup is building it.
func (k *Keeper) takeDue(name string) (*pod, *work) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[name]
	if p == nil || !p.due && p.current() || time.Now().Before(p.next) {
		return nil, nil
	}
	select {
	case p.token <- struct{}{}:
		return p, k.take(p)
	default:
		return nil, nil
	}
}

// read reads the ledgers, and removes the directories of pods that hold no rail.
func (k *Keeper) read() error {
	k.left = false
	o, err := k.open()
	if err != nil {
		return err
	}
	k.refreshSettings()
	scan := k.beginRead()
	newest, unread := o.newest()
	names := k.holdNewest(newest, scan)
	var errs []error
	if !unread {
		before, err := o.files.names() // directories of an earlier agent
		names, errs = append(names, before...), append(errs, err)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		// An unreadable record may belong to a pod that still exists. The record stays unreadable
		// until somebody repairs it, while other pods come and go.
		if newest[name] == nil && (!unread || k.without(o, name)) {
			errs = append(errs, k.drop(o, name, scan))
		}
	}
	k.forget()
	return errors.Join(errs...)
}

// beginRead is beginScan for read.
func (k *Keeper) beginRead() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scans++
	k.lastRead = k.scans
	return k.scans
}

// holdNewest sets the records that read has read, and returns the names of all pods.
func (k *Keeper) holdNewest(newest map[string][]*ledger.Record, scan uint64) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, records := range newest {
		if p := k.pods[name]; p == nil || p.scans < scan { // otherwise a Lookup has read them since
			k.hold(name, records, scan)
		}
	}
	return slices.Collect(maps.Keys(k.pods))
}

// forget ends the watches and annotations of pods that were removed.
func (k *Keeper) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watches.keep(func(name string) bool { return k.pods[name] != nil })
	k.annotator.keep(slices.Collect(maps.Keys(k.pods)))
}

// newest returns the records of rails, by the names of the pods' directories. For each pod it
// returns only the records of the newest container. unread reports whether some records could not
// be read.
func (o *opened) newest() (newest map[string][]*ledger.Record, unread bool) {
	newest = map[string][]*ledger.Record{}
	for _, cache := range o.caches {
		records, errs := cache.Held(o.host.ID, IsRail) // the keeper of NICs reports unreadable ones
		unread = unread || len(errs) > 0
		for _, r := range records {
			name := nameOf(r)
			if name == "" {
				continue
			}
			if have := newest[name]; len(have) > 0 && have[0].ContainerID != r.ContainerID {
				if r.Created.Before(have[len(have)-1].Created) {
					continue
				}
				newest[name] = nil // a sandbox that ends, and the sandbox that replaces it
			}
			newest[name] = append(newest[name], r)
		}
	}
	return newest, unread
}

// without reports whether it is certain that the ledgers have no rail of the pod.
func (k *Keeper) without(o *opened, name string) bool {
	k.mu.Lock()
	p := k.pods[name]
	if p == nil || len(p.records) == 0 {
		k.mu.Unlock()
		return false
	}
	containerID := p.records[0].ContainerID
	k.mu.Unlock()
	for _, cache := range o.caches {
		if found, unread := cache.HeldBy(containerID, o.host.ID, IsRail); len(unread) > 0 || len(found) > 0 {
			return false
		}
	}
	return true
}

// drop removes a pod and its directory, unless a later scan has found records. A Lookup of the pod
// waits until the pod is removed, and then builds it again.
func (k *Keeper) drop(o *opened, name string, scan uint64) error {
	k.mu.Lock()
	p := k.pods[name]
	if p == nil {
		p = newPod()
		k.pods[name] = p
	}
	if p.scans >= scan {
		k.mu.Unlock()
		return nil
	}
	select {
	case p.token <- struct{}{}:
	default:
		k.left = true
		k.mu.Unlock()
		return nil
	}
	defer func() { <-p.token }()
	p.rails = nil
	k.mu.Unlock()
	err := o.files.remove(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.scans < scan {
		delete(k.pods, name)
		k.reporter.Over(name)
	}
	return err
}

// refreshFacts reads the NICs again if their facts are old and a pod holds a NIC. It reports
// whether it has read them. It reads the first facts in advance, because a pod would have to wait
// for them. It does not wait for a Lookup that is reading the facts.
func (k *Keeper) refreshFacts() bool {
	f := k.facts.Load()
	k.mu.Lock()
	due := f == nil || len(k.pods) > 0 && (time.Since(f.time) > factsFor || f.generation != k.generation.Load())
	k.mu.Unlock()
	if !due || !k.reading.TryLock() {
		return false
	}
	defer k.reading.Unlock()
	_, err := k.readFacts()
	if err != nil {
		k.Log.Warn("cannot read the NICs", "err", err)
	}
	return err == nil
}

// readFacts reads the NICs. reading is held.
func (k *Keeper) readFacts() (*inventory.NICList, error) {
	generation := k.generation.Load()
	list, err := k.list()
	if err != nil {
		return nil, err
	}
	k.facts.Store(&facts{list: list, time: time.Now(), generation: generation})
	return list, nil
}

// nics returns the NICs for these records. It reads them if they have not been read yet, if the
// node file has changed, or if the NIC of a record is missing.
func (k *Keeper) nics(records []*ledger.Record) (*inventory.NICList, error) {
	if f := k.facts.Load(); k.suffice(f, records) {
		return f.list, nil
	}
	k.reading.Lock()
	defer k.reading.Unlock()
	if f := k.facts.Load(); k.suffice(f, records) {
		return f.list, nil
	}
	return k.readFacts()
}

// suffice reports whether the facts belong to the current node file, and are either new or have the
// NICs of all records. f may be nil.
func (k *Keeper) suffice(f *facts, records []*ledger.Record) bool {
	if f == nil || f.generation != k.generation.Load() {
		return false
	}
	lacks := func(r *ledger.Record) bool {
		var d *ledger.RDMADevice
		if r.RDMA != nil && len(r.RDMA.Devices) > 0 {
			d = &r.RDMA.Devices[0]
		}
		return nicOf(f.list, r, d) == nil
	}
	return time.Since(f.time) < again || !slices.ContainsFunc(records, lacks)
}

// buildHeld calls build for a caller that holds the pod's token, and releases the token.
func (k *Keeper) buildHeld(o *opened, name string, p *pod, w *work) error {
	defer func() { <-p.token }()
	_, err := k.build(o, name, p, w)
	return err
}

// build writes the files of a pod, and returns the document that it has written. If some of it
// cannot be read, build returns the rest and an error. If the NICs cannot be read, build returns
// nil and leaves the files unchanged. The caller holds the pod's token.
func (k *Keeper) build(o *opened, name string, p *pod, w *work) (*railinfo.Rails, error) {
	before := w.before
	if before == nil {
		o.files.clean(name)
		before = o.files.read(name) // the document of an earlier agent, whose generation continues
	}
	list, err := k.nics(w.records)
	if err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		// The document may belong to an earlier sandbox, whose devices others have now.
		p.rails, p.next = nil, time.Now().Add(again)
		return nil, err
	}
	rails, err := k.readPod(o, name, w.records, list)
	rails.Generation = 1
	if before != nil {
		rails.Generation = before.Generation
		if !rails.Same(before) {
			rails.Generation++
		}
	}
	written := o.files.write(name, rails, w.settings, railinfo.Machine{Tree: list.Tree, Root: "/"})
	err = errors.Join(err, written)
	k.report(name, written)
	k.built(p, rails, w.changes, err)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case written != nil:
		k.metrics.fileFailures++
	case !p.counted:
		p.counted = true
		if w.records[0].Created.After(k.started) { // otherwise the pod waited for the agent
			k.metrics.took.Observe(time.Since(firstOf(w.records)))
		}
	}
	if w.settings.Annotation {
		k.annotator.want(name, rails)
	}
	return rails, err
}

// built records the result of a build. changes is the number of changes when the build began. A
// failed build counts as a change, so that another build follows.
func (k *Keeper) built(p *pod, rails *railinfo.Rails, changes uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p.rails = rails
	switch {
	case p.changes != changes: // something has changed since
		p.built = changes
		return
	case err != nil:
		p.changes++
	}
	p.built, p.next = changes, time.Now().Add(again)
}

// firstOf returns the earliest time at which one of the records was last written.
func firstOf(records []*ledger.Record) time.Time {
	first := records[0].Updated
	for _, r := range records {
		if r.Updated.Before(first) {
			first = r.Updated
		}
	}
	return first
}

// readPod returns the document for the pod of the records.
func (k *Keeper) readPod(o *opened, name string, records []*ledger.Record, list *inventory.NICList) (*railinfo.Rails, error) {
	ref := railinfo.PodRef{Node: k.Node}
	if who := records[0].Pod; who != nil {
		ref.UID, ref.Namespace, ref.Name = who.UID, who.Namespace, who.Name
	}
	s := &stateReader{Namespaces: inventory.Namespaces{HostNetns: o.host}}
	defer s.Close()
	seen := map[string]bool{}
	s.see = func(core *rdma.Core, d rdma.Device, port uint32, lent bool) {
		k.watch(seen, name, core, d, port, lent)
	}
	rails, err := s.describe(list, records, ref)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watches.only(name, seen)
	return rails, err
}

// report reports a failure of what key names, such as a pod, unless the last report for key was the
// same. A nil err ends the failure.
func (k *Keeper) report(key string, err error) {
	k.reporter.OnceErr(key, err, component.Notice{Reason: "NotPublished", Summary: "cannot publish the rail information", Warning: true})
}
