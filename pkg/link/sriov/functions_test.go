package sriov

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// numbers returns numbers in the kernel's byte order, as in struct ifla_vf_*.
func numbers(all ...uint32) (b []byte) {
	for _, v := range all {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return b
}

// vlanOf returns a list of one VLAN, as the kernel reports it.
func vlanOf(id, qos uint32, proto uint16) []byte {
	info := append(numbers(3, id, qos), byte(proto>>8), byte(proto), 0, 0)
	return nlattr.Marshal(nil, nlattr.Attrs{{Type: 1, Value: info}})
}

// What drivers report about function 3: mlx5 reports no protocol if there is no VLAN, and other drivers do not
// report whether a function is trusted.
func reported() []byte {
	attrs := nlattr.Attrs{
		{Type: vfMAC, Value: append(numbers(3), make([]byte, 32)...)},
		withProtocol(nlattr.Attr{Type: vfVLANList, Value: vlanOf(0, 0, 0)}),
		{Type: vfSpoofCheck, Value: numbers(3, 1)},
		{Type: vfLinkState, Value: numbers(3, 0)},
		{Type: vfRate, Value: numbers(3, 10, 500)},
		{Type: vfTrust, Value: numbers(3, unknown)},
	}
	return nlattr.Marshal(nil, attrs)
}

func TestOnlySettingsThatDifferAreChanged(t *testing.T) {
	yes, no, none, down, rate := true, false, uint32(0), uint32(2), uint32(900)
	for name, c := range map[string]struct {
		w    Settings
		was  nlattr.Attrs
		want nlattr.Attrs
	}{
		"nothing":    {},
		"as it is":   {w: Settings{VLAN: &VLAN{Proto: unix.ETH_P_8021Q}, SpoofCheck: &yes, LinkState: &none}},
		"no trust":   {w: Settings{Trust: &no}},
		"trust":      {Settings{Trust: &yes}, nlattr.Attrs{{Type: vfTrust, Value: numbers(3, 0)}}, nlattr.Attrs{{Type: vfTrust, Value: numbers(3, 1)}}},
		"link state": {Settings{LinkState: &down}, nlattr.Attrs{{Type: vfLinkState, Value: numbers(3, 0)}}, nlattr.Attrs{{Type: vfLinkState, Value: numbers(3, 2)}}},
		"one rate":   {Settings{MaxRate: &rate}, nlattr.Attrs{{Type: vfRate, Value: numbers(3, 10, 500)}}, nlattr.Attrs{{Type: vfRate, Value: numbers(3, 10, 900)}}},
		"VLAN": {
			Settings{VLAN: &VLAN{ID: 7, QoS: 5, Proto: unix.ETH_P_8021AD}},
			nlattr.Attrs{{Type: vfVLANList, Value: vlanOf(0, 0, unix.ETH_P_8021Q)}},
			nlattr.Attrs{{Type: vfVLANList, Value: vlanOf(7, 5, unix.ETH_P_8021AD)}},
		},
	} {
		was, want := Changes(reported(), &c.w)
		if !bytes.Equal(was, nlattr.Marshal(nil, c.was)) || !bytes.Equal(want, nlattr.Marshal(nil, c.want)) {
			t.Errorf("%s: %x to %x", name, was, want)
		}
	}
}

func TestShortAttributesOfAFunctionAreLeft(t *testing.T) {
	yes := true
	for kind := range functionSettings {
		for length := range 20 {
			text := nlattr.Marshal(nil, nlattr.Attrs{{Type: kind, Value: make([]byte, length)}})
			w := Settings{MAC: []byte{2, 0, 0, 0, 0, 1}, VLAN: &VLAN{ID: 1}, SpoofCheck: &yes, Trust: &yes, LinkState: new(uint32), MinRate: new(uint32), MaxRate: new(uint32)}
			Changes(text, &w)
			MAC(text)
		}
	}
}

// TestGUIDsOfAFunction: the kernel reports GUIDs, aligned to 8 bytes, only for InfiniBand. A GUID of zero cannot be
// set again.
func TestGUIDsOfAFunction(t *testing.T) {
	guidOf := func(guid uint64) []byte { return binary.NativeEndian.AppendUint64(numbers(3, 0), guid) }
	settings := func(node, port uint64) []byte {
		return nlattr.Marshal(nil, nlattr.Attrs{{Type: vfNodeGUID, Value: guidOf(node)}, {Type: vfPortGUID, Value: guidOf(port)}})
	}
	const pods, admins = uint64(0x0200000000000b01), uint64(0x0200000000000077)
	want := pods
	for name, c := range map[string]struct{ now, was, wanted []byte }{
		"another":    {settings(admins, admins+1), settings(admins, admins+1), settings(pods, pods)},
		"none":       {settings(0, 0), settings(NoGUID, NoGUID), settings(pods, pods)},
		"one of two": {settings(pods, admins), settings(pods, admins), settings(pods, pods)},
		"the same":   {settings(pods, pods), nil, nil},
		"RoCE":       {reported(), nil, nil},
	} {
		was, wanted := Changes(c.now, &Settings{GUID: &want})
		if !bytes.Equal(was, c.was) || !bytes.Equal(wanted, c.wanted) {
			t.Errorf("%s: from %x to %x, want %x to %x", name, was, wanted, c.was, c.wanted)
		}
	}
	if node, port, ok := GUIDs(settings(admins, pods)); node != admins || port != pods || !ok {
		t.Errorf("%x, %x, %v", node, port, ok)
	}
	for _, broken := range [][]byte{nil, {1}, settings(0, pods), reported(), settings(admins, pods)[:20]} {
		if node, port, ok := GUIDs(broken); ok {
			t.Errorf("%x: %x, %x", broken, node, port)
		}
	}
	if got := WithGUIDs(settings(NoGUID, admins), pods, pods); !bytes.Equal(got, settings(pods, admins)) {
		t.Errorf("with the device's own: %x", got)
	}
	if got := UnsetGUIDs(settings(0, pods)); len(got) != 1 || got[0] != "node GUID" {
		t.Errorf("unset: %q", got)
	}
	if !Isolates("node GUID") || !Isolates("VLAN") || Isolates("rate") {
		t.Error("Isolates")
	}
}
