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
	app := func(selector byte) nlattr.Attr {
		return nlattr.Attr{Type: dcbIEEEApp, Value: []byte{selector, 3, 26, 0}}
	}
	table := func(apps ...nlattr.Attr) nlattr.Attr {
		return nlattr.Attr{Type: dcbIEEEAppTable, Value: nlattr.Marshal(nil, apps)}
	}
	for name, c := range map[string]struct {
		ieee nlattr.Attrs
		pfc  []int
		dscp bool
	}{
		"PFC, trust by DSCP":        {nlattr.Attrs{{Type: dcbIEEEPFC, Value: pfc}, table(app(1), app(dcbByDSCP))}, []int{3, 5}, true},
		"trust by the VLAN tag":     {nlattr.Attrs{{Type: dcbIEEEPFC, Value: make([]byte, 136)}, table(app(1))}, nil, false},
		"a driver with nothing":     {},
		"attributes without values": {nlattr.Attrs{{Type: dcbIEEEPFC}, {Type: dcbIEEEAppTable}, table(nlattr.Attr{Type: dcbIEEEApp})}, nil, false},
	} {
		if d := parseDCB(c.ieee); !slices.Equal(d.PFC, c.pfc) || d.DSCP != c.dscp {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
