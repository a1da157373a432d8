package linkwait

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
)

// TestKernelAnnounces: an announcement that the kernel sends too early is lost, and neighbors keep
// the address of the last holder.
func TestKernelAnnounces(t *testing.T) {
	for name, c := range map[string]struct {
		before link.Link
		want   bool
	}{
		"a macvlan, whose parent has a carrier": {link.Link{Carrier: true}, true},
		"a NIC without a carrier":               {link.Link{}, false},
		"an interface that was up":              {link.Link{Carrier: true, Flags: unix.IFF_UP}, false},
		"a new IPoIB interface":                 {link.Link{Carrier: true, IPoIB: &link.IPoIB{}}, false},
	} {
		if got := kernelAnnounces(&c.before); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
