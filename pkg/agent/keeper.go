package agent

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
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/part/all"
	"github.com/rail-cni/rail-cni/pkg/part/loan"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

const (
	// A pod that dies causes many notices. A check waits debounce for more of them, and up to
	// longestRest if the last check took long.
	debounce    = 2 * time.Millisecond
	longestRest = 100 * time.Millisecond

	maxConcurrent = 16 // concurrent ends of attachments

	// arrivalTimeout is how long a NIC may be missing, while no other NIC returns,
	// before that is an error: the kernel returns NICs one after another, and a driver
	// may take a second to stop each. The NIC's arrival has a notice, but it may be
	// lost, so check. It is also the wait for a NIC's RDMA devices, which have no notice
	// before Linux 6.12.
	arrivalTimeout = 5 * time.Second
	arrivalCheck   = 250 * time.Millisecond

	retryLocked = 200 * time.Millisecond // another process or attachment has a lock
	// lockedTimeout is how long an attachment may wait for locks before that is an error.
	// The names of the host's NICs have one lock for all, and its holder may wait for a
	// driver that stops a NIC in the kernel.
	lockedTimeout = time.Minute
	firstRetry    = time.Second
	lastRetry     = 5 * time.Minute

	// endGrace bounds ends under way when the agent ends. A slow device may need longer than
	// the kubelet waits; the next agent goes on with it.
	endGrace = 5 * time.Second
)

// recheckDelays are the delays of further checks after a notice: the path of a netns
// disappears some time before the netns, whose end has no notice.
var recheckDelays = []time.Duration{30 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second}

// keeper ends the attachments in one state directory whose pod netns is gone.
type keeper struct {
	*agent
	node      *attachment.Node
	log       *slog.Logger
	nudged    chan struct{}
	ended     chan outcome
	ending    context.Context // of ends; only run sets it
	unwritten error           // the last failure of keepFiles; only run uses it
	paths     *notify.Dirs

	rdmaChanged  chan struct{} // wakes the remaker
	linksChanged chan struct{} // wakes the nicWatch
	returns      chan struct{} // wakes the returnWatch

	mu         sync.Mutex
	duties     map[ledger.Key]*duty
	looked     time.Time // time of the last check
	away       int       // NICs that the kernel was about to return then
	arrived    time.Time // when there were last fewer
	unreadable string    // the unreadable records, and the reasons

	lacking     int // attachments of living pods without their RDMA device
	nicsMissing int // attachments of living pods without their NIC

	changed map[string]time.Time // NICs that were not returned as they were, with the time of the report
}

// duty is an attachment to end.
type duty struct {
	record  *ledger.Record
	since   time.Time
	next    time.Time     // not before
	pause   time.Duration // the delay until next
	tries   int
	running bool
	err     error // the last try's
}

// outcome is the outcome of a try.
type outcome struct {
	key  ledger.Key
	err  error
	took time.Duration
}

// errKept: everything but the addresses has been released.
var errKept = errors.New("the addresses are not freed yet, because the IPAM plugin is not installed")

func newKeeper(a *agent, stateDir string) (*keeper, error) {
	node, err := all.Open(stateDir)
	if err != nil {
		return nil, err
	}
	k := &keeper{
		agent: a, node: node, log: a.Log.With("stateDir", stateDir),
		nudged: make(chan struct{}, 1), ended: make(chan outcome, maxConcurrent), duties: map[ledger.Key]*duty{},
		rdmaChanged: make(chan struct{}, 1), linksChanged: make(chan struct{}, 1), returns: make(chan struct{}, 1), ending: context.Background(),
	}
	node.Log = k.log
	k.paths = notify.NewDirs(k.log)
	return k, nil
}

// run checks at the start, on notices, and every so often, until ctx ends. Ends that are
// under way then have endGrace.
func (k *keeper) run(ctx context.Context) {
	var cancel context.CancelFunc
	k.ending, cancel = after(ctx, endGrace)
	defer cancel()
	var listening sync.WaitGroup
	defer listening.Wait()
	listening.Go(func() { k.paths.Run(ctx, func() { nudge(k.nudged) }) })
	var again []time.Time // from recheckDelays
	running := 0
	var began, next time.Time
	for full, look := false, true; ; {
		if look {
			began = time.Now()
			var started int
			started, full, next = k.look(began, maxConcurrent-running)
			running += started
		}
		took := time.Since(began)
		again = later(again, began)
		if len(again) > 0 {
			next = earlier(next, again[0])
		}
		timer := time.NewTimer(time.Until(next))
		look = true
		select {
		case <-ctx.Done():
			for ; running > 0; running-- {
				k.done(<-k.ended)
			}
			return
		case o := <-k.ended:
			running--
			next = earlier(next, k.done(o))
			look = full
		case <-k.nudged:
			again = again[:0]
			for _, e := range recheckDelays {
				again = append(again, time.Now().Add(e))
			}
			_ = wait.For(ctx, max(debounce, min(wait.Rest(took), longestRest)-time.Since(began)))
		case <-timer.C:
		}
		timer.Stop()
	}
}

// after returns a context that ends d after ctx ends.
func after(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = wait.For(longer, d)
		cancel()
	})
	return longer, func() { stop(); cancel() }
}

// later returns those of the times that are in the future.
func later(times []time.Time, now time.Time) []time.Time {
	for len(times) > 0 && !times[0].After(now) {
		times = times[1:]
	}
	return times
}

