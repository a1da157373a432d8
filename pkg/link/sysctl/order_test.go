package sysctl

import (
	"slices"
	"testing"
)

func TestOrderOfSysctls(t *testing.T) {
	got := writeOrder(map[string]string{"ipv6/conf/addr_gen_mode": "", stableSecret: "", "ipv4/conf/arp_ignore": ""})
	if want := []string{stableSecret, "ipv4/conf/arp_ignore", "ipv6/conf/addr_gen_mode"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
