package ipam

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

func TestPoolsAndReservationsAreNamedAsWhereaboutsNamesThem(t *testing.T) {
	for _, tc := range []struct{ space, prefix, want string }{
		{"", "192.168.2.224/28", "192.168.2.224-28"},
		{"", "2001:db8:480:603d::/64", "2001-db8-480-603d---64"},
		{"n", "192.168.2.224/28", "n-192.168.2.224-28"},
	} {
		if got := (Pool{Space: tc.space, Prefix: netip.MustParsePrefix(tc.prefix)}).Name(); got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.space, tc.prefix, got, tc.want)
		}
	}
	for _, tc := range []struct{ space, addr, want string }{
		{"", "192.168.1.1", "192.168.1.1"},
		{"", "2001:db8:480:603d:304:403::", "2001-db8-480-603d-304-403--0"},
		{"test", "10.0.0.1", "test-10.0.0.1"},
	} {
		if got := (Pool{Space: tc.space}).ReservationName(addr(tc.addr)); got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.space, tc.addr, got, tc.want)
		}
	}
}

func TestNetworkNamesThatKubernetesWouldRefuse(t *testing.T) {
	for _, good := range []string{"", "a", "rail-1", "a.b-c.9", "z0", strings.Repeat("a", 190)} {
		if err := CheckSpace(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a/b", "ä", "a.-b", strings.Repeat("a", 191), " ",
		BlockNode, HostNode, "a-" + BlockNode, "a-" + HostNode,
	} {
		if err := CheckSpace(bad); failure.KindOf(err) != failure.InvalidConfig {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestOwnersEndOnlyTheirOwn(t *testing.T) {
	o := Owner{ContainerID: "c2", IfName: "net1", PodRef: "ns/p"}
	for _, tc := range []struct {
		held       Owner
		same, ends bool
	}{
		{Owner{ContainerID: "c2", IfName: "net1", PodRef: "ns/p"}, true, true},
		{Owner{ContainerID: "c1", IfName: "net1", PodRef: "ns/p"}, true, false}, // the pod's former container
		{Owner{ContainerID: "c2", IfName: "net2", PodRef: "ns/p"}, false, false},
		{Owner{ContainerID: "c2", IfName: "", PodRef: "ns/p"}, false, true}, // from before whereabouts 0.8
		{Owner{ContainerID: "c2", IfName: "net1", PodRef: "other"}, true, true},
		{Owner{}, false, false},
	} {
		if o.Same(tc.held) != tc.same || o.Ends(tc.held) != tc.ends {
			t.Errorf("%+v: same %t, ends %t", tc.held, o.Same(tc.held), o.Ends(tc.held))
		}
	}
}
