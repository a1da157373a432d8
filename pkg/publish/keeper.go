package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Times of the keeper.
const (
	pollGIDs = 500 * time.Millisecond // between looks at the GID tables of rails
	slow     = 30 * time.Second       // between looks at everything: no message reports a link's state
	rest     = 50 * time.Millisecond  // after files were written
	factsFor = time.Minute            // the age of the NICs' facts at which they are read again
	again    = 5 * time.Second        // after a failure, and after a panic
)

// Options are those of a [Keeper].
type Options struct {
	StateDirs []string // of the plugins; the first one gets the directory "pods"
	Node      string   // its name in the cluster
	// Client writes annotations, if the node file asks for them. nil writes none.
	Client *kube.Client
	Log    *slog.Logger
	// Tell passes on notices, if it is not nil.
	Tell func(agent.Notice)
}

// Keeper keeps the files of each pod that holds a rail. Its methods are safe for concurrent
// use.
type Keeper struct {
	Options
	annotator *annotator

	// list is inventory.NICs, but for tests.
	list func() (*inventory.NICList, error)

	// opened has ledgers, for a look without mu.
	opened atomic.Pointer[[]*ledger.Ledger]

	mu       sync.Mutex
	host     *link.Netns
	ledgers  []*ledger.Ledger
	files    *files // nil until open
	facts    *inventory.NICList
	factsOf  time.Time
	settings nodeSettings
	pods     map[string]*pod // by the names of their directories
	watches  watches
	metrics  agent.PublishMetrics
	told     string // the last failure of Run that was reported
}

// pod is a pod that holds a rail.
type pod struct {
	records []*ledger.Record
	rails   *Rails // what its files say, nil until they are written
	dirty   bool   // records or GIDs have changed since
	next    time.Time
	told    string // the last failure that was reported
}

// NewKeeper returns a Keeper that has done nothing yet. Run must be called once.
func NewKeeper(o Options) *Keeper {
	k := &Keeper{Options: o, pods: map[string]*pod{}, watches: watches{}}
	k.list = func() (*inventory.NICList, error) { return inventory.NICs(o.StateDirs...) }
	k.annotator = newAnnotator(k)
	return k
}

// Told is what a pod is told, and where its files are.
type Told struct {
	Rails    *Rails
	Settings Settings // the node's, before the pod's annotation
	// Dir is the directory of the pod's files on the host.
	Dir string
}

