package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

func TestInstallPutsAFileInPlaceInOneStep(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.WriteFile(from, []byte("new"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(to) // as a kernel that runs it has it
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := install(from, to); err != nil {
		t.Fatal(err)
	}
	was := make([]byte, 3)
	if _, err := old.Read(was); err != nil || string(was) != "old" {
		t.Errorf("the old file has %q, %v", was, err)
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "new" {
		t.Errorf("%q, %v", text, err)
	}
	if err := install(filepath.Join(dir, "none"), to); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := install(from, filepath.Join(dir, "none", "to")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
}
