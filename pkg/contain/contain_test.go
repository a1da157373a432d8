package contain

import (
	"errors"
	"strings"
	"testing"
)

func TestPanicIsAnErrorWithItsStack(t *testing.T) {
	err := Panics(func() error { panic("a defect") })
	var p *PanicError
	if !errors.As(err, &p) || p.Value != "a defect" || !strings.Contains(string(p.Stack), "TestPanicIsAnErrorWithItsStack") {
		t.Errorf("%v", err)
	}
	failed := errors.New("failed")
	if err := Panics(func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}
