package device

import (
	"bytes"
	"maps"
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

// The counters of PFC change by themselves. The order of a table changes by itself as well.
func TestSettingsOfDCBAreThoseThatCanBeSet(t *testing.T) {
	entry := func(kind uint16, app ...byte) nlattr.Attr { return nlattr.Attr{Type: kind, Value: app} }
	table := func(entries ...nlattr.Attr) []byte { return nlattr.Marshal(nil, entries) }
	answer := func(counter byte, apps []byte) nlattr.Attrs {
		pfc := append([]byte{8, 1 << 3}, make([]byte, 134)...)
		pfc[8] = counter
		return nlattr.Attrs{{Type: dcbDCBX, Value: []byte{5}}, {Type: dcbIEEE, Value: nlattr.Marshal(nil, nlattr.Attrs{
			{Type: 5, Value: pfc}, // DCB_ATTR_IEEE_PEER_PFC
			{Type: dcbIEEEPFC, Value: pfc}, {Type: dcbBuffer, Value: make([]byte, 44)}, {Type: dcbIEEEApps, Value: apps},
		})}}
	}
	one := dcbSettingsOf(answer(1, table(entry(1, 5, 3, 26, 0), entry(1, 5, 6, 46, 0), entry(2, 255, 1, 1, 0))))
	other := dcbSettingsOf(answer(2, table(entry(1, 5, 6, 46, 0), entry(2, 255, 1, 1, 0), entry(1, 5, 3, 26, 0))))
	if !maps.EqualFunc(one, other, bytes.Equal) {
		t.Errorf("%v and %v", one, other)
	}
	for name, length := range map[string]int{"mode": 1, "PFC": 8, "buffers": 40, "applications": 12} {
		if len(one[name]) != length {
			t.Errorf("%s has %d bytes, not %d", name, len(one[name]), length)
		}
	}
	if len(one) != 4 {
		t.Errorf("%v", one)
	}
	apps := appsIn(table(entry(1, 5, 6, 46, 0), entry(2, 255, 1, 1, 0), entry(1, 1)))
	attr := appTable(dcbIEEEApps, apps)
	if back, err := nlattr.Parse(attr.Value); err != nil || len(back) != 2 || back[0].Type != 1 || back[1].Type != 2 {
		t.Errorf("%v, %v", back, err)
	}
	for _, damaged := range []nlattr.Attrs{nil, {{Type: dcbIEEE, Value: []byte{9}}}, {{Type: dcbIEEE, Value: table(entry(dcbIEEEApps, 9))}}} {
		dcbSettingsOf(damaged) // does not panic
	}
}
