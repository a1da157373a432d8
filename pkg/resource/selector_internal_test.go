package resource

import "testing"

func TestPartitionsSelectInfiniBandNICs(t *testing.T) {
	for _, c := range []struct {
		key  uint16
		keys []string
		want bool
	}{
		{0xffff, []string{"0xffff"}, true},
		{0x8001, []string{"0x8002", "0X8001"}, true},
		{0x0001, []string{"0x8001"}, false}, // a limited member
		{0, []string{"0x8001"}, false},
		{0, []string{"", "0"}, false},
	} {
		if got := (&Select{PKeys: c.keys}).matches(&NIC{PKey: c.key}, nil); got != c.want {
			t.Errorf("%#x and %q: %t", c.key, c.keys, got)
		}
	}
}
