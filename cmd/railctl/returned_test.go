package main

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
)

func TestShowTellsOfNICsThatDidNotComeHomeAsTheyWere(t *testing.T) {
	l := newLab(t)
	records, err := ledger.Open(l.state)
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	note := ledger.Returned{NIC: "ens1", Time: time.Now(), Holder: "pod default/web-0", Changed: []string{"ethtool rings: device or resource busy"}}
	if err := records.PutReturned("a", note); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := l.railctl("show")
	if code != 0 {
		t.Errorf("the exit code is %d", code)
	}
	for _, want := range []string{"ens1 was returned, but not as it was", "pod default/web-0", "ethtool rings", "remove " + l.state + "/returned/a.json"} {
		contains(t, "stderr", stderr, want)
	}
}
