package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	// A pod that dies causes many notices. A check waits debounce for more of them, and up to
	// maxRest if the last check took long.
	debounce = 2 * time.Millisecond
	maxRest  = 100 * time.Millisecond

	maxConcurrent = 16 // concurrent ends of attachments

	// arrivalTimeout is how long a NIC may be missing before that is an error. The time starts over
	// when another NIC returns, because the kernel returns NICs one after another, and a driver may
	// take a second to stop each NIC. arrivalTimeout is also the wait for a NIC's RDMA devices.
	arrivalTimeout = 5 * time.Second
	// arrivalCheck is the time between two checks for a missing NIC. They are needed because the
	// notice of a NIC's arrival may be lost, and because the arrival of an RDMA device has no
	// notice before Linux 6.12.
	arrivalCheck = 250 * time.Millisecond

	retryLocked = 200 * time.Millisecond // until the next try if another process or attachment has a lock
	// lockedTimeout is how long an attachment may wait for locks before that is an error. All NICs
	// of the host share one lock for their names, and its holder may wait for a driver that stops a
	// NIC in the kernel.
	lockedTimeout = time.Minute
	firstRetry    = time.Second
	lastRetry     = 5 * time.Minute

	// endGrace is how long running ends of attachments may continue when the agent ends. A slow
	// device may need longer than the kubelet waits. Then the next agent continues with that
	// attachment.
	endGrace = 5 * time.Second
)

// recheckDelays has the delays of further checks after a notice. There is a notice when the path of
// a netns disappears, but the netns itself ends some time later, and its end has no notice.
var recheckDelays = []time.Duration{30 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second}

// stateDir is a state directory whose attachments are ended when their pod netns is gone.
type stateDir struct {
	*component.Reporter
	options *Options
	stats   *stats
	node    *attachment.Node
	log     *slog.Logger
	noticed *component.Trigger // something may have ended
	ended   *component.Trigger // a try to end an attachment has succeeded or failed
	ends    sync.WaitGroup
	ending  context.Context      // the context of all ends; only run sets it
	paths   *notify.Subscription // for the directories of pods' netns paths

	mu      sync.Mutex
	tasks   map[ledger.Key]*task
	again   []time.Time // times of the checks after a notice, from recheckDelays
	running int         // number of ends that are running
	// endedSince has the attachments that have ended since the last scan began.
	endedSince map[ledger.Key]*ledger.Record
	full       bool                 // an end waits until another end is done
	checked    time.Time            // time of the last check
	returning  int                  // number of NICs that the kernel was about to return at the last check
	arrived    time.Time            // when that number last became smaller
	changed    map[string]time.Time // NICs that were not returned as they were, with the time of the report
	unreadable bool                 // there are records that cannot be read

	lacking     int // number of attachments whose pod is alive but lacks its RDMA device
	nicsMissing int // number of attachments whose pod is alive but lacks its NIC
}

// task is an attachment to end.
type task struct {
	record  *ledger.Record
	since   time.Time
	next    time.Time // no try before this time
	pause   component.Backoff
	tries   int
	running bool
	err     error // the error of the last try
}

func newTask(r *ledger.Record, now time.Time) *task {
	return &task{record: r, since: now, pause: component.Backoff{First: firstRetry, Last: lastRetry}}
}

// endKey returns the key of a task's problem for the reporter. All state directories share the
// reporter.
func (k *stateDir) endKey(d *task) string { return k.key("end", d.record) }

// key returns the key of a problem of an attachment for the reporter. what names the kind of
// problem.
func (k *stateDir) key(what string, r *ledger.Record) string {
	return strings.Join([]string{what, k.node.Ledger.Dir(), r.ContainerID, r.IfName}, " ")
}

// errKept is the error of a try that released everything except the addresses.
var errKept = errors.New("the addresses are not freed yet, because the IPAM plugin is not installed")

func newStateDir(k *Keeper, path string) (*stateDir, error) {
	node, err := plans.Open(path)
	if err != nil {
		return nil, err
	}
	d := &stateDir{
		Reporter: k.Reporter, options: &k.Options, stats: k.stats, node: node, log: k.Log.With("stateDir", path),
		noticed: component.NewTrigger(), ended: component.NewTrigger(), tasks: map[ledger.Key]*task{}, endedSince: map[ledger.Key]*ledger.Record{}, ending: context.Background(),
	}
	node.Log = d.log
	d.paths = k.Dirs.Subscribe(d.notice)
	return d, nil
}

