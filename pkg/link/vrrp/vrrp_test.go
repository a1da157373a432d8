package vrrp

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
)

func TestMembersOfTheGroupOfVRRP(t *testing.T) {
	const igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n" +
		"1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n" +
		"2\teth0      :     2      V3\n\t\t\t\t120000E0     1 0:00000000\t\t0\n\t\t\t\t010000E0     1 0:00000000\t\t0\n" +
		"3\teth1      :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n"
	const igmp6 = "2    eth0            ff0200000000000000000001ff000001     1 00000004 0\n" +
		"3    eth1            ff020000000000000000000000000012     1 00000004 0\n"
	for device, want := range map[string][2]bool{"lo": {}, "eth0": {true, false}, "eth1": {false, true}, "eth": {}, "": {}} {
		if got := isMember(strings.NewReader(igmp), device, groups4); got != want[0] {
			t.Errorf("IPv4 of %q: %v", device, got)
		}
		if got := isMember(strings.NewReader(igmp6), device, groups6); got != want[1] {
			t.Errorf("IPv6 of %q: %v", device, got)
		}
	}
}

// Keepalived with unicast_peer has one socket at its own address, and another for sending.
func TestSocketsOfVRRP(t *testing.T) {
	word := func(ip ...byte) string { return fmt.Sprintf("%08X", binary.NativeEndian.Uint32(ip)) }
	const head, rest = "  sl  local_address rem_address   st tx_queue rx_queue\n", " 00000000:0000 07 00001380:00000000 0 563242 2\n"
	raw := head + "  24: 00000000:0070" + rest + "  24: " + word(10, 1, 0, 5) + ":0070" + rest + "   1: " + word(10, 1, 0, 6) + ":0001" + rest +
		"  24: zz00010A:0070" + rest + "  24: " + word(224, 0, 0, 18) + ":0070" + rest + "\n  24:\n"
	raw6 := head + "  24: " + word(0xfd, 0, 0, 1) + word(0, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0, 5) + ":0070" + rest
	var own []net.IP
	for _, ip := range []string{"10.1.0.5", "10.1.0.6", "fd00:1::5", "fd00:1::6"} {
		own = append(own, net.ParseIP(ip))
	}
	if got := fmt.Sprint(sockets(strings.NewReader(raw), own), sockets(strings.NewReader(raw6), own)); got != "[10.1.0.5] [fd00:1::5]" {
		t.Errorf("VRRP listens at %s", got)
	}
}
