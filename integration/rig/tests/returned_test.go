//go:build rig

package tests

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/mutate"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// TestWhatThePodDidToTheDeviceDoesNotComeHome is the part of the table that a
// NIC of hardware has and a veth lacks, once with a DEL and once with a pod
// that dies.
func TestWhatThePodDidToTheDeviceDoesNotComeHome(t *testing.T) {
	n := newNode(t)
	n.setMode(rdma.Exclusive) // the RDMA device moves too
	t.Cleanup(func() { n.setMode(rdma.Shared) })
	n.furnish(1)
	n.Batch(nil, "link set "+nicName(0)+" protodown_reason 1 on") // also while nothing keeps it down
	t.Cleanup(func() { n.Batch(nil, "link set "+nicName(0)+" protodown_reason 1 off") })
	n.Exec("dcb", "app", "add", "dev", nicName(0), "dscp-prio", "26:3", "46:6")
	n.Exec("dcb", "pfc", "set", "dev", nicName(0), "prio-pfc", "3:on")
	t.Cleanup(func() { n.Exec("dcb", "app", "flush", "dev", nicName(0)) })
	config := n.config(0, map[string]any{"rdma": "required"})
	everything := func() string { return n.Attributes(nicName(0)) + n.Kept(nicName(0)) }
	before := everything()
	table := slices.DeleteFunc(slices.Clone(mutate.Table), func(m mutate.Mutation) bool { return !m.Rig })
	for i, m := range need.Sample(t, 10, table) {
		t.Run(m.Name, func(t *testing.T) {
			p := n.pod("pod")
			n.MustRun(p.call("ADD", "net1", config))
			inPod := p.Attributes("net1") + p.Kept("net1")
			if err := m.Set(p.Netns, "net1"); err != nil {
				t.Errorf("it cannot be done here: %v", err)
			} else if p.Attributes("net1")+p.Kept("net1") == inPod {
				t.Error("nothing shows that it was done")
			}
			if i%2 == 0 {
				p.Kill()
				n.fallen([]loan{{rail: 0}})
				n.gc()
			} else {
				n.MustRun(p.call("DEL", "net1", config))
			}
			if said := n.returned(); (m.Fate == mutate.Reported) != (said != "") {
				t.Errorf("it is to be %s, and of the NIC is said: %q", m.Fate, said)
			}
			d, now := "", ""
			if !testnet.Within(20*time.Second, func() bool {
				now = everything()
				d = testnet.Diff(before, now)
				return (d == "") == (m.Fate == mutate.Restored)
			}) {
				t.Errorf("it is to be %s:\n%s", m.Fate, d)
			}
			before = now
		})
	}
}

// The hardware keeps the priority of a DSCP value, of which the kernel's table is only a copy that
// ends with each move. What a pod set is deleted in the pod, and what the host set is set again.
// Where the pod's namespace ended, nobody knows any more what the pod had set.
func TestPrioritiesOfDSCPValuesDoNotComeHome(t *testing.T) {
	n := newNode(t)
	n.up(1)
	for _, values := range [][]string{nil, {"26:3", "46:6"}} {
		for _, value := range values {
			n.Exec("dcb", "app", "add", "dev", nicName(0), "dscp-prio", value)
		}
		inHardware := func() string {
			text, err := os.ReadFile("/sys/bus/pci/devices/" + nicPCI(0) + "/dscp")
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(text))
		}
		shown := func() string { return n.Exec("dcb", "-N", "app", "show", "dev", nicName(0)) }
		hardware, table := inHardware(), shown()
		if hardware != strings.Join(values, " ") {
			t.Fatalf("the hardware has %q", hardware)
		}
		p := n.pod("pod")
		config := n.config(0, nil)
		n.MustRun(p.call("ADD", "net1", config))
		for _, value := range []string{"10:5", "26:7"} {
			p.Exec("dcb", "app", "add", "dev", "net1", "dscp-prio", value)
		}
		n.MustRun(p.call("DEL", "net1", config))
		if inHardware() != hardware || shown() != table {
			t.Errorf("the hardware has %q, it had %q; the table is\n%sit was\n%s", inHardware(), hardware, shown(), table)
		}
		if said := n.returned(); said != "" {
			t.Errorf("of the NIC is said: %s", said)
		}
	}
}