// run checks at the start, on notices, and at regular times, until ctx ends. Ends of attachments
// that are running at that time may continue for endGrace.
func (k *stateDir) run(ctx context.Context) {
	var cancel context.CancelFunc
	k.ending, cancel = after(ctx, endGrace)
	defer cancel()
	loop := component.Loop{
		Reporter: k.Reporter, Trigger: k.noticed, Settle: debounce, MaxRest: maxRest, Now: k.ended,
		Do: func(context.Context) time.Time { return k.scan(time.Now(), maxConcurrent) },
	}
	loop.Run(ctx)
	k.ends.Wait()
}

// notice makes the loop check now. It also makes the loop check several times later, because the
// end of a netns has no notice.
func (k *stateDir) notice() {
	now := time.Now()
	k.mu.Lock()
	k.again = k.again[:0]
	for _, delay := range recheckDelays {
		k.again = append(k.again, now.Add(delay))
	}
	k.mu.Unlock()
	k.noticed.Fire()
}

// after returns a context that ends when d has passed since the end of ctx.
func after(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = wait.For(longer, d)
		cancel()
	})
	return longer, func() { stop(); cancel() }
}

// later returns the times that are after now.
func later(times []time.Time, now time.Time) []time.Time {
	for len(times) > 0 && !times[0].After(now) {
		times = times[1:]
	}
	return times
}

// scan finds the attachments to end, and starts to end those that are due. At most room ends run at
// the same time. scan returns the time of the next check.
func (k *stateDir) scan(now time.Time, room int) (next time.Time) {
	k.keepFiles()
	stale, errs := k.stale()
	moving := k.onTheirWay(stale)
	k.watchPaths()
	changed, changedErrs := k.node.Ledger.Returned()
	k.reportChanged(changed)
	k.reportUnreadable(errors.Join(append(errs, changedErrs...)...))
	return k.begin(now, stale, moving, room)
}

// stale returns the attachments to end, and an error for each record that could not be read.
// Attachments that end while stale runs are in k.endedSince.
func (k *stateDir) stale() ([]*ledger.Record, []error) {
	k.mu.Lock()
	k.endedSince = map[ledger.Key]*ledger.Record{}
	k.mu.Unlock()
	return k.node.Stale()
}

// begin starts to end the stale attachments that are due. scan calls it.
func (k *stateDir) begin(now time.Time, stale []*ledger.Record, moving map[ledger.Key]bool, room int) (next time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(moving) < k.returning {
		k.arrived = now
	}
	k.returning = len(moving)
	k.checked, next = now, now.Add(slow)
	k.again = later(k.again, now)
	if len(k.again) > 0 {
		next = earlier(next, k.again[0])
	}
	k.stats.countScan()
	found := map[ledger.Key]bool{}
	k.full = false
	for _, r := range stale {
		if ended := k.endedSince[r.Key]; ended != nil && ended.Same(r) {
			continue
		}
		found[r.Key] = true
		d := k.tasks[r.Key]
		if d == nil || !d.running && !d.record.Same(r) {
			d = newTask(r, now)
			k.tasks[r.Key] = d
		}
		switch {
		case d.running:
		case d.next.After(now):
			next = earlier(next, d.next)
		case moving[r.Key] && (now.Sub(d.since) < arrivalTimeout || now.Sub(k.arrived) < arrivalTimeout):
			next = earlier(next, now.Add(arrivalCheck))
		case k.running == room:
			k.full = true // there is room again when a running end is done
		default:
			k.running++
			d.running = true
			k.ends.Go(func() { k.end(r) })
		}
	}
	for key, d := range k.tasks {
		if !found[key] && !d.running && k.gone(d.record) {
			k.settled(d)
		}
	}
	return next
}