// Lookup returns what the pod of a sandbox is told now, nil if it holds no rail. It reads
// the ledger, so that an ADD that has just ended counts, and it writes the files before it
// returns. It may be called before Run, and after a panic in Run.
func (k *Keeper) Lookup(ctx context.Context, sandboxID string) (told *Told, err error) {
	defer func() {
		if r := recover(); r != nil {
			k.panicked(r)
			told, err = nil, fmt.Errorf("panic: %v", r)
		}
	}()
	if k.without(sandboxID) {
		return nil, nil //nolint:nilnil // the pod holds no rail
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.open(); err != nil {
		return nil, err
	}
	var records []*ledger.Record
	var errs []error
	for _, l := range k.ledgers {
		found, unread := l.OfContainer(sandboxID)
		errs = append(errs, unread...)
		records = append(records, k.ours(l, found)...)
	}
	if len(records) == 0 || ctx.Err() != nil {
		return nil, errors.Join(append(errs, ctx.Err())...)
	}
	name := nameOf(records[0])
	if name == "" {
		return nil, fmt.Errorf("%s: neither its UID nor its ID can name a directory", records[0].Holder())
	}
	k.hold(name, records)
	if p := k.pods[name]; p.dirty {
		err = k.build(name, p)
		if p.rails == nil {
			return nil, err
		}
	}
	return &Told{Rails: k.pods[name].rails, Settings: k.settings.of, Dir: k.files.dir(name)}, nil
}

// without reports whether the ledgers certainly have no rail of the container. It does not
// wait for mu, because most pods hold no rail, and another pod's files may be in the making.
func (k *Keeper) without(containerID string) bool {
	ledgers := k.opened.Load()
	if ledgers == nil {
		return false
	}
	for _, l := range *ledgers {
		if found, unread := l.OfContainer(containerID); len(unread) > 0 || slices.ContainsFunc(found, IsRail) {
			return false
		}
	}
	return true
}

// open opens what the keeper needs, once. mu is held.
func (k *Keeper) open() error {
	if k.settings.read() {
		k.factsOf = time.Time{} // it has the rails
		for _, p := range k.pods {
			p.dirty, p.next = true, time.Time{}
		}
	}
	if k.files != nil {
		return nil
	}
	if k.host == nil {
		host, err := link.CurrentNetns()
		if err != nil {
			return err
		}
		k.host = host
	}
	if k.ledgers == nil {
		var ledgers []*ledger.Ledger
		for _, dir := range k.StateDirs {
			l, err := ledger.Open(dir)
			if err != nil {
				for _, other := range ledgers {
					other.Close()
				}
				return err
			}
			ledgers = append(ledgers, l)
		}
		k.ledgers = ledgers
		k.opened.Store(&ledgers)
	}
	var err error
	k.files, err = openFiles(k.StateDirs[0])
	return err
}

// close is called at the end of Run.
func (k *Keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watches.close()
	k.opened.Store(nil)
	for _, l := range k.ledgers {
		l.Close()
	}
	if k.files != nil {
		k.files.close()
	}
	k.host.Close()
	k.host, k.ledgers, k.files = nil, nil, nil
}

// ours returns the records of rails that pods of this host have now.
func (k *Keeper) ours(l *ledger.Ledger, records []*ledger.Record) []*ledger.Record {
	return slices.DeleteFunc(records, func(r *ledger.Record) bool {
		return !IsRail(r) || !l.OfThisBoot(r) || !r.HostNetns.Equal(k.host.ID)
	})
}

// hold sets the records of a pod.
func (k *Keeper) hold(name string, records []*ledger.Record) {
	p := k.pods[name]
	if p == nil {
		p = &pod{}
		k.pods[name] = p
	}
	if !slices.EqualFunc(p.records, records, func(a, b *ledger.Record) bool { return a.Same(b) && a.Updated.Equal(b.Updated) }) {
		p.records, p.dirty, p.next = records, true, time.Time{}
	}
}

// Run keeps the files until ctx ends. It starts again after a panic, which does not end the
// process.
func (k *Keeper) Run(ctx context.Context) {
	defer k.close()
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { k.annotator.run(ctx) })
	for ctx.Err() == nil {
		k.run(ctx)
		_ = wait.For(ctx, again)
	}
}

// run is one run until ctx ends, or it panics.
func (k *Keeper) run(ctx context.Context) {
	var listening sync.WaitGroup
	defer listening.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			k.panicked(r)
		}
	}()
	changed := make(chan struct{}, 1)
	records := notify.NewDirs(k.Log)
	listening.Go(func() {
		records.Run(ctx, func() {
			select {
			case changed <- struct{}{}:
			default: // a look is due already
			}
		})
	})
	var full time.Time
	polled := time.Now()
	for ctx.Err() == nil {
		for _, dir := range k.StateDirs {
			records.Watch(filepath.Join(dir, "attachments"))
		}
		if now := time.Now(); !now.Before(full) {
			full = now.Add(slow)
			k.look()
			k.allDirty()
		}
		k.buildDue(ctx)
		pause := time.Until(full)
		if k.busy() {
			pause = min(pause, pollGIDs)
		}
		if time.Since(polled) > 2*pollGIDs { // ADDs that follow each other closely must not keep it from looking
			polled = time.Now()
			k.poll()
		}
		_ = wait.For(ctx, rest)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
			polled = time.Now()
			k.poll()
		case <-changed:
			k.look()
		}
		timer.Stop()
	}
}

// busy reports whether there are GIDs to look at, or pods to be built again.
func (k *Keeper) busy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.watches) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(k.pods)), func(p *pod) bool { return p.dirty })
}

// allDirty makes the next buildDue build all.
func (k *Keeper) allDirty() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		p.dirty, p.next = true, time.Time{}
	}
}

