package store

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// The server does not tell of the races that it repeats.
func TestAddAndStatusWarnOfAPoolWhosePatchesAreSlow(t *testing.T) {
	c := pooltest.Claim(t, "slow", "10.0.0.0/24")
	var slow atomic.Bool
	url := pooltest.Between(t, plane, func(r *http.Request, _ []byte) (int, string) {
		if r.Method == http.MethodPatch && slow.Load() {
			time.Sleep(slowMean * 2)
		}
		return 0, ""
	}, nil)
	n := newNodeAt(t, pooltest.Kubeconfig(t, plane, url, testNamespace), t.TempDir())
	var warnings []string
	n.slow = func(err error) { warnings = append(warnings, err.Error()) }
	want := func(what string, slow bool) {
		t.Helper()
		if said := strings.Join(warnings, "; "); strings.Contains(said, "a patch of IPPool slow-10.0.0.0-24 takes") != slow {
			t.Errorf("%s: %q", what, said)
		}
		warnings = nil
	}
	status := func() {
		t.Helper()
		if err := n.Status(pooltest.Context(t), []ipam.Claim{c}); err != nil {
			t.Error(err)
		}
	}
	for i := range 2 { // the first makes the pool
		n.add(pooltest.Pod(i), c)
	}
	want("quick", false)
	slow.Store(true)
	n.add(pooltest.Pod(2), c)
	want("slow once", false)
	n.add(pooltest.Pod(3), c)
	want("slow", true)
	status()
	want("STATUS", true)
	slow.Store(false)
	for i := range 8 {
		n.add(pooltest.Pod(10+i), c)
	}
	warnings = nil
	status()
	want("STATUS, after quick patches", false)
	if mean := n.latencyOf(c.Pool).Mean; mean == 0 || mean > slowMean/2 {
		t.Errorf("the average is %s", mean)
	}
	for _, i := range []int{0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17} {
		n.del(pooltest.Pod(i), c.Pool)
	}
	wantEmpty(t, c.Pool)
}