// gone reports whether the attachment has ended. This must be checked, because an attachment that
// stale did not return may not have ended: for example, its record may have been unreadable.
func (k *stateDir) gone(r *ledger.Record) bool {
	now, err := k.node.Ledger.Peek(r.Key)
	return errors.Is(err, ledger.ErrNoRecord) || err == nil && !now.Same(r)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// onTheirWay returns the keys of the stale attachments whose NIC the kernel is about to return.
func (k *stateDir) onTheirWay(stale []*ledger.Record) map[ledger.Key]bool {
	if len(stale) == 0 {
		return nil
	}
	moving, err := k.node.OnTheirWay(stale)
	if err != nil {
		k.log.Debug("cannot find all NICs that the kernel is moving to the host", "err", err)
	}
	return moving
}

// end tries to end an attachment. Each try opens its own Node, so that an IPAM plugin that hangs
// does not delay other NICs.
func (k *stateDir) end(r *ledger.Record) {
	began := time.Now()
	k.done(r.Key, k.Contain(func() error { return k.tryEnd(r) }), time.Since(began))
}

func (k *stateDir) tryEnd(r *ledger.Record) error {
	node, err := plans.Open(k.node.Ledger.Dir())
	if err != nil {
		return err
	}
	defer node.Close()
	node.Log = k.log
	if err := node.End(k.ending, r, arrivalTimeout); err != nil {
		return err
	}
	left, err := node.Ledger.Get(r.Key)
	switch {
	case errors.Is(err, ledger.ErrNoRecord):
		return nil
	case err == nil && left.Same(r):
		return errKept
	}
	return err
}

// done records the result of a try to end the attachment. took is how long the try took.
func (k *stateDir) done(key ledger.Key, err error, took time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running--
	d := k.tasks[key]
	d.running = false
	if k.full || err != nil {
		defer k.ended.Fire() // so that scan starts another end, or plans the next try
	}
	if errors.Is(err, statefile.ErrBusy) && time.Since(d.since) < lockedTimeout {
		d.next = time.Now().Add(retryLocked)
		return
	}
	d.tries++
	if err == nil {
		k.stats.end(d.record.Plugin, took)
		k.log.Info("attachment of a dead pod has ended", "containerID", d.record.ContainerID, "ifname", d.record.IfName,
			"pod", d.record.Pod.String(), "nic", d.record.NICName(), "took", took.Round(time.Millisecond), "after", time.Since(d.since).Round(time.Millisecond))
		k.settled(d)
		k.endedSince[key] = d.record
		return
	}
	if k.ending.Err() != nil { // the context was canceled, and the next agent continues
		return
	}
	k.stats.fail(d.record.Plugin, cnierr.Code(err))
	d.err = err
	d.next = time.Now().Add(d.pause.Next())
	k.OnceErr(k.endKey(d), err, component.Notice{
		Reason: "NotReturned", Summary: "attachment of a dead pod has not ended",
		Message: fmt.Sprintf("%s of %s: ", d.record.NICName(), d.record.Holder()), Warning: true,
	}, "containerID", d.record.ContainerID, "ifname", d.record.IfName, "nic", d.record.NICName(), "netns", d.record.Netns.Path)
}

// settled removes a task that this process or another process has done, and withdraws its notice.
func (k *stateDir) settled(d *task) {
	delete(k.tasks, d.record.Key)
	if k.Over(k.endKey(d)) {
		k.Report(component.Notice{Reason: "Returned", Summary: "attachment has ended", Message: fmt.Sprintf("attachment of %s on %s has ended", d.record.Holder(), d.record.NICName())})
	}
}

// reportChanged reports each NIC that was not returned as it was. It reports each return only once.
func (k *stateDir) reportChanged(all []*ledger.Returned) {
	reported := map[string]time.Time{}
	for _, r := range all {
		reported[r.File] = r.Time
		if k.changed[r.File].Equal(r.Time) {
			continue
		}
		k.Report(component.Notice{
			Reason: "ReturnedChanged", Summary: "NIC was returned with other settings", Warning: true,
			Message: fmt.Sprintf("%s was returned, but not as it was, after %s: %s", r.NIC, r.Holder, strings.Join(r.Changed, "; ")),
		}, "nic", r.NIC, "file", r.File)
	}
	k.changed = reported
}

func (k *stateDir) reportUnreadable(err error) {
	k.OnceErr("unreadable "+k.node.Ledger.Dir(), err, component.Notice{Reason: "UnreadableRecord", Summary: "record cannot be read", Warning: true})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unreadable = err != nil
}

// watchPaths watches the directories that contain the netns paths of pods.
func (k *stateDir) watchPaths() {
	for _, dir := range []string{"/run/netns", "/run/docker/netns"} {
		k.paths.Watch(dir)
	}
}

// unended returns copies of all tasks.
func (k *stateDir) unended() []task {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]task, 0, len(k.tasks))
	for _, d := range k.tasks {
		list = append(list, *d)
	}
	return list
}
