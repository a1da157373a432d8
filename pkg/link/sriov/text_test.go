package sriov

import (
	"encoding/binary"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// guidOf returns struct ifla_vf_guid of function 3.
func guidOf(guid uint64) []byte { return binary.NativeEndian.AppendUint64(numbers(3, 0), guid) }

func TestSettingsOfAFunctionAsText(t *testing.T) {
	mac := append(numbers(3), append([]byte{2, 0xab, 0xcd, 0, 0, 1}, make([]byte, 26)...)...)
	for name, c := range map[string]struct {
		attrs nlattr.Attrs
		want  []Setting
	}{
		"nothing": {},
		"VLAN": {
			nlattr.Attrs{{Type: vfVLANList, Value: vlanOf(100, 5, unix.ETH_P_8021AD)}},
			[]Setting{{"VLAN", "100 qos 5 802.1ad"}},
		},
		"plain VLAN": {nlattr.Attrs{{Type: vfVLANList, Value: vlanOf(7, 0, unix.ETH_P_8021Q)}}, []Setting{{"VLAN", "7"}}},
		"no VLAN":    {nlattr.Attrs{{Type: vfVLANList, Value: vlanOf(0, 0, unix.ETH_P_8021Q)}}, []Setting{{"VLAN", "none"}}},
		"several": {
			nlattr.Attrs{
				{Type: vfMAC, Value: mac},
				{Type: vfSpoofCheck, Value: numbers(3, 0)},
				{Type: vfTrust, Value: numbers(3, 1)},
				{Type: vfLinkState, Value: numbers(3, 2)},
				{Type: vfRate, Value: numbers(3, 10, 2000)},
			},
			[]Setting{
				{"MAC", "02:ab:cd:00:00:01"},
				{"spoof check", "off"},
				{"trust", "on"},
				{"link state", "disable"},
				{"rate", "min 10, max 2000 Mbit/s"},
			},
		},
		"GUIDs": {
			nlattr.Attrs{{Type: vfNodeGUID, Value: guidOf(0x0002c9030001)}, {Type: vfPortGUID, Value: guidOf(0x0002c9030001)}},
			[]Setting{{"guid", "00:00:00:02:c9:03:00:01"}},
		},
		"one GUID": {nlattr.Attrs{{Type: vfNodeGUID, Value: guidOf(1)}}, []Setting{{"guid", "00:00:00:00:00:00:00:01"}}},
		"two GUIDs": {
			nlattr.Attrs{{Type: vfNodeGUID, Value: guidOf(1)}, {Type: vfPortGUID, Value: guidOf(2)}},
			[]Setting{{"node guid", "00:00:00:00:00:00:00:01"}, {"port guid", "00:00:00:00:00:00:00:02"}},
		},
		"another attribute":    {attrs: nlattr.Attrs{{Type: 99, Value: numbers(3, 1)}}},
		"a state of no kernel": {attrs: nlattr.Attrs{{Type: vfLinkState, Value: numbers(3, 9)}}},
	} {
		if got := Text(nlattr.Marshal(nil, c.attrs)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestStateOfAFunction(t *testing.T) {
	on := true
	want := State{Number: 3, VLAN: VLAN{Proto: unix.ETH_P_8021Q}, SpoofCheck: &on}
	if got, ok := StateOf(reported()); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %t", got, ok)
	}
	if got, ok := StateOf(nlattr.Marshal(nil, nlattr.Attrs{{Type: vfTrust, Value: numbers(3, 1)}})); ok {
		t.Errorf("a function without a number: %+v", got)
	}
}

// A record can be edited.
func FuzzSettingsOfAFunctionAsText(f *testing.F) {
	f.Add(reported())
	vlan := nlattr.Attr{Type: vfVLANList, Value: vlanOf(7, 1, unix.ETH_P_8021AD)}
	f.Add(nlattr.Marshal(nil, nlattr.Attrs{{Type: vfNodeGUID, Value: guidOf(1)}, vlan}))
	for kind := range functionSettings {
		for length := range 20 {
			f.Add(nlattr.Marshal(nil, nlattr.Attrs{{Type: kind, Value: make([]byte, length)}}))
		}
	}
	f.Fuzz(func(t *testing.T, settings []byte) {
		for _, s := range Text(settings) {
			if s.Name == "" || s.Value == "" {
				t.Errorf("%x: %q", settings, s)
			}
		}
		StateOf(settings)
	})
}