// look reads the ledgers.
func (k *Keeper) look() {
	err := k.read()
	k.report(&k.told, err) // only Run uses it
}

// buildDue writes the files of the pods that have changed. Pods are built one by one, so
// that a Lookup waits for one at most.
func (k *Keeper) buildDue(ctx context.Context) {
	k.refreshFacts()
	k.mu.Lock()
	names := slices.Sorted(maps.Keys(k.pods))
	k.mu.Unlock()
	for _, name := range names {
		if ctx.Err() != nil {
			return
		}
		k.buildIfDue(name)
	}
}

func (k *Keeper) buildIfDue(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[name]
	if p == nil || !p.dirty || time.Now().Before(p.next) {
		return
	}
	if err := k.build(name, p); err != nil {
		k.Log.Debug("not all of a pod's rails could be read", "pod", p.records[0].Pod.String(), "containerID", p.records[0].ContainerID, "err", err)
	}
}

// read reads the ledgers, and removes the directories of pods that hold nothing.
func (k *Keeper) read() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.open(); err != nil {
		return err
	}
	unread := false
	newest := map[string][]*ledger.Record{} // by directory: those of the newest container
	for _, l := range k.ledgers {
		records, errs := l.List() // the keeper of NICs reports unreadable ones
		unread = unread || len(errs) > 0
		for _, r := range k.ours(l, records) {
			name := nameOf(r)
			if name == "" {
				continue
			}
			if have := newest[name]; len(have) > 0 && have[0].ContainerID != r.ContainerID {
				if r.Created.Before(have[len(have)-1].Created) {
					continue
				}
				newest[name] = nil // a sandbox that ends, and the one in its place
			}
			newest[name] = append(newest[name], r)
		}
	}
	for name, records := range newest {
		k.hold(name, records)
	}
	if unread { // a damaged record, which may be of a pod that is there
		return k.endGone(newest)
	}
	maps.DeleteFunc(k.pods, func(name string, _ *pod) bool { return newest[name] == nil })
	k.watches.keep(func(name string) bool { return newest[name] != nil })
	k.metrics.Pods = len(k.pods)
	k.annotator.keep(newest)
	return k.files.removeOthers(slices.Collect(maps.Keys(newest)))
}

// endGone removes the directories of the pods that it had and that certainly hold nothing,
// while some records cannot be read: they stay so until somebody repairs them, and other pods
// come and go. mu is held.
func (k *Keeper) endGone(newest map[string][]*ledger.Record) error {
	var errs []error
	left := map[string][]*ledger.Record{}
	for name, p := range k.pods {
		if newest[name] == nil && k.without(p.records[0].ContainerID) {
			delete(k.pods, name)
			errs = append(errs, k.files.remove(name))
			continue
		}
		left[name] = p.records
	}
	k.annotator.keep(left)
	k.watches.keep(func(name string) bool { return k.pods[name] != nil })
	k.metrics.Pods = len(k.pods)
	return errors.Join(errs...)
}

