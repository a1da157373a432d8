package document

import (
	"maps"
	"slices"
	"testing"
)

func TestKeysBehindFieldsThatHaveNone(t *testing.T) {
	keys := Keys(struct {
		_     int
		Raw   []byte `json:"-"`
		Outer struct {
			Inner int `json:"inner"`
		} `json:"outer"`
		Last int `json:"last"`
	}{})
	if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, []string{"last", "outer.inner"}) {
		t.Errorf("got %q", got)
	}
}
