package plans_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
)

// halfApplied is a part whose Apply fails after it has made the interface in the pod.
type halfApplied struct{ attachment.Part }

var errHalfway = errors.New("failed halfway")

func (p halfApplied) Apply(ctx context.Context, tx *attachment.Tx) error {
	return errors.Join(p.Part.Apply(ctx, tx), errHalfway)
}

func TestAddThatFailsHalfwayThroughGivingLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		t.Run(plugin, func(t *testing.T) {
			b := newBench(t)
			b.furnish()
			before, pod := b.node.State(), b.pod.State()
			call, p := b.inProcess(plugin, map[string]any{"ipam": localIPAM("172.31.1.0/24")})
			i := slices.IndexFunc(p.Apply, func(part attachment.Part) bool { return part.Name() == "netdev" || part.Name() == "macvlan" })
			p.Apply[i] = halfApplied{p.Apply[i]}
			_, err := b.open().Add(context.Background(), call, p)
			if !errors.Is(err, errHalfway) {
				t.Fatal(err)
			}
			b.untouched(before)
			if d := b.pod.Settled(pod); d != "" {
				t.Errorf("the pod is not as it was:\n%s", d)
			}
		})
	}
}

// inProcess returns the call and the plan for Add and Del in this process,
// instead of the plugin's.
func (b *bench) inProcess(plugin string, more map[string]any) (*attachment.Call, *attachment.Plan) {
	b.t.Helper()
	call := &attachment.Call{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/" + b.pod.Name, Path: testnet.Bin(b.t),
	}
	if plugin == "macvlan" {
		conf, err := netconf.ParseMacvlan([]byte(b.macvlanConfig(more)), netconf.Args{})
		if err != nil {
			b.t.Fatal(err)
		}
		call.Conf = &conf.Common
		return call, plans.MacvlanPlan(conf)
	}
	conf, err := netconf.ParseHostDevice([]byte(b.config(more)))
	if err != nil {
		b.t.Fatal(err)
	}
	call.Conf = &conf.Common
	return call, plans.HostDevicePlan(conf)
}

// The host itself may have a macvlan with the name of a pod's interface.
// (The library of plugins refuses such a call, unless CNI_NETNS_OVERRIDE is set.)
func TestDelInTheHostsOwnNetnsLeavesItsInterfacesAlone(t *testing.T) {
	b := newBench(t)
	b.node.IP("link", "add", "net1", "link", nicName, "type", "macvlan", "mode", "bridge")
	before := b.node.State()
	t.Setenv("CNI_NETNS_OVERRIDE", "1")
	c := b.call("DEL", b.macvlanConfig(nil))
	c.Netns = "/run/netns/" + b.node.Name
	b.node.MustRun(c)
	b.untouched(before)
	// The same call for the same link in a pod deletes it.
	b.node.IP("link", "set", "net1", "netns", b.pod.Name)
	b.node.MustRun(b.call("DEL", b.macvlanConfig(nil)))
	if _, err := link.ByName(b.pod.Netns, "net1"); err == nil {
		t.Error("DEL left a macvlan that upstream's plugin made")
	}
}

func TestAddCleansUpAfterFailedDel(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	before := b.node.State()
	c := b.call("ADD", b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")}))
	b.node.MustRun(c)
	occupy(t, b, nil)
	_, err := b.node.Run(c.With("DEL"))
	fails(t, err, cnierr.NotReturned)
	if r := b.records(); len(r) != 1 || r[0].Phase != ledger.Returning {
		t.Fatalf("after a DEL that failed the records are %+v", r)
	}
	_, err = b.node.Run(c)
	fails(t, err, cnierr.NotReturned, "an earlier attachment of", "must end first")
	b.node.IP("link", "del", nicName)
	b.node.MustRun(c)
	b.node.MustRun(c.With("DEL"))
	b.untouched(before)
}

// If the move to the host fails, the address has been freed already: the pod must not
// go on using it.
func TestNICThatIsPutBackIntoThePodHasNoAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	ipam := map[string]any{"type": "static", "addresses": []map[string]any{{"address": "10.1.1.2/24"}, {"address": "fd77::2/64"}}}
	c := b.call("ADD", b.config(map[string]any{"ipam": ipam}))
	b.node.MustRun(c)
	wasAlias := b.changeRecord(0, func(r *ledger.Record) { // the kernel refuses such an alias, and so the move
		r.Loan.Snapshot.Alias = string(make([]byte, 300))
	}).Loan.Snapshot.Alias
	_, err := b.node.Run(c.With("DEL"))
	fails(t, err, cnierr.NotReturned, "cannot return "+nicName)
	l, err := link.ByName(b.pod.Netns, "net1")
	if err != nil || !l.IsUp() {
		t.Fatalf("the NIC is not in the pod and up: %+v, %v", l, err)
	}
	if text := b.pod.IP("addr", "show", "dev", "net1", "scope", "global"); text != "" {
		t.Errorf("it has its addresses still:\n%s", text)
	}
	b.changeRecord(0, func(r *ledger.Record) { r.Loan.Snapshot.Alias = wasAlias })
	b.node.MustRun(c.With("DEL"))
	b.untouched(before)
}

// changeRecord changes the record at this place in the ledger's list, and returns the record as it
// was before.
func (b *bench) changeRecord(place int, change func(*ledger.Record)) (was *ledger.Record) {
	b.t.Helper()
	l, err := ledger.Open(b.state)
	if err != nil {
		b.t.Fatal(err)
	}
	defer l.Close()
	key := b.records()[place].Key
	was, err = l.Get(key)
	if err != nil {
		b.t.Fatal(err)
	}
	now, err := l.Get(key)
	if err == nil {
		change(now)
		err = l.Put(now)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return was
}
