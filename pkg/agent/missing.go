package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/netdev"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// missingRest is the time from a change of the host's links to the look for NICs that are
// no longer in their pods, and between the two looks that a report needs: a DEL may be
// returning the NIC.
const missingRest = time.Second

// nicWatch reports NICs that are no longer in their living pods. It moves none: a pod may
// have given the NIC up, and its processes have lost the interface in any case.
type nicWatch struct {
	*keeper
	known map[ledger.Key]*absent

	missing func(*attachment.Node, []*ledger.Record) (map[ledger.Key]string, error) // netdev.Missing, but for tests
}

// absent is an attachment whose NIC is not in its pod.
type absent struct {
	record *ledger.Record
	since  time.Time
	told   bool
}

func newNICWatch(k *keeper) *nicWatch {
	return &nicWatch{keeper: k, known: map[ledger.Key]*absent{}, missing: netdev.Missing}
}

// run looks after changes of the host's links, and every so often, until ctx ends.
func (m *nicWatch) run(ctx context.Context) {
	for ctx.Err() == nil {
		timer := time.NewTimer(time.Until(m.look(time.Now())))
		select {
		case <-ctx.Done():
		case <-m.linksChanged:
			_ = wait.For(ctx, missingRest)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// look reports each missing NIC once, when it has been missing for missingRest. It returns
// the time of the next look.
func (m *nicWatch) look(now time.Time) (next time.Time) {
	next = now.Add(slow)
	records, _ := m.node.Ledger.List() // the keeper's look reports unreadable ones
	var lent []*ledger.Record
	for _, r := range records {
		if r.Phase == ledger.Lent && r.LendsNetdev() && r.Loan.Identity.ParentDev != "" &&
			m.node.Ledger.OfThisBoot(r) && r.HostNetns.Equal(m.node.Netns.ID) {
			lent = append(lent, r)
		}
	}
	missing := map[ledger.Key]string{}
	if len(lent) > 0 {
		var err error
		if missing, err = m.missing(m.node, lent); err != nil {
			return next // the keeper's look reports it
		}
	}
	known := map[ledger.Key]*absent{}
	told := 0
	for _, r := range lent {
		why, is := missing[r.Key]
		if !is || !m.node.Alive(r) {
			continue
		}
		l := m.known[r.Key]
		if l == nil || !l.record.Same(r) {
			l = &absent{record: r, since: now}
		}
		known[r.Key] = l
		switch {
		case l.told:
		case now.Sub(l.since) < missingRest:
			next = earlier(next, l.since.Add(missingRest))
		default:
			l.told = true
			m.tell(m.log, Notice{
				"NICMissing", "NIC is not in its pod",
				fmt.Sprintf("%s of %s is not in the pod: %s. Restart the pod", r.NICName(), r.Holder(), why), true,
			}, "containerID", r.ContainerID, "ifname", r.IfName, "nic", r.NICName())
		}
		if l.told {
			told++
		}
	}
	m.known = known
	m.mu.Lock()
	m.nicsMissing = told
	m.mu.Unlock()
	return next
}
