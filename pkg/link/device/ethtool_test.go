package device

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// With autonegotiation some drivers report the negotiated value. To set that value would reset the
// NIC at each return.
func TestPauseThatWasNegotiatedIsNoSetting(t *testing.T) {
	pause := func(autoneg byte) nlattr.Attrs {
		return negotiatedPause(nlattr.Attrs{
			{Type: unix.ETHTOOL_A_PAUSE_AUTONEG, Value: []byte{autoneg}},
			{Type: unix.ETHTOOL_A_PAUSE_RX, Value: []byte{1}},
			{Type: unix.ETHTOOL_A_PAUSE_TX, Value: []byte{1}},
		})
	}
	if kept := pause(1); len(kept) != 1 {
		t.Errorf("with autonegotiation: %v", kept)
	}
	if kept := pause(0); len(kept) != 3 {
		t.Errorf("without: %v", kept)
	}
}

// With carrier, i40e supports and advertises the modes of the module; without carrier,
// all modes of the NIC.
func TestLinkModesThatChangeWithTheCarrierAreNotCompared(t *testing.T) {
	bitset := func(value, mask byte) []byte {
		return nlattr.Marshal(nil, nlattr.Attrs{
			{Type: unix.ETHTOOL_A_BITSET_SIZE, Value: []byte{8, 0, 0, 0}},
			{Type: unix.ETHTOOL_A_BITSET_VALUE, Value: []byte{value, 0, 0, 0}},
			{Type: unix.ETHTOOL_A_BITSET_MASK, Value: []byte{mask, 0, 0, 0}},
		})
	}
	const slow, fast = 1, 2
	for name, c := range map[string]struct{ want, have, change []byte }{
		"nothing changed":            {bitset(fast, fast), bitset(fast, fast), nil},
		"the carrier went":           {bitset(fast, fast), bitset(fast|slow, fast|slow), nil},
		"the carrier came":           {bitset(fast|slow, fast|slow), bitset(fast, fast), nil},
		"a pod's, with carrier":      {bitset(fast|slow, fast|slow), bitset(slow, fast|slow), bitset(fast|slow, fast)},
		"a pod's, the carrier went":  {bitset(fast, fast), bitset(slow, fast|slow), bitset(fast, fast)},
		"a pod's, the carrier came":  {bitset(fast, fast|slow), bitset(slow, slow), bitset(fast, slow)},
		"another module was plugged": {bitset(fast, fast), bitset(slow, slow), nil},
	} {
		if change := bitsetChange(c.want, c.have); !bytes.Equal(change, c.change) {
			t.Errorf("%s: change %x, want %x", name, change, c.change)
		}
	}
}
