package deviceplugin

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/resource"
)

// TestDifferenceThatIsOverDoesNotCount has a carrier that goes and comes: each loss, and each
// recovery, counts from its own beginning.
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
