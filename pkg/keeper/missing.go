package keeper

import (
	"context"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/netdev"
)

// missingRest is the time from a change of the host's links to the scan for NICs that are no longer
// in their pods. It is also the time between two scans. A NIC is reported only if two scans find it
// missing, because at the first scan a DEL may be returning the NIC.
const missingRest = time.Second

// nicWatch reports NICs that are no longer in their pods although the pods are alive. It does not
// move such a NIC back, because the pod may have given the NIC up, and the pod's processes have
// lost the interface in any case.
type nicWatch struct {
	dir     *stateDir
	changed *component.Trigger // the host's links have changed
	known   map[ledger.Key]*absent

	missing func(*attachment.Node, []*ledger.Record) (map[ledger.Key]string, error) // netdev.Missing, except in tests
}

// absent is an attachment whose NIC is not in its pod.
type absent struct {
	record   *ledger.Record
	since    time.Time
	reported bool
}

func newNICWatch(k *stateDir) *nicWatch {
	return &nicWatch{dir: k, changed: component.NewTrigger(), known: map[ledger.Key]*absent{}, missing: netdev.Missing}
}

// loop returns the loop that scans after changes of the host's links, and also at regular times.
func (m *nicWatch) loop() *component.Loop {
	return &component.Loop{
		Reporter: m.dir.Reporter, Trigger: m.changed, Settle: missingRest,
		Do: func(context.Context) time.Time { return m.scan(time.Now()) },
	}
}

// scan reports each missing NIC once, when the NIC has been missing for missingRest. It returns the
// time of the next scan.
func (m *nicWatch) scan(now time.Time) (next time.Time) {
	next = now.Add(slow)
	lent, _ := m.dir.node.Ledger.Held(m.dir.node.Netns.ID, func(r *ledger.Record) bool { // the keeper's scan reports records that cannot be read
		return r.Phase == ledger.Lent && r.LendsNetdev() && r.Loan.Identity.ParentDev != ""
	})
	missing := map[ledger.Key]string{}
	if len(lent) > 0 {
		var err error
		if missing, err = m.missing(m.dir.node, lent); err != nil {
			return next // the keeper's scan reports the error
		}
	}
	known := map[ledger.Key]*absent{}
	reported := 0
	for _, r := range lent {
		why, is := missing[r.Key]
		if !is || !m.dir.node.Alive(r) {
			continue
		}
		l := m.known[r.Key]
		if l == nil || !l.record.Same(r) {
			l = &absent{record: r, since: now}
		}
		known[r.Key] = l
		switch {
		case l.reported:
		case now.Sub(l.since) < missingRest:
			next = earlier(next, l.since.Add(missingRest))
		default:
			l.reported = true
			m.dir.Report(component.Notice{
				Reason: "NICMissing", Summary: "NIC is not in its pod", Warning: true,
				Message: fmt.Sprintf("%s of %s is not in the pod: %s. Restart the pod", r.NICName(), r.Holder(), why),
			}, "containerID", r.ContainerID, "ifname", r.IfName, "nic", r.NICName())
		}
		if l.reported {
			reported++
		}
	}
	m.known = known
	m.dir.mu.Lock()
	m.dir.nicsMissing = reported
	m.dir.mu.Unlock()
	return next
}
