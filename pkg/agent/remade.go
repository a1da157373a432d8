package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// remadeRest is the time from a change of RDMA devices to the look for those that were
// re-created. A pod's end changes many devices, and the return of its NICs comes first.
const remadeRest = time.Second

// remaker moves RDMA devices that their drivers re-create into their pods again.
type remaker struct {
	*keeper
	known map[ledger.Key]*remade
	full  time.Time // of the next look into all pods

	// Those of package rdmadev, but for tests.
	onHost  func(*attachment.Node) (func(*ledger.Record) bool, error)
	missing func(*attachment.Node, *ledger.Record) ([]ledger.RDMADevice, error)
	move    func(context.Context, *attachment.Node, *ledger.Record) (bool, error)
}

// remade is an attachment that lacks an RDMA device, or did so a short time ago.
type remade struct {
	record *ledger.Record
	lacks  bool
	told   string // what was reported last, "" after it got one

	// A privileged pod can put its device on the host as often as it likes, and each
	// move takes the node's lock, and has an Event: the pauses between the moves grow.
	next  time.Time // no move before
	pause time.Duration
}

func newRemaker(k *keeper) *remaker {
	return &remaker{
		keeper: k, known: map[ledger.Key]*remade{},
		onHost: rdmadev.OnHost, missing: rdmadev.Missing, move: rdmadev.MoveRemade,
	}
}

// run looks when the RDMA core reports a change (Linux 6.12), and every so often, until ctx
// ends.
func (m *remaker) run(ctx context.Context) {
	for ctx.Err() == nil {
		timer := time.NewTimer(time.Until(m.look(ctx, time.Now())))
		select {
		case <-ctx.Done():
		case <-m.rdmaChanged:
			_ = wait.For(ctx, remadeRest)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// look looks at the pods whose device is on the host or, every so often, at all that have
// one. It returns the time of the next look.
func (m *remaker) look(ctx context.Context, now time.Time) (next time.Time) {
	full := !now.Before(m.full)
	if full {
		m.full = now.Add(slow)
	}
	next = m.full
	defer m.count()
	records, _ := m.node.Ledger.List() // the keeper's look reports unreadable ones
	records = slices.DeleteFunc(records, func(r *ledger.Record) bool {
		return !rdmadev.HasLent(r) || !r.HostNetns.Equal(m.node.Netns.ID)
	})
	maps.DeleteFunc(m.known, func(_ ledger.Key, l *remade) bool { return !slices.ContainsFunc(records, l.record.Same) })
	if len(records) == 0 {
		return next
	}
	onHost, err := m.onHost(m.node)
	if err != nil {
		return next // the metrics report it
	}
	for _, r := range records {
		if !full && !onHost(r) {
			continue
		}
		again := m.attend(ctx, r, now)
		if ctx.Err() != nil {
			return next
		}
		if !again.IsZero() {
			next = earlier(next, again)
		}
	}
	return next
}

// attend moves the missing devices of an attachment. It returns the time of the next try,
// which is zero if there is nothing to do.
func (m *remaker) attend(ctx context.Context, r *ledger.Record, now time.Time) (again time.Time) {
	missing, err := m.missing(m.node, r)
	if err != nil {
		return time.Time{} // CHECK and the metrics report what cannot be read
	}
	l := m.known[r.Key]
	if len(missing) == 0 {
		if l != nil {
			l.lacks = false
		}
		if l != nil && now.After(l.next.Add(lastRetry)) {
			delete(m.known, r.Key)
		}
		return time.Time{}
	}
	if l == nil {
		l = &remade{record: r}
		m.known[r.Key] = l
	}
	if l.next.After(now) {
		l.lacks = true
		return l.next
	}
	began := time.Now()
	moved, err := m.move(ctx, m.node, r)
	switch {
	case ctx.Err() != nil:
		return time.Time{}
	case errors.Is(err, statefile.ErrBusy):
		return now.Add(retryLocked)
	case err == nil && !moved: // its DEL was faster
		l.lacks = false
		return time.Time{}
	case !moved && errors.Is(err, rdma.ErrNotFound):
		l.next = now
	default:
		l.pause = min(max(2*l.pause, firstRetry), lastRetry)
		l.next = now.Add(time.Since(began) + l.pause)
		again = l.next
	}
	l.lacks = err != nil
	m.report(l, missing, err)
	return again
}

// count exports the number of the attachments that lack a device.
func (m *remaker) count() {
	lacking := 0
	for _, l := range m.known {
		if l.lacks {
			lacking++
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lacking = lacking
}

// report reports that an attachment has its devices again, or once why it has not.
func (m *remaker) report(l *remade, missing []ledger.RDMADevice, err error) {
	r := l.record
	names := make([]string, len(missing))
	for i, d := range missing {
		names[i] = d.Name
	}
	what := fmt.Sprintf("RDMA device %s of %s", strings.Join(names, ", "), r.Holder())
	attrs := []any{"containerID", r.ContainerID, "ifname", r.IfName, "nic", r.NICName()}
	switch {
	case err == nil:
		l.told = ""
		m.tell(m.log, Notice{
			"RDMADeviceRemade", "RDMA device was re-created by its driver",
			what + " was re-created by its driver, and is in the pod again: restart the pod, its processes have lost the device", true,
		}, attrs...)
	case l.told != essence(err):
		l.told = essence(err)
		m.tell(m.log, Notice{"RDMADeviceMissing", "RDMA device is not in its pod", fmt.Sprintf("%s is not in the pod: %v", what, err), true}, attrs...)
	}
}
