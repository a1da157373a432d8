package link

import (
	"slices"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// The rig has a driver with data center bridging.
func TestDCBIsParsed(t *testing.T) {
	pfc := make([]byte, 136) // struct ieee_pfc
	pfc[0], pfc[1] = 8, 1<<3|1<<5
	for name, c := range map[string]struct {
		ieee nlattr.Attrs
		pfc  []int
	}{
		"PFC on two priorities":      {nlattr.Attrs{{Type: 3, Value: pfc}, {Type: dcbIEEEPFC, Value: pfc}}, []int{3, 5}},
		"PFC on none":                {nlattr.Attrs{{Type: dcbIEEEPFC, Value: make([]byte, 136)}}, nil},
		"a driver with nothing":      {},
		"an attribute without value": {nlattr.Attrs{{Type: dcbIEEEPFC}}, nil},
	} {
		if d := parseDCB(c.ieee); !slices.Equal(d.PFC, c.pfc) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
