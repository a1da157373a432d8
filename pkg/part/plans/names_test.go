package plans_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// returnedNIC lends the NIC, and moves it back to the host as the kernel does when a
// pod netns ends: under its name in the pod.
func returnedNIC(t *testing.T, more ...string) *bench {
	t.Helper()
	b := newBench(t)
	b.node.MustRun(b.call("ADD", b.config(nil)))
	if len(more) > 0 {
		b.pod.IP(more...)
	}
	b.pod.IP("link", "set", "net1", "netns", b.node.Name)
	return b
}

// delAwaitsNames holds the lock of names while a DEL runs. The test fails if the DEL does not wait
// for the lock. delAwaitsNames calls under, and then releases the lock.
func (b *bench) delAwaitsNames(long time.Duration, under func()) {
	b.t.Helper()
	n := b.open()
	call, p := b.inProcess("host-device", nil)
	lock, err := n.Ledger.LockNames(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Del(context.Background(), call, p) }()
	select {
	case err := <-ended:
		b.t.Errorf("it did not wait for the lock: %v", err)
		ended <- err
	case <-time.After(long):
	}
	under()
	if err := errors.Join(lock.Unlock(), <-ended); err != nil {
		b.t.Error(err)
	}
}

// A process that needs a name for its own NIC renames another NIC that still has that name from
// a pod. It must not rename the other NIC while that NIC is getting its own name back.
func TestReturnedNICIsRenamedUnderTheLockOfNames(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]string{
		"under the pod's name":            nil,
		"with its own name as an altname": {"link", "property", "add", "dev", "net1", "altname", nicName},
	} {
		t.Run(name, func(t *testing.T) {
			b := returnedNIC(t, more...)
			b.delAwaitsNames(time.Second, func() {})
			if _, err := link.ByName(b.node.Netns, nicName); err != nil {
				t.Error(err)
			}
		})
	}
}

// If a link has the name of a NIC that is in a pod, the link may be another NIC that is getting its
// own name back. So the link is looked at under the lock.
func TestNameIsFreedUnderTheLockOfNames(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := b.node.State()
	b.node.MustRun(b.call("ADD", b.config(nil)))
	occupy(t, b, nil)
	b.delAwaitsNames(500*time.Millisecond, func() { b.node.IP("link", "del", nicName) })
	b.untouched(before)
}

// onWarning is a log handler that is called with each message.
type onWarning func(string)

func (f onWarning) Enabled(context.Context, slog.Level) bool      { return true }
func (f onWarning) Handle(_ context.Context, r slog.Record) error { f(r.Message); return nil }
func (f onWarning) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f onWarning) WithGroup(string) slog.Handler                 { return f }

// TestLinkOfARecordOfAnotherBootKeepsItsName has a link with the name of a NIC that returns. Only
// a NIC that is lent now may have got that name in a pod: a record of an earlier boot, or of
// another host netns, names a link that is nobody's.
func TestLinkOfARecordOfAnotherBootKeepsItsName(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*ledger.Record){
		"another boot":       func(r *ledger.Record) { r.BootID = "11111111-2222-3333-4444-555555555555" },
		"another host netns": func(r *ledger.Record) { r.HostNetns.Inode += 1 << 20; r.HostNetns.Cookie += 1 << 40 },
		"neither":            func(*ledger.Record) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.state = filepath.Join(testnet.OnDisk(t), "state")
			b.node.NIC("ens13np0", b.wire)
			other := b.ofNIC("ADD", 1, "ens13np0")
			b.node.MustRun(b.call("ADD", b.config(nil)))
			b.node.MustRun(other)
			b.pod.IP("link", "set", other.IfName, "name", nicName)
			b.pod.IP("link", "set", nicName, "netns", b.node.Name)
			l, err := link.ByName(b.node.Netns, nicName)
			if err != nil {
				t.Fatal(err)
			}
			b.changeRecord(1, change) // of other
			_, err = b.node.Run(b.call("DEL", b.config(nil)))
			now, findErr := link.ByIndex(b.node.Netns, l.Index)
			if findErr != nil {
				t.Fatal(findErr)
			}
			if renamed := now.Name != nicName; renamed != (name == "neither") {
				t.Errorf("the link is called %s; the NIC's DEL: %v", now.Name, err)
			}
		})
	}
}