// refreshFacts reads the NICs again if their facts are old and somebody holds one.
func (k *Keeper) refreshFacts() {
	k.mu.Lock()
	due := len(k.pods) > 0 && time.Since(k.factsOf) > factsFor
	k.mu.Unlock()
	if !due {
		return
	}
	list, err := k.list()
	if err != nil {
		k.Log.Warn("NICs could not be read", "err", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.facts, k.factsOf = list, time.Now()
}

// nics returns the NICs for these records. It reads them if there are none yet, or if
// they lack one of the records'. mu is held.
func (k *Keeper) nics(records []*ledger.Record) (*inventory.NICList, error) {
	lacks := func(r *ledger.Record) bool {
		var d *ledger.RDMADevice
		if r.RDMA != nil && len(r.RDMA.Devices) > 0 {
			d = &r.RDMA.Devices[0]
		}
		return nicOf(k.facts, r, d) == nil
	}
	if k.facts != nil && (time.Since(k.factsOf) < again || !slices.ContainsFunc(records, lacks)) {
		return k.facts, nil
	}
	list, err := k.list()
	if err != nil {
		return nil, err
	}
	k.facts, k.factsOf = list, time.Now()
	return list, nil
}

// build writes the files of a pod. With an error they have what could be read, or are as
// before. mu is held.
func (k *Keeper) build(name string, p *pod) error {
	if p.rails == nil {
		p.rails = k.files.read(name) // of an agent before this one: its generation goes on
	}
	list, err := k.nics(p.records)
	if err != nil {
		// The document may be of a sandbox before this one, whose devices others have now.
		p.rails, p.next = nil, time.Now().Add(again)
		return err
	}
	rails, err := k.readPod(name, p.records, list)
	rails.Generation = 1
	if p.rails != nil {
		rails.Generation = p.rails.Generation
		if !rails.same(p.rails) {
			rails.Generation++
		}
	}
	written := k.files.write(name, rails, k.settings.of, Machine{Tree: list.Tree, Root: "/"})
	if written != nil {
		k.metrics.FileFailures++
		err = errors.Join(err, written)
	}
	k.report(&p.told, written)
	p.rails, p.dirty = rails, err != nil
	p.next = time.Now().Add(again)
	if k.settings.of.Annotation {
		k.annotator.want(name, rails)
	}
	return err
}

// readPod returns what the pod of the records is told. mu is held.
func (k *Keeper) readPod(name string, records []*ledger.Record, list *inventory.NICList) (*Rails, error) {
	ref := PodRef{Node: k.Node}
	if who := records[0].Pod; who != nil {
		ref.UID, ref.Namespace, ref.Name = who.UID, who.Namespace, who.Name
	}
	s := &sight{host: k.host}
	defer s.close()
	seen := map[string]bool{}
	s.see = func(core *rdma.Core, d rdma.Device, port uint32, lent bool) {
		k.watches.add(seen, name, core, d, port, lent)
	}
	rails, err := s.of(list, records, ref)
	k.watches.only(name, seen)
	return rails, err
}

// report reports a failure, unless it is the last one once more. told has the last one; a
// nil err empties it.
func (k *Keeper) report(told *string, err error) {
	if err == nil {
		*told = ""
		return
	}
	if *told == err.Error() {
		return
	}
	*told = err.Error()
	k.tell(agent.Notice{Reason: "NotPublished", Summary: "pod not told of its rails", Message: err.Error(), Warning: true})
}

func (k *Keeper) tell(n agent.Notice) {
	n.Write(k.Log)
	if k.Tell != nil {
		k.Tell(n)
	}
}

// panicked counts and reports a panic.
func (k *Keeper) panicked(r any) {
	stack := string(debug.Stack())
	k.Log.Error("panic in the publisher", "panic", r, "stack", stack)
	k.mu.Lock()
	k.metrics.Panics++
	k.mu.Unlock()
	k.tell(agent.Notice{
		Reason: "PublishFailed", Summary: "publisher panicked",
		Message: fmt.Sprintf("rail-agent's publisher, which tells pods of their rails, panicked and starts again: %v. This is a defect: please report it with the stack, which the log has", r), Warning: true,
	})
}

// Metrics returns the values of the keeper's metrics.
func (k *Keeper) Metrics() agent.PublishMetrics {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.metrics
	m.AnnotationFailures = k.annotator.failures()
	return m
}

// stampOf returns a text that changes whenever the file does.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return path
	}
	stamp := fmt.Sprintf("%s %d %d", path, info.ModTime().UnixNano(), info.Size())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		stamp += fmt.Sprintf(" %d", st.Ino)
	}
	return stamp
}

// nodeSettings are the settings of the node file as it was last read.
type nodeSettings struct {
	of    Settings
	stamp string // of the file
}

// read reads the node file if it has changed, and reports whether the settings may have
// changed. A file that cannot be read changes nothing: no NIC is lent then either.
func (n *nodeSettings) read() bool {
	stamp := stampOf(netconf.NodeFilePath())
	if stamp == n.stamp {
		return false
	}
	file, err := netconf.ReadNodeFile(netconf.NodeFilePath())
	if err != nil && n.stamp != "" {
		return false
	}
	n.of, n.stamp = SettingsOf(file), stamp
	return true
}
