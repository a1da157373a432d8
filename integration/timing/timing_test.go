package timing

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// recorder is a test that keeps what is told to it.
type recorder struct {
	testing.TB
	logged, failed []string
}

func (*recorder) Helper() {}

func (r *recorder) Logf(format string, args ...any) {
	r.logged = append(r.logged, fmt.Sprintf(format, args...))
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}

func TestOnlyWhatTakesManyTimesItsGoalFails(t *testing.T) {
	for _, c := range []struct {
		took           time.Duration
		logged, failed string
	}{
		{400 * time.Millisecond, "the DEL took 400ms, goal 2s", ""},
		{20 * time.Second, "the DEL took 20s, goal 2s", ""},
		{20*time.Second + 2*time.Millisecond, "the DEL took 20.002s, goal 2s", "the DEL took 20.002s, which is more than 10 times the goal, 2s"},
	} {
		r := &recorder{}
		Check(r, "the DEL", c.took, 2*time.Second)
		var failed []string
		if c.failed != "" {
			failed = []string{c.failed}
		}
		if !slices.Equal(r.logged, []string{c.logged}) || !slices.Equal(r.failed, failed) {
			t.Errorf("%v: logged %q, failed %q", c.took, r.logged, r.failed)
		}
	}
}
