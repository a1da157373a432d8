package deviceplugin

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// TestDifferenceThatIsOverDoesNotCount has a carrier that goes and comes: each loss and each
// recovery counts only from the moment when it began.
func TestDifferenceThatIsOverDoesNotCount(t *testing.T) {
	t.Parallel()
	limits := resource.Health{Down: 10 * time.Second, Up: 30 * time.Second}
	up, down := &NIC{Link: LinkUp}, &NIC{Link: LinkDown}
	h := &health{nics: map[string]*nicHealth{}}
	begin := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		after time.Duration
		nic   *NIC
		ill   bool
		next  time.Duration // zero = never
	}{
		{0, up, false, 0},
		{1 * time.Second, down, false, 11 * time.Second},
		{10 * time.Second, up, false, 0}, // after 9 s
		{70 * time.Second, down, false, 80 * time.Second},
		{79 * time.Second, down, false, 80 * time.Second},
		{80 * time.Second, down, true, 0},
		{81 * time.Second, up, true, 111 * time.Second},
		{100 * time.Second, down, true, 0}, // after 19 s
		{110 * time.Second, up, true, 140 * time.Second},
		{139 * time.Second, up, true, 140 * time.Second},
		{140 * time.Second, up, false, 0},
	} {
		why, next := h.judge(c.nic, limits, begin.Add(c.after))
		want := time.Time{}
		if c.next != 0 {
			want = begin.Add(c.next)
		}
		if (why != "") != c.ill || !next.Equal(want) {
			t.Errorf("after %v: %q, next look at %v; want ill %v, %v", c.after, why, next, c.ill, want)
		}
	}
}

// TestEachPodOutsideHasItsOwnTime has pods without a device from the kubelet that follow each other
// on a NIC, without a scan in between. The NIC must not be unhealthy because the first pod was
// there for long.
func TestEachPodOutsideHasItsOwnTime(t *testing.T) {
	t.Parallel()
	h := &health{outside: map[device]*outside{}}
	d := device{"rail-cni.io/rdma", "0000:01:00.0"}
	begin := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		after    time.Duration
		lent     *Lent
		outsider bool
		next     time.Duration // zero = never
	}{
		{0, &Lent{ContainerID: "c1", Namespace: "ns", Pod: "p1"}, false, settleTime},
		{settleTime - time.Second, &Lent{ContainerID: "c1", Namespace: "ns", Pod: "p1"}, false, settleTime},
		{settleTime, &Lent{ContainerID: "c1", Namespace: "ns", Pod: "p1"}, true, 0},
		{time.Minute, &Lent{ContainerID: "c2", Namespace: "ns", Pod: "p2"}, false, time.Minute + settleTime},
		{time.Minute + settleTime, &Lent{ContainerID: "c2", Namespace: "ns", Pod: "p2"}, true, 0},
		{2 * time.Minute, nil, false, 0},
		{3 * time.Minute, &Lent{ContainerID: "c2", Namespace: "ns", Pod: "p2"}, false, 3*time.Minute + settleTime}, // again
	} {
		outsider, next := h.judgeLoan(d, &NIC{Lent: c.lent}, []kubeletdir.Container{}, time.Time{}, begin.Add(c.after))
		want := time.Time{}
		if c.next != 0 {
			want = begin.Add(c.next)
		}
		if outsider != c.outsider || !next.Equal(want) {
			t.Errorf("after %v: %v, next look at %v; want %v, %v", c.after, outsider, next, c.outsider, want)
		}
	}
}

// TestVirtualFunctionThatAwaitsItsGUIDIsHealthy: no port is active before ib-sriov has set its GUID.
func TestVirtualFunctionThatAwaitsItsGUIDIsHealthy(t *testing.T) {
	const begin = "80:00:00:48:fe:80:00:00:00:00:00:00"
	none, ones, some := begin+":00:00:00:00:00:00:00:00", begin+":ff:ff:ff:ff:ff:ff:ff:ff", begin+":02:00:00:00:00:00:00:01"
	for _, c := range []struct {
		mac, parent, linkType string
		lent                  *Lent
		healthy               bool
	}{
		{none, "0000:3b:00.0", "infiniband", nil, true},
		{ones, "0000:3b:00.0", "infiniband", nil, true},
		{some, "0000:3b:00.0", "infiniband", nil, false},
		{none, "", "infiniband", nil, false},
		{none, "0000:3b:00.0", "infiniband", &Lent{Pod: "p"}, false},
		{"02:00:00:00:00:01", "0000:3b:00.0", "ether", nil, false},
	} {
		n := &NIC{NIC: resource.NIC{MAC: c.mac, Parent: c.parent, LinkType: c.linkType}, Lent: c.lent, Link: LinkDown, Ports: []string{"INIT"}}
		if defect := defectOf(n); (defect == "") != c.healthy {
			t.Errorf("%+v: %q", c, defect)
		}
	}
}
