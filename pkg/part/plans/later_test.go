package plans_test

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/part/netdev"
)

// TestNICIsComparedLater changes a NIC after its return, as udev's .link files and daemons do. The
// second comparison adds each change to the note, once.
func TestNICIsComparedLater(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.furnish()
	b.node.IP("rule", "add", "from", "10.9.0.1", "lookup", "101", "proto", "static")
	b.node.IP("rule", "add", "iif", nicName, "lookup", "7")
	n := b.open()
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	r := b.records()[0]
	b.node.MustRun(b.call("DEL", config))
	later := func(want bool) {
		t.Helper()
		if found, err := netdev.CompareLater(n, r); err != nil || found != want {
			t.Errorf("it has found something: %v, %v", found, err)
		}
	}
	later(false)
	for _, command := range []string{
		"link set ens12np0 name rail0", "link set rail0 mtu 4000 txqueuelen 777", "rule del from 10.9.0.1", "rule del iif ens12np0 lookup 7", "addr del 10.9.0.7/24 dev rail0",
		"route del default table 101", "-6 route del fd00:9::/64 dev rail0",
	} {
		b.node.IP(strings.Fields(command)...)
	}
	later(true)
	later(false) // the note has it
	note := b.returned()
	for _, want := range []string{
		nicName + ": name of " + nicName, "it is now rail0, and was " + nicName, "MTU of ", "queue length of ", "it is now 777, and was 4321",
		"rule from 10.9.0.1/32", "rule from all iif ens12np0 lookup 7", "address 10.9.0.7/24", "route default via 10.9.0.254 table 101", "route fd00:9::/64",
	} {
		if !strings.Contains(note, want) {
			t.Errorf("the note lacks %q: %s", want, note)
		}
	}
	if strings.Count(note, ";") != 7 {
		t.Errorf("the note has more: %s", note)
	}
	b.node.IP("link", "set", "rail0", "name", nicName)
	b.node.MustRun(b.call("ADD", config))
	later(false) // it is another pod's
	b.node.MustRun(b.call("DEL", config))
	b.node.IP("link", "del", nicName)
	later(false)
	if note := b.returned(); note != "" {
		t.Errorf("of a NIC that is lent, or gone, it is said: %s", note)
	}
}