// look finds the attachments to end, and starts those that are due, at most
// room of them. It returns the number of started ones, whether room was too
// small, and the time of the next check.
func (k *keeper) look(now time.Time, room int) (started int, full bool, next time.Time) {
	k.keepFiles()
	stale, errs := k.node.Stale()
	away := k.onTheirWay(stale)
	k.watchPaths()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(away) < k.away {
		k.arrived = now
	}
	k.away = len(away)
	k.looked, next = now, now.Add(slow)
	k.stats.count(&k.stats.looks)
	changed, changedErrs := k.node.Ledger.Returned()
	k.sayChanged(changed)
	k.sayUnreadable(errors.Join(append(errs, changedErrs...)...))
	found := map[ledger.Key]bool{}
	for _, r := range stale {
		found[r.Key] = true
		d := k.duties[r.Key]
		if d == nil || !d.running && !d.record.Same(r) {
			d = &duty{record: r, since: now}
			k.duties[r.Key] = d
		}
		if d.running {
			continue
		}
		if d.next.After(now) {
			next = earlier(next, d.next)
			continue
		}
		if away[r.Key] && (now.Sub(d.since) < arrivalTimeout || now.Sub(k.arrived) < arrivalTimeout) {
			next = earlier(next, now.Add(arrivalCheck))
			continue
		}
		if started == room {
			full = true // the end of one makes room
			continue
		}
		started++
		d.running = true
		go k.end(r)
	}
	for key, d := range k.duties {
		if !found[key] && !d.running && k.gone(d.record) {
			k.settled(d)
		}
	}
	return started, full, next
}

// gone reports whether the attachment has ended. If it is not among those to
// end it may only have been missed, for example because its record could not be
// read.
func (k *keeper) gone(r *ledger.Record) bool {
	now, err := k.node.Ledger.Peek(r.Key)
	return errors.Is(err, ledger.ErrNoRecord) || err == nil && !now.Same(r)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// onTheirWay returns the attachments whose NIC the kernel is about to return.
func (k *keeper) onTheirWay(stale []*ledger.Record) map[ledger.Key]bool {
	if len(stale) == 0 {
		return nil
	}
	away, err := loan.OnTheirWay(k.node, stale)
	if err != nil {
		k.log.Debug("search for NICs failed", "err", err)
	}
	return away
}

// end tries to end an attachment. Each has a Node of its own, so that a hanging
// IPAM plugin does not delay other NICs.
func (k *keeper) end(r *ledger.Record) {
	began := time.Now()
	err := k.tryEnd(r)
	k.ended <- outcome{r.Key, err, time.Since(began)}
}

func (k *keeper) tryEnd(r *ledger.Record) error {
	node, err := all.Open(k.node.Ledger.Dir())
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

// done records a try and returns the time of the next check.
func (k *keeper) done(o outcome) (next time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.duties[o.key]
	d.running = false
	if errors.Is(o.err, statefile.ErrBusy) && time.Since(d.since) < lockedTimeout {
		d.next = time.Now().Add(retryLocked)
		return d.next
	}
	d.tries++
	if o.err == nil {
		k.stats.end(d.record.Plugin, o.took)
		k.log.Info("attachment of a dead pod ended", "containerID", d.record.ContainerID, "ifname", d.record.IfName,
			"pod", d.record.Pod.String(), "nic", d.record.NICName(), "took", o.took.Round(time.Millisecond), "after", time.Since(d.since).Round(time.Millisecond))
		k.settled(d)
		return time.Now().Add(slow)
	}
	if k.ending.Err() != nil { // the context was canceled, and the next agent goes on
		return d.next
	}
	k.stats.fail(d.record.Plugin, cnierr.Code(o.err))
	changed := essence(d.err) != essence(o.err)
	d.err = o.err
	d.pause = min(max(2*d.pause, firstRetry), lastRetry)
	d.next = time.Now().Add(d.pause)
	if changed {
		k.tell(k.log, Notice{"NotReturned", "attachment of a dead pod has not ended", fmt.Sprintf("%s of %s: %v", d.record.NICName(), d.record.Holder(), o.err), true},
			"containerID", d.record.ContainerID, "ifname", d.record.IfName, "nic", d.record.NICName(), "netns", d.record.Netns.Path)
	}
	return d.next
}

// settled removes a duty that this or another process did, and withdraws its
// notice.
func (k *keeper) settled(d *duty) {
	delete(k.duties, d.record.Key)
	if d.err != nil {
		k.tell(k.log, Notice{"Returned", "attachment has ended", fmt.Sprintf("attachment of %s on %s has ended", d.record.Holder(), d.record.NICName()), false})
	}
}

// sayChanged reports once each NIC that was not returned as it was.
func (k *keeper) sayChanged(all []*ledger.Returned) {
	told := map[string]time.Time{}
	for _, r := range all {
		told[r.File] = r.Time
		if k.changed[r.File].Equal(r.Time) {
			continue
		}
		k.tell(k.log, Notice{"ReturnedChanged", "NIC was returned with other settings", fmt.Sprintf("%s was returned, but not as it was, after %s: %s", r.NIC, r.Holder, strings.Join(r.Changed, "; ")), true},
			"nic", r.NIC, "file", r.File)
	}
	k.changed = told
}

func (k *keeper) sayUnreadable(err error) {
	text := essence(err)
	if text != k.unreadable && err != nil {
		k.tell(k.log, Notice{"UnreadableRecord", "record cannot be read", err.Error(), true})
	}
	k.unreadable = text
}

// essence returns an error's text without digits, which change between tries:
// times, ports, process IDs.
func essence(err error) string {
	if err == nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, err.Error())
}

// watchPaths watches the directories of pods' netns paths.
func (k *keeper) watchPaths() {
	for _, dir := range []string{"/run/netns", "/run/docker/netns"} {
		k.paths.Watch(dir)
	}
}

// unended returns copies of all duties.
func (k *keeper) unended() []duty {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]duty, 0, len(k.duties))
	for _, d := range k.duties {
		list = append(list, *d)
	}
	return list
}
