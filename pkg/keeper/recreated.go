package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// recreatedRest is the time from a change of RDMA devices to the scan for devices that were
// re-created. The scan waits because the end of a pod changes many devices, and the return of the
// pod's NICs comes first.
const recreatedRest = time.Second

// recreatedWatch moves RDMA devices back into their pods after their drivers have re-created them.
type recreatedWatch struct {
	dir     *stateDir
	changed *component.Trigger // RDMA devices have changed
	known   map[ledger.Key]*recreated
	full    time.Time // the time of the next scan of all pods

	// The following are functions of package rdmadev, except in tests.
	onHost  func(*attachment.Node) (func(*ledger.Record) bool, error)
	missing func(*attachment.Node, *ledger.Record) ([]ledger.RDMADevice, error)
	move    func(context.Context, *attachment.Node, *ledger.Record) (bool, error)
}

// recreated is an attachment that lacks an RDMA device, or did so a short time ago.
type recreated struct {
	record *ledger.Record
	lacks  bool

	// A privileged pod can move its device to the host as often as it likes. Each move back takes
	// the node's lock and causes an Event. So the pauses between the moves grow.
	next  time.Time // no move before this time
	pause component.Backoff
}

// forget removes an attachment from m, and its problem from the reporter.
func (m *recreatedWatch) forget(l *recreated) {
	m.dir.Over(m.key(l))
	delete(m.known, l.record.Key)
}

// key returns the key of the attachment's problem for the reporter.
func (m *recreatedWatch) key(l *recreated) string { return m.dir.key("recreated", l.record) }

func newRecreatedWatch(k *stateDir) *recreatedWatch {
	return &recreatedWatch{
		dir: k, changed: component.NewTrigger(), known: map[ledger.Key]*recreated{},
		onHost: rdmadev.OnHost, missing: rdmadev.Missing, move: rdmadev.MoveRecreated,
	}
}

// loop returns the loop that scans when the RDMA core reports a change (since Linux 6.12), and also
// at regular times.
func (m *recreatedWatch) loop() *component.Loop {
	return &component.Loop{
		Reporter: m.dir.Reporter, Trigger: m.changed, Settle: recreatedRest,
		Do: func(ctx context.Context) time.Time { return m.scan(ctx, time.Now()) },
	}
}

// scan looks at the pods whose RDMA device is on the host. At regular times it looks at all pods
// that have an RDMA device. It returns the time of the next scan.
func (m *recreatedWatch) scan(ctx context.Context, now time.Time) (next time.Time) {
	full := !now.Before(m.full)
	if full {
		m.full = now.Add(slow)
	}
	next = m.full
	defer m.count()
	records, _ := m.dir.node.Ledger.Held(m.dir.node.Netns.ID, rdmadev.HasLent) // the keeper's scan reports records that cannot be read
	for _, l := range m.known {
		if !slices.ContainsFunc(records, l.record.Same) {
			m.forget(l)
		}
	}
	if len(records) == 0 {
		return next
	}
	onHost, err := m.onHost(m.dir.node)
	if err != nil {
		return next // the metrics report the missing devices
	}
	for _, r := range records {
		if !full && !onHost(r) {
			continue
		}
		again := m.moveMissing(ctx, r, now)
		if ctx.Err() != nil {
			return next
		}
		if !again.IsZero() {
			next = earlier(next, again)
		}
	}
	return next
}

// moveMissing moves the missing devices of an attachment into its pod. It returns the time of the
// next try, or the zero time if there is nothing more to do.
func (m *recreatedWatch) moveMissing(ctx context.Context, r *ledger.Record, now time.Time) (again time.Time) {
	missing, err := m.missing(m.dir.node, r)
	if err != nil {
		return time.Time{} // CHECK and the metrics report what cannot be read
	}
	l := m.known[r.Key]
	if len(missing) == 0 {
		if l != nil {
			l.lacks = false
		}
		if l != nil && now.After(l.next.Add(lastRetry)) {
			m.forget(l)
		}
		return time.Time{}
	}
	if l == nil {
		l = &recreated{record: r, pause: component.Backoff{First: firstRetry, Last: lastRetry}}
		m.known[r.Key] = l
	}
	if l.next.After(now) {
		l.lacks = true
		return l.next
	}
	began := time.Now()
	moved, err := m.move(ctx, m.dir.node, r)
	switch {
	case ctx.Err() != nil:
		return time.Time{}
	case errors.Is(err, statefile.ErrBusy):
		return now.Add(retryLocked)
	case err == nil && !moved: // the DEL of the attachment was faster
		l.lacks = false
		return time.Time{}
	case !moved && errors.Is(err, rdma.ErrNotFound):
		l.next = now
	default:
		l.next = now.Add(time.Since(began) + l.pause.Next())
		again = l.next
	}
	l.lacks = err != nil
	m.report(l, missing, err)
	return again
}

// count exports the number of attachments that lack a device.
func (m *recreatedWatch) count() {
	lacking := 0
	for _, l := range m.known {
		if l.lacks {
			lacking++
		}
	}
	m.dir.mu.Lock()
	defer m.dir.mu.Unlock()
	m.dir.lacking = lacking
}

// report reports that an attachment has its devices again. If it has not, report reports the
// reason, but only once.
func (m *recreatedWatch) report(l *recreated, missing []ledger.RDMADevice, err error) {
	r := l.record
	names := make([]string, len(missing))
	for i, d := range missing {
		names[i] = d.Name
	}
	what := fmt.Sprintf("RDMA device %s of %s", strings.Join(names, ", "), r.Holder())
	attrs := []any{"containerID", r.ContainerID, "ifname", r.IfName, "nic", r.NICName()}
	if err == nil {
		m.dir.Over(m.key(l))
		m.dir.Report(component.Notice{
			Reason: "RDMADeviceRemade", Summary: "RDMA device was re-created by its driver", Warning: true,
			Message: what + " was re-created by its driver, and is in the pod again: restart the pod, because its processes have lost the device",
		}, attrs...)
		return
	}
	m.dir.OnceErr(m.key(l), err, component.Notice{Reason: "RDMADeviceMissing", Summary: "RDMA device is not in its pod", Message: what + " is not in the pod: ", Warning: true}, attrs...)
}
