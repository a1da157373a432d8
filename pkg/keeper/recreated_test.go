package keeper

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// told counts notices by their reasons.
type told map[string]int

// hear returns the notices of k from now on.
func hear(k *stateDir) told {
	said := told{}
	k.Reporter = component.NewReporter("keeper", k.log, func(n component.Notice) { said[n.Reason]++ })
	return said
}

// device is an RDMA device that was lent, as the kernel would show it.
type device struct {
	onHost, inPod bool
	scans, moves  int   // into the pod
	err           error // of a move
	stays         bool  // a move succeeds and moves nothing
}

// newTestRecreatedWatch returns a watch of a node with one attachment, and the RDMA device of that
// attachment.
func newTestRecreatedWatch(t *testing.T) (*recreatedWatch, *device, told) {
	t.Helper()
	k, r := newStuckKeeper(t)
	said := hear(k)
	r.Phase, r.IPAM = ledger.Lent, nil
	r.RDMA = &ledger.RDMA{Mode: string(rdma.Exclusive), Devices: []ledger.RDMADevice{{Name: "mlx5_0", Lent: true}}}
	if err := k.node.Ledger.Put(r); err != nil {
		t.Fatal(err)
	}
	m, d := newRecreatedWatch(k), &device{inPod: true}
	m.onHost = func(*attachment.Node) (func(*ledger.Record) bool, error) {
		return func(*ledger.Record) bool { return d.onHost }, nil
	}
	m.missing = func(_ *attachment.Node, r *ledger.Record) ([]ledger.RDMADevice, error) {
		d.scans++
		if d.inPod {
			return nil, nil
		}
		return r.RDMA.Devices, nil
	}
	m.move = func(context.Context, *attachment.Node, *ledger.Record) (bool, error) {
		switch {
		case d.err != nil:
			return false, d.err
		case !d.onHost:
			return false, fmt.Errorf("RDMA device mlx5_0: %w", rdma.ErrNotFound)
		case d.stays:
			return false, nil
		}
		d.moves++
		d.onHost, d.inPod = false, true
		return true, nil
	}
	return m, d, said
}

// A privileged process of a pod can move the device to a network namespace of its own, and
// end that.
func TestPodThatPutsItsRDMADeviceOnTheHostCausesFewMoves(t *testing.T) {
	m, d, said := newTestRecreatedWatch(t)
	ctx, now := t.Context(), time.Now()
	for began := now; now.Before(began.Add(time.Hour)); now = now.Add(recreatedRest) {
		d.onHost, d.inPod = true, false // each has a notice
		m.scan(ctx, now)
	}
	if d.moves < 10 || d.moves > 25 || said["RDMADeviceRemade"] != d.moves || len(said) != 1 {
		t.Errorf("%d moves and the Events %v in an hour", d.moves, said)
	}
	if m.dir.lacking != 1 {
		t.Errorf("the metric has %d attachments", m.dir.lacking)
	}
}

// only returns the node's record.
func (m *recreatedWatch) only(t *testing.T) *ledger.Record {
	t.Helper()
	records, errs := m.dir.node.Ledger.List()
	if len(records) != 1 || len(errs) > 0 {
		t.Fatal(records, errs)
	}
	return records[0]
}

// A pod can also hide its device, and later put the device back in its place.
func TestPodThatHidesItsRDMADeviceNowAndThenCausesFewEvents(t *testing.T) {
	m, d, said := newTestRecreatedWatch(t)
	now := time.Now()
	for began := now; now.Before(began.Add(time.Hour)); now = now.Add(slow) {
		d.inPod = !d.inPod
		m.scan(t.Context(), now)
	}
	if said["RDMADeviceMissing"] == 0 || said["RDMADeviceMissing"] > 12 {
		t.Errorf("Events in an hour: %v", said)
	}
}

func TestDriverThatResetsSeldomIsFollowedAtOnce(t *testing.T) {
	m, d, _ := newTestRecreatedWatch(t)
	now := time.Now()
	for reset := 1; reset <= 5; reset++ {
		d.onHost, d.inPod = true, false
		if m.scan(t.Context(), now); d.moves != reset || m.dir.lacking != 0 {
			t.Fatalf("reset %d: %d moves, %d lack a device", reset, d.moves, m.dir.lacking)
		}
		for range 30 {
			now = now.Add(slow)
			m.scan(t.Context(), now)
		}
	}
	if len(m.known) != 0 {
		t.Error("it remembers what was calm for long")
	}
}

// A DEL can return the device between the scan and the lock.
func TestDeviceThatDELHasReturnedIsNotReported(t *testing.T) {
	m, d, said := newTestRecreatedWatch(t)
	d.onHost, d.inPod, d.stays = true, false, true
	if m.scan(t.Context(), time.Now()); len(said) != 0 || m.dir.lacking != 0 {
		t.Errorf("Events %v, %d lack a device", said, m.dir.lacking)
	}
	d.err = statefile.ErrBusy
	now := time.Now()
	if next := m.scan(t.Context(), now); next.Sub(now) > retryLocked || len(said) != 0 || m.dir.lacking != 0 {
		t.Errorf("Events %v, next look in %s, %d lack a device", said, next.Sub(now), m.dir.lacking)
	}
}

func TestMoveThatTheEndOfTheAgentInterruptsIsNotReported(t *testing.T) {
	m, d, said := newTestRecreatedWatch(t)
	ctx, cancel := context.WithCancel(t.Context())
	d.onHost, d.inPod, d.err = true, false, context.Canceled
	cancel()
	if m.scan(ctx, time.Now()); len(said) != 0 {
		t.Errorf("Events %v", said)
	}
}

// Each change of RDMA devices anywhere on the node causes a scan of the host only.
func TestManyChangesDelayNoLookIntoThePods(t *testing.T) {
	m, d, said := newTestRecreatedWatch(t)
	now := time.Now()
	m.scan(t.Context(), now)
	d.inPod = false // and nowhere else
	for range 45 {
		now = now.Add(recreatedRest)
		m.scan(t.Context(), now)
	}
	if d.scans != 2 || said["RDMADeviceMissing"] != 1 || m.dir.lacking != 1 {
		t.Errorf("%d looks into the pod, Events %v, %d lack a device", d.scans, said, m.dir.lacking)
	}
	d.err = errors.New("the driver refuses")
	for range 100 {
		now = now.Add(slow)
		m.scan(t.Context(), now)
	}
	if said["RDMADeviceMissing"] != 2 {
		t.Errorf("Events %v", said)
	}
	if err := m.dir.node.Ledger.Remove(m.only(t)); err != nil {
		t.Fatal(err)
	}
	if m.scan(t.Context(), now); m.dir.lacking != 0 || len(m.known) != 0 {
		t.Errorf("after the attachment's end %d lack a device", m.dir.lacking)
	}
}
