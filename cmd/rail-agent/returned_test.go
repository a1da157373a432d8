package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func TestNICThatDidNotComeHomeAsItWasIsToldOnce(t *testing.T) {
	l := newLab(t)
	records, err := ledger.Open(l.state)
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	put := func(changed string) {
		t.Helper()
		note := ledger.Returned{NIC: "ens1", Time: time.Now(), Holder: "pod default/web-0", Changed: []string{changed}}
		if err := records.PutReturned("pci/0000:04:00.0", note); err != nil {
			t.Fatal(err)
		}
	}
	put("ethtool rings: device or resource busy")
	a := l.start()
	told := func(n int) []string {
		await(t, "the agent to tell", 10*time.Second, func() bool { return len(a.said("reason=ReturnedChanged")) >= n })
		return a.said("reason=ReturnedChanged")
	}
	if said := told(1); !strings.Contains(said[0], "ens1 was returned, but not as it was, after pod default/web-0: ethtool rings: device or resource busy") {
		t.Errorf("it told %q", said)
	}
	if n, _ := a.metric("rail_cni_returned_changed", `nic="ens1"`); n != 1 {
		t.Errorf("rail_cni_returned_changed is %v", n)
	}
	put("sysfs threaded")
	l.node.IP("link", "add", "wakes", "type", "bridge")
	if said := told(2); len(said) != 2 {
		t.Errorf("it told %d times: %q", len(said), said)
	}
	if n, _ := a.metric("rail_cni_returned_changed", `nic="ens1"`); n != 2 {
		t.Errorf("rail_cni_returned_changed is %v", n)
	}
}

// TestNICThatIsChangedAfterItsReturnIsNoted changes a NIC directly after its DEL, as udev does. The
// agent may not notice a pod that lives for less than a second, so the test uses several pods.
func TestNICThatIsChangedAfterItsReturnIsNoted(t *testing.T) {
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	a := l.start()
	for tries := 0; len(a.said("reason=ReturnedChanged")) == 0; tries++ {
		if tries == 5 {
			t.Fatal("the agent has noted nothing")
		}
		pod := testnet.NewNetns(t, "pod")
		l.node.MustRun(l.call("host-device", "ADD", "ens1", pod, "net1"))
		time.Sleep(3 * time.Second)
		l.node.MustRun(l.call("host-device", "DEL", "ens1", pod, "net1"))
		l.node.IP("link", "set", "ens1", "mtu", strconv.Itoa(4000+tries), "txqueuelen", "777")
		for deadline := time.Now().Add(12 * time.Second); time.Now().Before(deadline) && len(a.said("reason=ReturnedChanged")) == 0; {
			time.Sleep(50 * time.Millisecond)
		}
	}
	if said := a.said("reason=ReturnedChanged")[0]; !strings.Contains(said, "MTU of ens1: ") || !strings.Contains(said, "queue length of ens1: ") {
		t.Errorf("the agent said %s", said)
	}
	if n, _ := a.metric("rail_cni_returned_changed", `nic="ens1"`); n < 2 {
		t.Errorf("rail_cni_returned_changed is %v", n)
	}
}
