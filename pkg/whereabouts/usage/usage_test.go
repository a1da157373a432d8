package usage

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component/componenttest"
)

func TestFullestPoolsHaveMetrics(t *testing.T) {
	m := &Metrics{read: time.Unix(1_700_000_000, 0), pools: []poolUse{
		{Pool: "10.1.0.0-16", Used: 3, Addresses: 65534, Claimed: 1023, Blocks: 1024},
		{Pool: "10.0.0.0-24", Used: 127, Addresses: 254},
	}}
	for i := range maxPools - 1 {
		m.pools = append(m.pools, poolUse{Pool: fmt.Sprint("node-", i), Used: 1, Addresses: 1000})
	}
	exposed := func() string {
		return "\n" + strings.Join(componenttest.Collect(m.collect), "\n") + "\n"
	}
	text := exposed()
	for _, want := range []string{
		`rail_cni_pool_addresses{pool="10.0.0.0-24"} 254`, `rail_cni_pool_addresses_used{pool="10.0.0.0-24"} 127`,
		`rail_cni_pool_blocks{pool="10.1.0.0-16"} 1024`, `rail_cni_pool_blocks_claimed{pool="10.1.0.0-16"} 1023`,
		"rail_cni_pools 1001", "rail_cni_pools_read_timestamp_seconds 1.7e+09",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%.2000s", want, text)
		}
	}
	if n := strings.Count(text, "\nrail_cni_pool_addresses{"); n != maxPools {
		t.Errorf("%d pools", n)
	}
	if n := strings.Count(text, "\nrail_cni_pool_blocks{"); n != 1 {
		t.Errorf("%d pools with blocks", n)
	}
	if m.Surveyed(nil); strings.Contains(exposed(), "rail_cni_pool") {
		t.Errorf("a process that does not reconcile says:\n%s", exposed())
	}
}

func TestFullestPoolsComeFirst(t *testing.T) {
	if a, b := (&poolUse{Used: 127, Addresses: 254}).full(), (&poolUse{Used: 3, Addresses: 65534, Claimed: 1023, Blocks: 1024}).full(); a >= b || a != 0.5 {
		t.Errorf("%v, %v", a, b)
	}
}
