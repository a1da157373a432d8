package plans_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/part/address"
	"github.com/rail-cni/rail-cni/pkg/part/linkwait"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
)

// unplug takes the far end of the NIC's cable down, and thereby the NIC's carrier.
func (b *bench) unplug() {
	b.t.Helper()
	b.wire.IP("link", "set", nicName+"-sw", "down")
	for !strings.Contains(b.node.IP("link", "show", nicName), "state DOWN") { // linkwatch
		time.Sleep(5 * time.Millisecond)
	}
}

func (b *bench) plug() {
	b.t.Helper()
	b.wire.IP("link", "set", nicName+"-sw", "up")
}

// plugLater lets the carrier come some time after the interface was set up in the pod.
func (b *bench) plugLater(after time.Duration) {
	var done sync.WaitGroup
	done.Go(func() {
		if err := b.upInPod(); err != nil {
			b.t.Error(err)
		}
		time.Sleep(after)
		b.plug()
	})
	b.t.Cleanup(done.Wait)
}

// upInPod waits until ADD has set net1 up.
func (b *bench) upInPod() error {
	pod, err := netns.Open("/run/netns/" + b.pod.Name)
	if err != nil {
		return err
	}
	defer pod.Close()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if l, err := link.ByName(pod, "net1"); err == nil && l.IsUp() {
			return nil
		}
	}
	return errors.New("ADD does not set net1 up")
}

// onTheWire waits until an announcement is heard.
func onTheWire(t *testing.T, heard func() []string, want string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !slices.Contains(heard(), want); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never heard that %s, only %q", want, heard())
		}
	}
}

var bothFamilies = map[string]any{"type": "whereabouts", "range": "172.31.1.0/24", "ipRanges": []any{map[string]any{"range": "fd31::/64"}}}

// The kernel announces IPv4 addresses when the interface is set up, which is too early
// for a NIC whose link trains for seconds.
func TestHolderIsAnnouncedAlthoughTheCarrierComesLate(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			config := b.config
			if plugin == "macvlan" {
				config = b.macvlanConfig
			}
			heard := b.wire.Announced(nicName + "-sw")
			b.unplug()
			b.plugLater(300 * time.Millisecond)
			conf := config(map[string]any{"linkTimeout": "1m", "ipam": bothFamilies})
			b.node.MustRun(b.call("ADD", conf))
			r := b.records()[0]
			if r.Link == nil || !r.Link.Up || r.Link.WaitedMS < 250 || r.Link.WaitedMS > 30000 {
				t.Errorf("link in the record: %+v", r.Link)
			}
			for _, ip := range []string{"172.31.1.1", "fd31::1"} {
				onTheWire(t, heard, ip+" is at "+r.MAC)
			}
			b.node.MustRun(b.call("DEL", conf))
		})
	}
}

func TestHolderIsAnnouncedWithoutAWait(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"host-device", "macvlan"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			config := b.config
			if plugin == "macvlan" {
				config = b.macvlanConfig
			}
			heard := b.wire.Announced(nicName + "-sw")
			conf := config(map[string]any{"ipam": bothFamilies})
			b.node.MustRun(b.call("ADD", conf))
			r := b.records()[0]
			if r.Link == nil || !r.Link.Up || r.Link.WaitedMS != 0 {
				t.Errorf("link in the record: %+v", r.Link)
			}
			for _, ip := range []string{"172.31.1.1", "fd31::1"} {
				onTheWire(t, heard, ip+" is at "+r.MAC)
			}
			b.node.MustRun(b.call("DEL", conf))
			if plugin != "macvlan" {
				return
			}
			// The kernel's own announcement was not lost: a second one would only cost time.
			all := slices.DeleteFunc(heard(), func(text string) bool { return strings.HasPrefix(text, "fe80::") })
			if len(all) != 2 {
				t.Errorf("announced %q, want each address once", all)
			}
		})
	}
}

// add runs ADD of host-device in this process, with this wait for the carrier.
func (b *bench) add(key ledger.Key, pod *testnet.Netns, config string, wait netconf.LinkWait) (time.Duration, error) {
	b.t.Helper()
	conf, err := netconf.ParseHostDevice([]byte(config))
	if err != nil {
		b.t.Fatal(err)
	}
	p := plans.HostDevicePlan(conf)
	for i, part := range p.Apply {
		if _, ok := part.(address.Interface); ok {
			p.Apply[i] = address.Interface{Wait: wait}
		}
	}
	n := b.open()
	began := time.Now()
	_, err = n.Add(context.Background(), &attachment.Call{
		Key: key, Netns: "/run/netns/" + pod.Name, Path: testnet.Bin(b.t), Conf: &conf.Common,
	}, p)
	return time.Since(began), err
}

func TestAddWithoutTheRequiredLinkFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	b.unplug()
	before := b.node.State()
	took, err := b.add(ledger.Key{ContainerID: "c1", IfName: "net1"}, b.pod, b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")}),
		netconf.LinkWait{Timeout: 300 * time.Millisecond, Required: true})
	fails(t, err, cnierr.TryAgain, `"rdma" is required`, "interface net1 ("+nicName+") has no carrier", "after it was set up", "cable", `"linkTimeout"`)
	if took < 300*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	b.untouched(before)
}

func TestAddWithoutALinkThatIsNotRequiredWarns(t *testing.T) {
	t.Parallel()
	for timeout, least := range map[string]time.Duration{"0s": 0, "300ms": 300 * time.Millisecond} {
		b := newBench(t)
		b.unplug()
		conf := b.config(map[string]any{"linkTimeout": timeout})
		c := b.call("ADD", conf)
		_, said, err := b.node.RunSaying(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"pod starts while its link is down", "has no carrier", "linkTimeout"} {
			if !strings.Contains(said, text) {
				t.Errorf("linkTimeout %s: ADD does not say %q: %s", timeout, text, said)
			}
		}
		r := b.records()[0]
		if r.Link == nil || r.Link.Up || r.Link.Waited() < least || r.Link.Waited() > least+30*time.Second {
			t.Errorf("linkTimeout %s: link in the record: %+v", timeout, r.Link)
		}
		b.node.MustRun(b.call("DEL", conf))
	}
}

var checkedIPv6 = map[string]any{"type": "static", "addresses": []any{map[string]any{"address": "fd31::5/64"}}}

