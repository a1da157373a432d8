package owners

import (
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// TestVirtualAddressIsKeepaliveds lends the NIC of a keepalived that has a virtual address. Its
// peer takes the address. It is given to no pod, and after the return it is
// reported, and not restored: two hosts would have it.
func TestVirtualAddressIsKeepaliveds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address string
		unicast bool
		more    map[string]any
	}{
		"multicast":                      {"10.1.0.100/24", false, nil},
		"multicast, in the pod":          {"10.1.0.100/24", false, map[string]any{"useInterfaceNetwork": true}},
		"a host address":                 {"10.1.0.100/32", false, map[string]any{"useInterfaceNetwork": true}},
		"unicast":                        {"10.1.0.100/24", true, nil},
		"unicast, in the pod":            {"10.1.0.100/32", true, map[string]any{"useInterfaceNetwork": true}},
		"unicast, a prefix of its own":   {"10.1.0.100/28", true, nil},
		"unicast, a prefix, in the pod":  {"10.1.0.100/28", true, map[string]any{"useInterfaceNetwork": true}},
		"multicast, a prefix of its own": {"10.1.0.100/28", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRail(t)
			peer := NewHost(t, testnet.NewNetns(t, "peer"))
			r.NIC(nicName, peer.Netns)
			r.IP("addr", "add", "10.1.0.5/24", "dev", nicName)
			peer.IP("addr", "add", "10.1.0.6/24", "dev", nicName+"-sw")
			here := VRRP{NIC: nicName, Priority: 150, Address: c.address}
			there := VRRP{NIC: nicName + "-sw", Priority: 100, Address: c.address}
			if c.unicast {
				here.Own, here.Peer, there.Own, there.Peer = "10.1.0.5", "10.1.0.6", "10.1.0.6", "10.1.0.5"
			}
			r.HasAddress(r.StartVRRP(here), c.address)
			other := peer.StartVRRP(there)
			other.await("its start", func() bool { return other.logged("Entering BACKUP STATE") })
			out := r.MustRun(r.call("ADD", nicName, c.more))
			if in := r.pod.IP("addr"); strings.Contains(in, "10.1.0.100") || strings.Contains(string(out), "10.1.0.100") {
				t.Errorf("the pod has the address: %s, %s", in, out)
			}
			if c.more != nil && !strings.Contains(r.pod.IP("addr"), "10.1.0.5/24") {
				t.Error("the pod lacks the NIC's own address")
			}
			peer.HasAddress(other, c.address)
			_, said, err := r.RunSaying(r.call("DEL", nicName, c.more))
			if err != nil || !strings.Contains(said, "10.1.0.100") {
				t.Errorf("DEL: %v, %s", err, said)
			}
			if at := r.IP("addr", "show", nicName); strings.Contains(at, "10.1.0.100") || !strings.Contains(at, "10.1.0.5/24") {
				t.Errorf("after DEL the NIC has\n%s", at)
			}
			for end := time.Now().Add(Patience); strings.Contains(r.IP("addr"), "10.1.0.100") && strings.Contains(peer.IP("addr"), "10.1.0.100"); {
				if time.Now().After(end) {
					t.Fatal("both hosts have the address")
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
}
