package devices

import (
	"reflect"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

func TestCountersThatGrow(t *testing.T) {
	before := counters{values: map[string]uint64{"symbol_error": 5, "rx_errors": 7, "reset": 9}}
	after := counters{values: map[string]uint64{"symbol_error": 8, "rx_errors": 7, "reset": 1, "new": 3}}
	have := rising(before, after, 2)
	if want := (fact.Rising{Seconds: 2, Counters: map[string]uint64{"symbol_error": 3}}); !have.OK() || !reflect.DeepEqual(have.Value, want) {
		t.Errorf("%+v", have)
	}
	if have := rising(before, counters{err: errMoving}, 2); have.OK() {
		t.Errorf("%+v, although the second read failed", have)
	}
}
