package cell_test

import (
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cell"
)

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m",
		2 * time.Hour: "2h", 47 * time.Hour: "47h", 48 * time.Hour: "2d", 240 * time.Hour: "10d",
	} {
		if have := cell.Age(d); have != want {
			t.Errorf("age of %s is %s, not %s", d, have, want)
		}
	}
}

func TestSpeed(t *testing.T) {
	for mbps, want := range map[int64]string{-1: "", 0: "", 400000: "400G", 2500: "2500M"} {
		if have := cell.Speed(mbps); have != want {
			t.Errorf("the speed of %d Mb/s is %q, not %q", mbps, have, want)
		}
	}
}

func TestPrintableQuotesWhatATerminalObeys(t *testing.T) {
	for name, want := range map[string]string{"näme 名": "näme 名", "\x1b[31m": `"\x1b[31m"`, "\xff": `"\xff"`, "\u202e": `"\u202e"`} {
		if have := cell.Printable(name); have != want {
			t.Errorf("%q is written as %s, not %s", name, have, want)
		}
	}
}

func TestCutAndList(t *testing.T) {
	if have := cell.Cut("名名名名", 3); have != "名名…" {
		t.Error(have)
	}
	if have := cell.Cut("名名名", 3); have != "名名名" {
		t.Error(have)
	}
	if have := cell.List([]string{"a", "", "b"}); have != "a,-,b" {
		t.Error(have)
	}
	if have := cell.List([]string{"", ""}); have != "" {
		t.Error(have)
	}
}
