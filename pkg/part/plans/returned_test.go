package plans_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/mutate"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
)

// everything returns all facts about the NIC from three readers, which share no
// code with the snapshot.
func everything(n *testnet.Netns, nic string) string {
	return n.State() + n.Attributes(nic) + n.Kept(nic)
}

func TestWhatThePodDidToTheNICDoesNotComeHome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// Two queues, and frames that are small enough for an XDP program on a
	// veth.
	b.node.IP("link", "del", nicName)
	b.node.IP("link", "add", nicName, "mtu", "9000", "numtxqueues", "2", "numrxqueues", "2", "type", "veth", "peer", "name", nicName+"-sw", "netns", b.wire.Name)
	b.wire.IP("link", "set", nicName+"-sw", "up")
	b.node.AddAltname(nicName, "enp4s0np0")
	b.node.IP("link", "set", nicName, "up")
	time.Sleep(100 * time.Millisecond)
	b.furnish()
	n := b.open()
	conf, err := netconf.ParseHostDevice([]byte(b.config(nil)))
	if err != nil {
		t.Fatal(err)
	}
	p := plans.HostDevicePlan(conf)
	call := &attachment.Call{
		Key: ledger.Key{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/" + b.pod.Name,
		Path: testnet.Bin(t) + ":" + testnet.Peers(t), Conf: &conf.Common,
	}
	before, inPod := b.settle(), ""
	table := slices.DeleteFunc(slices.Clone(mutate.Table), func(m mutate.Mutation) bool { return m.Rig })
	for _, m := range need.Sample(t, len(table)/4, table) {
		t.Run(m.Name, func(t *testing.T) {
			if _, err := n.Add(context.Background(), call, p); err != nil {
				t.Fatal(err)
			}
			if inPod == "" {
				inPod = everything(b.pod, "net1")
			}
			if err := m.Set(b.pod, "net1"); err != nil {
				t.Errorf("it cannot be done here: %v", err)
			} else if m.Name != "name" && everything(b.pod, "net1") == inPod {
				t.Error("nothing shows that it was done")
			}
			if err := n.Del(context.Background(), call, p); err != nil {
				t.Fatal(err)
			}
			before = b.expect(t, m, before)
			b.clearPod()
		})
	}
}

// settle waits until the NIC's state stays the same, and returns it.
func (b *bench) settle() string {
	b.t.Helper()
	last := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		now := everything(b.node, nicName)
		if now == last && strings.Contains(now, "fe80:") {
			return now
		}
		last = now
	}
	b.t.Fatal("the NIC does not settle")
	return ""
}

// expect fails the test unless the NIC is as before and nothing is reported or,
// for a setting that cannot be restored, has changed and that is reported. It
// returns the state that the next mutation must restore.
func (b *bench) expect(t *testing.T, m mutate.Mutation, before string) string {
	t.Helper()
	said := b.returned()
	if (m.Fate == mutate.Reported) != (said != "") {
		t.Errorf("it is to be %s, and of the NIC is said: %q", m.Fate, said)
	}
	if m.Fate != mutate.Restored {
		now := b.settle()
		if now == before {
			t.Errorf("it is to be %s, and the NIC is as it was", m.Fate)
		}
		return now
	}
	d := ""
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if d = testnet.Diff(before, everything(b.node, nicName)); d == "" {
			return before
		}
	}
	t.Errorf("the NIC is not as it was:\n%s", d)
	return b.settle()
}

// returned returns the notes about NICs that were not returned as they were,
// and clears them.
func (b *bench) returned() string {
	b.t.Helper()
	l, err := ledger.Open(b.state)
	if err != nil {
		b.t.Fatal(err)
	}
	defer l.Close()
	all, errs := l.Returned()
	if len(errs) > 0 {
		b.t.Fatal(errs)
	}
	var said []string
	for _, r := range all {
		said = append(said, r.NIC+": "+strings.Join(r.Changed, "; "))
		if err := os.Remove(r.File); err != nil {
			b.t.Fatal(err)
		}
	}
	return strings.Join(said, "\n")
}

// clearPod deletes the links that a mutation made beside the NIC.
func (b *bench) clearPod() {
	b.t.Helper()
	links, err := link.Links(b.pod.Netns)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, l := range links {
		if l.Name != "lo" {
			_ = link.Delete(b.pod.Netns, l.Index)
		}
	}
}

func TestDocsTellWhatBecomesOfEverySetting(t *testing.T) {
	t.Parallel()
	text := string(readFile(t, "../../../docs/reference/returned.md"))
	if !strings.Contains(text, mutate.Markdown()) {
		t.Errorf("docs/reference/returned.md is to have this table:\n%s", mutate.Markdown())
	}
}
