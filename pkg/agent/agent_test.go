package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestExpositionIsPrometheusText(t *testing.T) {
	var e exposition
	e.add("b_total", counter, "Of b.", 12, labels{"pod", "a\"b\\c\nd\xff", "none", ""})
	e.add("b_total", counter, "", 1<<40, labels{"pod", "x"})
	e.add("a", gauge, "Of a.", 0.25, nil)
	e.distribution("c_seconds", "Of c.", []float64{0.1, 1}, []uint64{2, 0, 1}, 7.5, labels{"plugin", "macvlan"})
	var b strings.Builder
	if n, err := e.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Error(n, err)
	}
	want := `# HELP a Of a.
# TYPE a gauge
a 0.25
# HELP b_total Of b.
# TYPE b_total counter
b_total{pod="a\"b\\c\nd` + "\uFFFD" + `"} 12
b_total{pod="x"} 1.099511627776e+12
# HELP c_seconds Of c.
# TYPE c_seconds histogram
c_seconds_bucket{plugin="macvlan",le="0.1"} 2
c_seconds_bucket{plugin="macvlan",le="1"} 2
c_seconds_bucket{plugin="macvlan",le="+Inf"} 3
c_seconds_sum{plugin="macvlan"} 7.5
c_seconds_count{plugin="macvlan"} 3
`
	if b.String() != want {
		t.Errorf("it is\n%s\nnot\n%s", b.String(), want)
	}
}

func TestEndsFallIntoTheirBucket(t *testing.T) {
	var s stats
	for _, d := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 11 * time.Millisecond, time.Minute} {
		s.end("macvlan", d)
	}
	if got := fmt.Sprint(s.ended["macvlan"].counts); got != "[2 1 0 0 0 0 0 1]" {
		t.Error(got)
	}
}

func TestErrorsThatDifferInNumbersOnlyAreTheSame(t *testing.T) {
	for _, c := range []struct {
		a, b error
		same bool
	}{
		{errors.New("dial 127.0.0.1:4312: refused"), errors.New("dial 127.0.0.1:55: refused"), true},
		{errors.New("dial 127.0.0.1:4312: refused"), errors.New("dial 127.0.0.1:4312: no route"), false},
		{nil, errors.New("refused"), false},
		{nil, nil, true},
	} {
		if (essence(c.a) == essence(c.b)) != c.same {
			t.Errorf("%v, %v: same is not %v", c.a, c.b, c.same)
		}
	}
}
