package link_test

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
)

// A driver that resets its NIC answers ENODEV for a link that is there, and the kernel says
// so of another link that a request names.
func TestLinkThatIsThereIsFound(t *testing.T) {
	r := newRail(t, "ens1")
	l := byName(t, r.host, "ens1")
	for name, err := range map[string]error{
		"by index": link.IfGone(r.host.Netns, fmt.Errorf("driver: %w", unix.ENODEV), l.Index),
		"by name":  link.IfNameGone(r.host.Netns, fmt.Errorf("driver: %w", unix.ENODEV), "ens1"),
	} {
		if errors.Is(err, link.ErrNotFound) || !errors.Is(err, unix.ENODEV) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := fmt.Errorf("driver: %w", unix.EBUSY)
	if err := link.IfGone(r.host.Netns, other, 4711); !errors.Is(err, unix.EBUSY) || errors.Is(err, link.ErrNotFound) {
		t.Errorf("another error: %v", err)
	}
	if link.IfGone(r.host.Netns, nil, 4711) != nil || link.IfNameGone(r.host.Netns, nil, "ens9") != nil {
		t.Error("no error is an error")
	}
	if found, err := sysctl.Read(r.host.Netns, "ens1"); err != nil || len(found) == 0 {
		t.Errorf("sysctls: %v, %v", found, err)
	}
	r.host.IP("addr", "flush", "dev", "ens1")
	if found, err := link.Addresses(r.host.Netns, l.Index); err != nil || len(found) > 0 {
		t.Errorf("without addresses: %v, %v", found, err)
	}
}
