package link

import (
	"testing"

	"golang.org/x/sys/unix"
)

// With autonegotiation some drivers tell what was negotiated. To set that would
// reset the NIC at each return.
func TestPauseThatWasNegotiatedIsNoSetting(t *testing.T) {
	pause := func(autoneg byte) attributes {
		return negotiatedPause(attributes{
			{kind: unix.ETHTOOL_A_PAUSE_AUTONEG, value: []byte{autoneg}},
			{kind: unix.ETHTOOL_A_PAUSE_RX, value: []byte{1}},
			{kind: unix.ETHTOOL_A_PAUSE_TX, value: []byte{1}},
		})
	}
	if kept := pause(1); len(kept) != 1 {
		t.Errorf("with autonegotiation: %v", kept)
	}
	if kept := pause(0); len(kept) != 3 {
		t.Errorf("without: %v", kept)
	}
}
