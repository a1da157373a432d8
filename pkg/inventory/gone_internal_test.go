package inventory

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// mover moves the NIC ens1 of a node to a pod and back, as a plugin does.
type mover struct {
	t         *testing.T
	node, pod *testnet.Netns
	records   *ledger.Ledger // nil for a program without a ledger
	trips     atomic.Int64
}

// newMover makes a machine whose only NICs are ens1 and ens2.
func newMover(t *testing.T) (*machine, *mover) {
	t.Helper()
	m := newMachine(t)
	node, wire := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "wire")
	node.NIC("ens1", wire)
	node.NIC("ens2", wire)
	m.host.Netns, m.isNIC = node.Netns, func(l *link.Link) bool { return l.Kind == "veth" }
	return m, &mover{t: t, node: node, pod: testnet.NewNetns(t, "pod")}
}

// put writes the record in this phase, if there is a ledger.
func (m *mover) put(r *ledger.Record, phase ledger.Phase) {
	if r.Phase = phase; m.records == nil {
		return
	}
	if err := m.records.Put(r); err != nil {
		m.t.Error(err)
	}
}

// trip lends the NIC and returns it. host and pod are of the caller's own, because a
// [netns.Netns] has one user.
func (m *mover) trip(host, pod *netns.Netns) {
	fatal := func(err error) {
		if err != nil {
			m.t.Error(err)
		}
	}
	l, err := link.ByName(host, "ens1")
	fatal(err)
	v, err := link.ReadView(host, l.Index)
	fatal(err)
	s, err := nicstate.Take(host, v)
	fatal(err)
	r := &ledger.Record{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: ledger.Netns{ID: pod.ID, Path: m.pod.Path},
		HostNetns: ledger.Netns{ID: host.ID, Path: m.node.Path},
		Loan:      &ledger.Loan{NIC: "ens1", Name: "ens1", Identity: l.Identity(), Snapshot: s},
	}
	m.put(r, ledger.Lending)
	fatal(link.Move(host, l.Index, pod, "net1", "ens1"))
	there, err := link.ByName(pod, "net1")
	fatal(err)
	fatal(link.SetUp(pod, there.Index))
	r.Loan.PodIndex = there.Index
	m.put(r, ledger.Lent)
	m.put(r, ledger.Returning)
	fatal(link.SetDown(pod, there.Index))
	fatal(link.MoveAs(pod, there, host, "ens1", ""))
	back, err := link.ByName(host, "ens1")
	fatal(err)
	_, err = nicstate.Restore(host, back, s)
	fatal(err)
	if m.records != nil {
		fatal(m.records.Remove(r))
	}
	m.trips.Add(1)
}

// until moves the NIC until the returned function is called.
func (m *mover) until() (stop func()) {
	m.t.Helper()
	open := func(path string) *netns.Netns {
		n, err := netns.Open(path)
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(n.Close)
		return n
	}
	host, pod := open(m.node.Path), open(m.pod.Path)
	var moving sync.WaitGroup
	var over atomic.Bool
	moving.Go(func() {
		for !over.Load() && !m.t.Failed() {
			m.trip(host, pod)
		}
	})
	return func() { over.Store(true); moving.Wait() }
}

func TestNICThatLeavesWhileItIsReadIsNotProtected(t *testing.T) {
	const trips = 40
	for name, byPlugin := range map[string]bool{"by a plugin": true, "by another program": false} {
		t.Run(name, func(t *testing.T) {
			m, moves := newMover(t)
			if byPlugin {
				var err error
				if moves.records, err = ledger.Open(m.stateDirs[0]); err != nil {
					t.Fatal(err)
				}
				defer moves.records.Close()
			}
			stop := moves.until()
			defer stop()
			reads, lent, seen := 0, 0, 0
			for ; moves.trips.Load() < trips && !t.Failed(); reads++ {
				list, err := m.nics()
				if err != nil || len(list.Errors) > 0 {
					t.Fatal(err, list.Errors)
				}
				entries := map[string]int{}
				for _, n := range list.NICs {
					if n.Name == "" {
						continue // of sysfs
					}
					entries[n.Name]++
					if n.Protected != "" {
						t.Fatalf("%s is protected: %s", n.Name, n.Protected)
					}
					if n.Lent != nil {
						lent++
					}
				}
				if entries["ens2"] != 1 || entries["ens1"] > 1 || byPlugin && entries["ens1"] != 1 || len(entries) > 2 {
					t.Fatalf("%v", entries)
				}
				seen += entries["ens1"]
			}
			stop()
			t.Logf("of %d reads during %d trips, %d saw the NIC, %d of them lent", reads, moves.trips.Load(), seen, lent)
			if seen == 0 || byPlugin != (lent > 0) {
				t.Errorf("%d reads saw the NIC, %d of them lent", seen, lent)
			}
		})
	}
}

func TestAttachmentWhosePodEndsWhileItIsReadIsGone(t *testing.T) {
	m, moves := newMover(t)
	records, err := ledger.Open(m.stateDirs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	r := &ledger.Record{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Phase: ledger.Lent, Netns: ledger.Netns{ID: moves.pod.ID, Path: moves.pod.Path},
		HostNetns: ledger.Netns{ID: moves.node.ID, Path: moves.node.Path},
		RDMA:      &ledger.RDMA{Devices: []ledger.RDMADevice{{Name: "mlx5_0", ParentDev: "0000:3d:00.0", Lent: true}}},
	}
	if err := records.Put(r); err != nil {
		t.Fatal(err)
	}
	now := &live{Namespaces: Namespaces{HostNetns: m.host.Netns}, brief: true}
	now.open("found "+podKey(r), func() (*Namespace, error) { return &Namespace{}, errPodGone })
	attachments, _, errs := collect(records, now, false)
	if len(errs) > 0 || len(attachments) != 1 || attachments[0].State != Gone {
		t.Errorf("%+v, %v", attachments, errs)
	}
}

func TestDeviceThatItsPluginMovesIsNotMissing(t *testing.T) {
	m := newMachine(t)
	records, err := ledger.Open(m.stateDirs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	made := func(id string, phase ledger.Phase) *ledger.Record {
		r := &ledger.Record{
			Key: ledger.Key{ContainerID: id, IfName: "net1"}, Phase: phase,
			RDMA: &ledger.RDMA{Devices: []ledger.RDMADevice{{Name: "mlx5_0", ParentDev: "0000:3d:00.0", Lent: true}}},
		}
		if err := records.Put(r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	missing := fmt.Errorf("RDMA device mlx5_0: %w", rdma.ErrNotFound)
	read := []error{errors.New("of another kind"), missing}
	removed, changed := made("removed", ledger.Lent), made("changed", ledger.Lent)
	if err := records.Remove(removed); err != nil {
		t.Fatal(err)
	}
	made("changed", ledger.Returning)
	for name, c := range map[string]struct {
		record *ledger.Record
		want   int
	}{
		"lent": {made("lent", ledger.Lent), 2}, "ADD is running": {made("lending", ledger.Lending), 1},
		"DEL is running": {changed, 1}, "DEL has ended": {removed, 1},
	} {
		if left := lasting(records, c.record, slices.Clone(read)); len(left) != c.want {
			t.Errorf("%s: %v", name, left)
		}
	}
}
