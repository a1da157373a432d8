package main

import (
	"strings"
	"testing"
)

func TestRDMAPartRunsInTheRigOnly(t *testing.T) {
	notInRig(t)
	if err := demoRDMA(t.TempDir()); err == nil || !strings.Contains(err.Error(), "virtual machine") {
		t.Errorf("the error is %v", err)
	}
}

func TestSpans(t *testing.T) {
	for want, names := range map[string][]string{
		"":                        nil,
		"uverbs3":                 {"uverbs3"},
		"uverbs0-2":               {"uverbs2", "uverbs0", "uverbs1"},
		"uverbs0, uverbs9-10":     {"uverbs10", "uverbs9", "uverbs0"},
		"uverbs, no number at it": {"uverbs", "no number at it"},
	} {
		if have := spans(names); have != want {
			t.Errorf("%q is %q, not %q", names, have, want)
		}
	}
}

func TestGIDOf(t *testing.T) {
	for address, want := range map[string]string{
		"172.31.1.2": "0000:0000:0000:0000:0000:ffff:ac1f:0102",
		"fe80::1":    "fe80:0000:0000:0000:0000:0000:0000:0001",
	} {
		if have, err := gidOf(address); have != want || err != nil {
			t.Errorf("%s is %s (%v), not %s", address, have, err, want)
		}
	}
	if _, err := gidOf("net1"); err == nil {
		t.Error("net1 is no address")
	}
}
