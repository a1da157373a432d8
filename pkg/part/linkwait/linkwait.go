package linkwait

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/announce"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// OfPod bounds the waits of all attachments of a pod together. It is half of the time that a
// runtime allows for a sandbox. Attachments older than ofSandbox do not count, because then the pod
// is already running, and the runtime allows a new interface its own time.
//
// No wait ends later than LastWait after the pod's first ADD began. But each wait may take at least
// minWait, because the pod's addresses may take three of the four minutes (store.SandboxTime). The
// time that plugins took before the first ADD is unknown, so it is not counted.
const (
	OfPod     = 2 * time.Minute
	LastWait  = ofSandbox - 30*time.Second
	minWait   = 2 * time.Second
	ofSandbox = 2 * OfPod
)

// poll is the longest pause between two reads of the state of a link.
const poll = 20 * time.Millisecond

// For waits until the link lacks nothing, and notes the outcome in the record. missing returns what
// the link lacks, or "". If the wait takes too long and the link is required, For returns an error.
// If the link is not required, For only logs a warning. All calls for the same ADD share
// conf.Timeout.
func For(ctx context.Context, tx *attachment.Tx, conf netconf.LinkWait, missing func() (string, error)) error {
	if tx.Record.Link == nil {
		tx.Record.Link = &ledger.Link{}
	}
	noted := tx.Record.Link
	lacks, err := missing()
	noted.Up = err == nil && lacks == ""
	if err != nil || noted.Up {
		return err
	}
	bound, shortened := boundOf(tx, conf)
	if bound > 0 {
		lacks, err = during(ctx, bound, noted, missing)
	}
	if err != nil || noted.Up {
		return err
	}
	down := errors.New(lacks)
	if noted.WaitedMS > 0 {
		down = fmt.Errorf("%s, %s after it was set up", lacks, noted.Waited())
	}
	longer, wait := `, or raise "linkTimeout"`, `; "linkTimeout" makes ADD wait for the link`
	if shortened != "" {
		down = fmt.Errorf("%w (%s)", down, shortened)
		longer = ", and why the pod's other ADDs took so long"
		wait = longer // a longer linkTimeout would not help
	}
	if conf.Required {
		return failure.From(down, failure.TryAgain, `"rdma" is required`).Cure("check the NIC's cable and the switch port%s", longer)
	}
	tx.Node.Log.Warn("pod starts while its link is down", "err", down, "cure", "check the NIC's cable and the switch port"+wait)
	return nil
}

// Carrier waits for the carrier of the interface with this index in the pod, as [For] does, and
// then announces the addresses to neighbors. The kernel's own announcement is not enough
// (inetdev_event): it is lost if there is no carrier, and the kernel does not announce addresses of
// an interface that was already up. If the kernel has sent its announcement, Carrier does not
// repeat it. tx.Link must be nil for an interface that another plugin has set up.
func Carrier(ctx context.Context, tx *attachment.Tx, conf netconf.LinkWait, index int) error {
	return carrier(ctx, tx, conf, index, tx.Link == nil || !kernelAnnounces(tx.Link))
}

// kernelAnnounces reports whether the kernel's own announcement is sent when the link is set up
// (inetdev_event). before is the link before it is set up. The announcement is sent if before is
// down and already has a carrier, as a macvlan has from its parent device. It is not sent for an
// IPoIB interface: when a new IPoIB interface is set up, it loses its carrier until it has joined
// its broadcast group (ipoib_mcast_carrier_on_task).
func kernelAnnounces(before *link.Link) bool {
	return !before.IsUp() && before.Carrier && before.IPoIB == nil
}

// carrier does the work of [Carrier]. It announces the addresses if announces is true, or if it had
// to wait for the carrier.
func carrier(ctx context.Context, tx *attachment.Tx, conf netconf.LinkWait, index int, announces bool) error {
	var l *link.Link
	err := For(ctx, tx, conf, func() (lacks string, err error) {
		if l, err = link.ByIndex(tx.Pod, index); err == nil && !l.HasCarrier() {
			announces = true
			lacks = fmt.Sprintf("interface %s (%s) has no carrier", tx.IfName, tx.Record.NICName())
		}
		return lacks, err
	})
	if err != nil || !tx.Record.Link.Up || !announces {
		return err
	}
	send := announce.Addresses
	if tx.Link != nil && !tx.Node.IPAMByInterface(tx.Conf.IPAM.Type) { // otherwise the interface may have addresses that are not in the result
		send = announce.NewAddresses
	}
	if err := send(tx.Pod, l, l.MAC, tx.Layer3.Addresses()); err != nil {
		tx.Node.Log.Warn("cannot announce the addresses to neighbors", "err", err)
	}
	return nil
}

// CarrierWhile waits for the carrier as long as needed returns true, but at most for limit. It
// returns nil if no carrier comes in time. The wait counts toward the limits of [For].
func CarrierWhile(ctx context.Context, tx *attachment.Tx, limit time.Duration, index int, needed func() (bool, error)) error {
	noted := tx.Record.Link
	bound, _ := boundOf(tx, netconf.LinkWait{Timeout: limit})
	if noted.Up || bound <= 0 {
		return nil
	}
	up, needless, began := false, false, time.Now()
	waiting, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := wait.Until(waiting, poll, func() (bool, error) {
		l, err := link.ByIndex(tx.Pod, index)
		if err != nil {
			return false, err
		}
		if up = l.HasCarrier(); up {
			return true, nil
		}
		more, err := needed()
		needless = !more
		return needless, err
	})
	if !needless {
		noted.WaitedMS += time.Since(began).Milliseconds()
	}
	if wait.Ended(waiting, err) && ctx.Err() == nil {
		return nil
	}
	if err != nil || !up {
		return err
	}
	return carrier(ctx, tx, netconf.LinkWait{}, index, true)
}

// boundOf returns how long this call may wait. If that is less than what is left of conf.Timeout,
// shortened is the reason, otherwise "".
func boundOf(tx *attachment.Tx, conf netconf.LinkWait) (bound time.Duration, shortened string) {
	bound = conf.Timeout - tx.Record.Link.Waited()
	if bound <= 0 {
		return 0, ""
	}
	left, first := OfPod-tx.Record.Link.Waited(), tx.Record.Created
	for _, r := range tx.Node.OthersIn(tx.Pod, tx.Record) {
		if tx.Record.Created.Sub(r.Created) >= ofSandbox {
			continue
		}
		left -= r.Link.Waited()
		if r.Created.Before(first) {
			first = r.Created
		}
	}
	if left < bound {
		bound, shortened = max(left, 0), fmt.Sprintf("all NICs of a pod together wait at most %s", OfPod)
	}
	age := time.Since(first)
	if rest := max(LastWait-age, minWait); age < ofSandbox && rest < bound {
		bound, shortened = rest, fmt.Sprintf("the pod's first ADD began %s ago, and no ADD waits beyond %s", age.Round(time.Second), LastWait)
	}
	return bound, shortened
}

// during waits until missing returns "", but at most for bound, and notes the outcome in noted.
func during(ctx context.Context, bound time.Duration, noted *ledger.Link, missing func() (string, error)) (lacks string, err error) {
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err = wait.Until(waiting, poll, func() (bool, error) {
		var err error
		lacks, err = missing()
		return lacks == "", err
	})
	noted.WaitedMS += time.Since(began).Milliseconds()
	noted.Up = err == nil
	if wait.Ended(waiting, err) && ctx.Err() == nil {
		return lacks, nil
	}
	return lacks, err
}