// The record of a chained attachment has no NIC.
func TestChainedRDMADeviceComesHomeAsItWas(t *testing.T) {
	c := newChain(t, rdma.Exclusive)
	c.peerNIC = true
	moderation := func(n *testnet.Netns, nic string) string {
		_, device := n.RDMADevice(nic)
		answers, err := n.RDMA(1, 0, device) // RDMA_NLDEV_CMD_GET
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", testnet.Find(answers[0], 84)) // RDMA_NLDEV_ATTR_DEV_DIM
	}
	before := moderation(c.Netns, nicName(0))
	c.add()
	for _, m := range mutate.Table {
		if strings.HasPrefix(m.Name, "RDMA device: adaptive") || strings.HasPrefix(m.Name, "RDMA device: optional counter that") {
			if err := m.Set(c.pod.Netns, "net1"); err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
		}
	}
	if moderation(c.pod.Netns, "net1") == before {
		t.Error("nothing shows that it was done")
	}
	c.MustRun(c.rdma("DEL"))
	c.MustRun(c.nic("DEL"))
	c.ended()
	if now := moderation(c.Netns, nicName(0)); now != before {
		t.Errorf("adaptive moderation is %s, it was %s", now, before)
	}
	if said := c.returned(); !strings.HasPrefix(said, nicPCI(0)+": RDMA device mlx5_0: port 1: optional counters") {
		t.Errorf("of the device is said: %q", said)
	}
}

// A pod that has a NIC with its virtual functions can set those of others.
func TestVirtualFunctionsKeepTheirSettingsWhenTheirNICComesHome(t *testing.T) {
	n := newNode(t)
	const physical, pf = "/sys/bus/pci/devices/0000:01:00.0/", "enp1s0np0"
	write(t, physical+"sriov_numvfs", "2")
	t.Cleanup(func() { write(t, physical+"sriov_numvfs", "0") })
	n.Batch(nil, "link set "+pf+" up", "link set "+pf+" vf 0 mac 02:00:00:00:01:00 vlan 7 spoofchk on", "link set "+pf+" vf 1 trust on")
	n.carrier(pf)
	before := n.Attributes(pf)
	p := n.pod("pod")
	config := n.config(0, map[string]any{"device": pf, "allow": []string{"vfs"}})
	n.MustRun(p.call("ADD", "net1", config))
	p.Batch(nil,
		"link set net1 vf 0 mac 02:66:66:66:66:66 vlan 66 qos 3 spoofchk off trust on state enable",
		"link set net1 vf 1 trust off spoofchk off max_tx_rate 100 state disable")
	n.MustRun(p.call("DEL", "net1", config))
	d := ""
	testnet.Within(5*time.Second, func() bool {
		d = testnet.Diff(before, n.Attributes(pf))
		return d == ""
	})
	if said := n.returned(); d != "" || said != "" {
		t.Errorf("of the NIC is said %q:\n%s", said, d)
	}
}

// returned returns the notes about NICs that were not returned as they were,
// and clears them.
func (n *node) returned() string {
	n.t.Helper()
	l, err := ledger.Open(n.state)
	if err != nil {
		n.t.Fatal(err)
	}
	defer l.Close()
	all, errs := l.Returned()
	if len(errs) > 0 {
		n.t.Fatal(errs)
	}
	var said []string
	for _, r := range all {
		said = append(said, r.NIC+": "+strings.Join(r.Changed, "; "))
		if err := os.Remove(r.File); err != nil {
			n.t.Fatal(err)
		}
	}
	return strings.Join(said, "\n")
}

// TestNICThatIsSetUpTooEarlyGetsItsMACBack: a manager of the host may set the NIC of a dead pod up before it is
// restored, and the driver then refuses another MAC.
func TestNICThatIsSetUpTooEarlyGetsItsMACBack(t *testing.T) {
	n := newNode(t)
	n.up(1)
	before := n.State()
	p := n.pod("pod1")
	n.MustRun(p.call("ADD", "net1", n.config(0, nil)))
	p.Batch(nil, "link set net1 down", "link set net1 address 02:00:00:00:66:66")
	p.Kill()
	name := ""
	n.eventually("the NIC on the host", func() bool {
		links, err := link.Links(n.Netns.Netns)
		for _, l := range links {
			if l.ParentDev == nicPCI(0) {
				name = l.Name
			}
		}
		return err == nil && name != ""
	})
	n.IP("link", "set", name, "up")
	n.gc()
	n.untouched(before)
}
