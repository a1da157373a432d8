package nicstate

import (
	"net"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// IPoIBAddressOf returns the address of an InfiniBand interface.
func IPoIBAddressOf(queuePair, guid byte) net.HardwareAddr {
	return net.HardwareAddr{0x80, 0, 0, queuePair, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0xb8, 0xce, 0xf6, 0xff, 0xfe, 0, 0, guid}
}

func TestSetGUIDIsRestoredToAnotherQueuePair(t *testing.T) {
	now := &link.Link{Kind: link.KindIPoIB, ParentDev: "0000:3b:00.0", MAC: IPoIBAddressOf(9, 0x58), PermMAC: IPoIBAddressOf(9, 0x58)}
	s := &Snapshot{MAC: IPoIBAddressOf(1, 0xaa).String(), IPoIB: &link.IPoIB{}}
	if got := s.macFor(now); got != IPoIBAddressOf(9, 0xaa).String() {
		t.Errorf("a set GUID is restored as %s", got)
	}
}
