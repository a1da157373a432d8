package main

import (
	"strings"
	"testing"
	"time"

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