// Duplicate address detection needs a carrier, and its own wait for one is short.
func TestAddressThatCannotBeCheckedForDuplicatesIsAWarning(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.pod.Sysctl("ipv6/conf/default/accept_dad", "1")
	b.unplug()
	n := b.open()
	earlier := &ledger.Record{
		Key: ledger.Key{ContainerID: "c1", IfName: "net0"}, Plugin: "macvlan", Phase: ledger.Lent, Created: time.Now().UTC(),
		Child: &ledger.Child{Master: "ens99"}, Link: &ledger.Link{WaitedMS: (linkwait.OfPod - 400*time.Millisecond).Milliseconds()},
		Netns: ledger.Netns{ID: b.pod.ID, Path: "/run/netns/" + b.pod.Name}, HostNetns: n.HostNetns(),
	}
	if err := n.Ledger.Put(earlier); err != nil {
		t.Fatal(err)
	}
	conf := b.config(map[string]any{"ipam": checkedIPv6})
	for _, least := range []time.Duration{400 * time.Millisecond, 5 * time.Second} {
		_, said, err := b.node.RunSaying(b.call("ADD", conf))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(said, "IPv6 addresses are not checked for duplicates") != 1 || !strings.Contains(said, "no carrier: address fd31::5/64 is not checked") {
			t.Errorf("ADD says %s", said)
		}
		var waited time.Duration
		for _, r := range b.records() {
			if r.IfName == "net1" {
				waited = r.Link.Waited()
			}
		}
		if waited < least-time.Millisecond || waited > least+30*time.Second {
			t.Errorf("it waited %v, want %v", waited, least)
		}
		b.node.MustRun(b.call("DEL", conf))
		// An interface of a running pod has a time of its own.
		earlier.Created = earlier.Created.Add(-time.Hour)
		if err := n.Ledger.Put(earlier); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDuplicateIsNoticedAfterAWaitForTheCarrier(t *testing.T) {
	t.Parallel()
	for _, timeout := range []string{"", "1m"} {
		b := newBench(t)
		b.pod.Sysctl("ipv6/conf/default/accept_dad", "1")
		// The first question may come before the far end of the cable is ready.
		b.pod.Sysctl("ipv6/conf/default/dad_transmits", "3")
		b.unplug()
		b.wire.IP("addr", "add", "fd31::5/64", "dev", nicName+"-sw", "nodad") // a link that goes down loses it
		b.plugLater(700 * time.Millisecond)
		keys := map[string]any{"ipam": checkedIPv6}
		if timeout != "" {
			keys["linkTimeout"] = timeout
		}
		_, err := b.node.Run(b.call("ADD", b.config(keys)))
		if err == nil || !strings.Contains(err.Error(), "duplicate address") || !strings.Contains(err.Error(), "fd31::5") {
			t.Errorf("linkTimeout %q: %v", timeout, err)
		}
	}
}

// All interfaces of a pod share one time.
func TestWaitsOfAllNICsOfAPodAreBoundedTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.unplug()
	n := b.open()
	earlier := &ledger.Record{
		Key: ledger.Key{ContainerID: "c1", IfName: "net0"}, Plugin: "macvlan", Phase: ledger.Lent, Created: time.Now().UTC(),
		Child: &ledger.Child{Master: "ens99"}, Link: &ledger.Link{Up: true, WaitedMS: (linkwait.OfPod - 400*time.Millisecond).Milliseconds()},
		Netns: ledger.Netns{ID: b.pod.ID, Path: "/run/netns/" + b.pod.Name}, HostNetns: n.HostNetns(),
	}
	if err := n.Ledger.Put(earlier); err != nil {
		t.Fatal(err)
	}
	wait := netconf.LinkWait{Timeout: time.Hour, Required: true}
	key := ledger.Key{ContainerID: "c1", IfName: "net1"}
	took, err := b.add(key, b.pod, b.config(nil), wait)
	fails(t, err, cnierr.TryAgain, "has no carrier", "all NICs of a pod together wait at most 2m0s")
	if took < 400*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	timing.Check(t, "the rest of the time of all NICs together", took, 6*time.Second)
	// The addresses of the pod may have taken the time. A link that comes up at once is
	// waited for nevertheless.
	earlier.Created, earlier.Link.WaitedMS = time.Now().UTC().Add(-linkwait.LastWait-5*time.Second), 0
	if err := n.Ledger.Put(earlier); err != nil {
		t.Fatal(err)
	}
	took, err = b.add(key, b.pod, b.config(nil), wait)
	fails(t, err, cnierr.TryAgain, "has no carrier", "the pod's first ADD began 3m3", "no ADD waits beyond 3m30s", "why the pod's other ADDs took so long")
	if took < 2*time.Second {
		t.Errorf("it took %v", took)
	}
	timing.Check(t, "the wait of a late ADD", took, 6*time.Second)
	// An interface of a running pod has a time of its own.
	earlier.Created = earlier.Created.Add(-time.Hour)
	if err := n.Ledger.Put(earlier); err != nil {
		t.Fatal(err)
	}
	wait.Timeout = 800 * time.Millisecond
	took, err = b.add(key, b.pod, b.config(nil), wait)
	fails(t, err, cnierr.TryAgain, "has no carrier")
	if took < 800*time.Millisecond {
		t.Errorf("in a running pod it took %v", took)
	}
	// Another pod has its own time.
	other := testnet.NewNetns(t, "pod")
	took, err = b.add(ledger.Key{ContainerID: "c2", IfName: "net1"}, other, b.config(nil), wait)
	fails(t, err, cnierr.TryAgain, "has no carrier")
	if took < 800*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

// The root of a pod can take its interface down while ADD waits for the carrier.
func TestAWaitForALinkDelaysNoOtherPod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.unplug()
	b.node.NIC("ens2np0", b.wire)
	waits := make(chan error, 1)
	go func() {
		_, err := b.node.Run(b.call("ADD", b.config(map[string]any{"linkTimeout": "1m"})))
		waits <- err
	}()
	if err := b.upInPod(); err != nil {
		t.Fatal(err)
	}
	other := testnet.NewNetns(t, "pod")
	call := b.call("ADD", b.config(map[string]any{"device": "ens2np0", "linkTimeout": "1m"}))
	call.ContainerID, call.Netns = "c2", "/run/netns/"+other.Name
	b.node.MustRun(call)
	call.Verb = "DEL"
	b.node.MustRun(call)
	select {
	case err := <-waits:
		t.Fatalf("the first ADD has ended: %v", err)
	default:
	}
	b.plug()
	if err := <-waits; err != nil {
		t.Error(err)
	}
}
