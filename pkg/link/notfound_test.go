package link_test

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
)

// A driver that resets its NIC answers ENODEV although the link is there. The kernel also answers
// ENODEV if the missing link is another one that the request names.
func TestLinkThatIsThereIsFound(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	l := r.Host.Link("ens1")
	for name, err := range map[string]error{
		"by index": link.IfGone(r.Host.Netns, fmt.Errorf("driver: %w", unix.ENODEV), l.Index),
		"by name":  link.IfNameGone(r.Host.Netns, fmt.Errorf("driver: %w", unix.ENODEV), "ens1"),
	} {
		if errors.Is(err, link.ErrNotFound) || !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := fmt.Errorf("driver: %w", unix.EBUSY)
	if err := link.IfGone(r.Host.Netns, other, 4711); !errors.Is(err, unix.EBUSY) || errors.Is(err, link.ErrNotFound) {
		t.Errorf("another error: %v", err)
	}
	if link.IfGone(r.Host.Netns, nil, 4711) != nil || link.IfNameGone(r.Host.Netns, nil, "ens9") != nil {
		t.Error("no error is an error")
	}
	if found, err := sysctl.Read(r.Host.Netns, "ens1"); err != nil || len(found) == 0 {
		t.Errorf("sysctls: %v, %v", found, err)
	}
	r.Host.IP("addr", "flush", "dev", "ens1")
	if found, err := link.Addresses(r.Host.Netns, l.Index); err != nil || len(found) > 0 {
		t.Errorf("without addresses: %v, %v", found, err)
	}
}