// The rest of a NIC's state can take seconds to restore. Other NICs need the lock then.
func TestLockOfNamesIsNotHeldForTheRest(t *testing.T) {
	t.Parallel()
	b := returnedNIC(t)
	forge(t, b, func(r *ledger.Record) { r.Loan.Snapshot.Sysctls["ipv4/conf/"+nicName+"/none"] = "1" })
	n := b.open()
	asked := false
	n.Log = slog.New(onWarning(func(said string) {
		if !strings.Contains(said, "cannot restore") {
			return
		}
		asked = true
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		lock, err := n.Ledger.LockNames(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		_ = lock.Unlock()
	}))
	call, p := b.inProcess("host-device", nil)
	if err := n.Del(context.Background(), call, p); err != nil {
		t.Fatal(err)
	}
	if !asked {
		t.Error("nothing was said that could not be restored")
	}
}

// TestAltnameOfTheNICIsTheNameInThePod has a NIC that an earlier plugin, or udev, gave the
// pod's name as an altname: the kernel refuses that name also to the link itself.
func TestAltnameOfTheNICIsTheNameInThePod(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"net1", "enp4s0np0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.node.IP("link", "property", "add", "dev", nicName, "altname", "net1", "altname", "slot7")
			before := b.node.State()
			call := b.call("ADD", b.config(nil))
			call.IfName = name
			b.node.MustRun(call)
			if l, err := link.ByName(b.pod.Netns, name); err != nil || !slices.Contains(l.AltNames, "slot7") {
				t.Errorf("in the pod it is %+v, %v", l, err)
			}
			b.node.MustRun(call.With("DEL"))
			b.untouched(before)
		})
	}
}

// An ADD that fails between the removal of the altname and the end of the move restores it.
func TestAltnameReturnsWhenTheMoveFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("link", "property", "add", "dev", nicName, "altname", "net1")
	before := b.node.State()
	at := b.open()
	at.Fault = func(step string) error {
		if step == "confirm" {
			b.pod.IP("link", "add", "net1", "type", "ifb") // after ADD has looked
		}
		return nil
	}
	call, plan := b.inProcess("host-device", nil)
	if _, err := at.Add(t.Context(), call, plan); !errors.Is(err, unix.EEXIST) {
		t.Errorf("ADD: %v", err)
	}
	b.untouched(before)
}

// A MAC address may be written in each form that net.ParseMAC reads. A second ADD finds by it that
// the NIC is lent.
func TestHWAddrInEachSpelling(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("link", "set", nicName, "down")
	b.node.IP("link", "set", nicName, "address", "02:00:5e:0a:0b:0c", "up")
	before := b.node.State()
	for _, spelling := range []string{"02:00:5e:0a:0b:0c", "02:00:5E:0A:0B:0C", "02-00-5e-0a-0b-0c", "0200.5e0a.0b0c"} {
		config := b.config(map[string]any{"device": nil, "hwaddr": spelling})
		b.node.MustRun(b.call("ADD", config))
		second := b.call("ADD", config)
		second.ContainerID, second.IfName = "c2", "net2"
		_, err := b.node.Run(second)
		fails(t, err, cnierr.NICLent) // and not "no such NIC"
		b.node.MustRun(b.call("DEL", config))
		b.untouched(before)
	}
}

// TestNameTakenInThePodLeavesTheNICAsItIs has an interface of the pod with the wanted name, or with
// it as an altname: nothing of the host's NIC is touched.
func TestNameTakenInThePodLeavesTheNICAsItIs(t *testing.T) {
	t.Parallel()
	for name, commands := range map[string][][]string{
		"name":    {{"link", "add", "net1", "type", "veth", "peer", "name", "other"}},
		"altname": {{"link", "add", "eth0", "type", "veth", "peer", "name", "other"}, {"link", "property", "add", "dev", "eth0", "altname", "net1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.furnish()
			b.node.IP("-6", "route", "add", "fd00:30::/48", "via", "fd00:9::fe", "mtu", "4000")
			for _, c := range commands {
				b.pod.IP(c...)
			}
			before, pod, index := b.node.State(), b.pod.State(), b.node.IP("-o", "link", "show", nicName)
			_, err := b.node.Run(b.call("ADD", b.config(map[string]any{"useInterfaceNetwork": true})))
			fails(t, err, cnierr.NameTaken, "net1")
			b.untouched(before)
			if now := b.node.IP("-o", "link", "show", nicName); now != index {
				t.Errorf("the NIC has moved:\n%sbefore:\n%s", now, index)
			}
			if d := b.pod.Settled(pod); d != "" {
				t.Errorf("the pod is not as it was:\n%s", d)
			}
		})
	}
}
