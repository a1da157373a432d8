package keeper

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link/announce"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/notify"
)

const (
	// A link that is down is read again after a tenth (1/linkCheckRatio) of the time for which it
	// has been watched, but not before firstLinkCheck and not later than slow. The agent does not
	// listen for changes in pods, because a socket in a dead pod's netns would keep that netns
	// alive, and the pod's NICs in it.
	firstLinkCheck = 250 * time.Millisecond
	linkCheckRatio = 10

	// recordRest is the shortest time between two reads of the records.
	recordRest = 100 * time.Millisecond
)

// announcer announces the addresses of each interface whose first carrier comes after the end of
// its ADD. It announces them once. It sends the addresses and the MAC of the record, which a pod
// cannot choose, and it sends them only in the pod netns.
type announcer struct {
	reporter *component.Reporter
	ledger   *ledger.Ledger
	dirs     *notify.Dirs
	host     netns.ID
	log      *slog.Logger
	late     map[ledger.Key]*lateLink
}

// lateLink is an interface that had no link when its ADD ended.
type lateLink struct {
	record    *ledger.Record
	since     time.Time
	next      time.Time // when the link is checked next
	announced bool
}

func newAnnouncer(k *stateDir) *announcer {
	return &announcer{
		reporter: k.Reporter, ledger: k.node.Ledger, dirs: k.options.Dirs, host: k.node.Netns.ID, log: k.log, late: map[ledger.Key]*lateLink{},
	}
}

// run calls scan each time a record changes, and at the times that scan returns. It returns when
// ctx ends.
func (a *announcer) run(ctx context.Context) {
	changed := component.NewTrigger()
	records := a.dirs.Subscribe(changed.Fire)
	defer records.Close()
	records.Watch(filepath.Join(a.ledger.Dir(), "attachments"))
	loop := component.Loop{
		Reporter: a.reporter, Trigger: changed, Settle: recordRest, MaxRest: slow,
		Do: func(context.Context) time.Time { return a.scan(time.Now()) },
	}
	loop.Run(ctx)
}

// scan announces the addresses of the links that are up now. It returns the time of the
// next scan.
func (a *announcer) scan(now time.Time) (next time.Time) {
	next = now.Add(slow)
	records, _ := a.ledger.Held(ledger.Anywhere, func(r *ledger.Record) bool { // the keeper reports records that cannot be read
		return r.Phase == ledger.Lent && r.Link != nil && !r.Link.Up
	})
	found := map[ledger.Key]bool{}
	for _, r := range records {
		found[r.Key] = true
		l := a.late[r.Key]
		if l == nil || !l.record.Same(r) {
			l = &lateLink{record: r, since: now}
			a.late[r.Key] = l
		}
		if l.announced {
			continue
		}
		if !l.next.After(now) {
			l.announced = a.announce(r)
			l.next = now.Add(min(max(now.Sub(l.since)/linkCheckRatio, firstLinkCheck), slow))
		}
		if !l.announced {
			next = earlier(next, l.next)
		}
	}
	for key := range a.late {
		if !found[key] {
			delete(a.late, key)
		}
	}
	return next
}

// announce announces the addresses of the attachment if its interface has a carrier. It returns
// false if it must be called again.
func (a *announcer) announce(r *ledger.Record) bool {
	pod := r.OpenPod()
	if pod == nil {
		return false
	}
	defer pod.Close()
	l := r.InterfaceIn(pod)
	if pod.ID.Equal(a.host) || l == nil || !l.HasCarrier() {
		return false
	}
	mac, err := net.ParseMAC(r.MAC)
	if err != nil || !bytes.Equal(l.MAC, mac) {
		return true // the pod has changed the MAC
	}
	var addresses []netip.Addr
	for _, text := range r.Addresses {
		if p, err := netip.ParsePrefix(text); err == nil {
			addresses = append(addresses, p.Addr())
		}
	}
	log := a.log.With("containerID", r.ContainerID, "ifname", r.IfName, "pod", r.Pod.String(), "nic", r.NICName())
	err = announce.Addresses(pod, l, mac, addresses)
	if errors.Is(err, unix.EPERM) {
		log.Warn("cannot announce the addresses", "err", err, "cure", "give rail-agent the capability NET_RAW")
		return true // a later try would fail too
	}
	if err != nil {
		log.Debug("cannot announce the addresses yet", "err", err) // the interface has lost its carrier again
		return false
	}
	log.Info("carrier came after ADD, so the addresses were announced now", "addresses", r.Addresses)
	return true
}
