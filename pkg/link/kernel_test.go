package link_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/without"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func TestKernelIsJudgedByItsFeatures(t *testing.T) {
	n := testnet.NewNetns(t, "node")
	if err := link.CheckKernel(n.Netns); err != nil {
		t.Errorf("the kernel of this test: %v", err)
	}
	var err error
	without.Fsopen(t, func() { err = link.CheckKernel(n.Netns) })
	if err == nil || failure.KindOf(err) != failure.NotAvailable || !errors.Is(err, unix.ENOSYS) {
		t.Fatalf("without fsopen: %v", err)
	}
	for _, text := range []string{link.Release(), "too old", "fsopen", "boot " + link.OldestKernel} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
}

// A kernel ignores an attribute that it does not know. The running kernel does the same with an
// attribute that no kernel has.
func TestKernelWithoutAnAttributeIsToldFromOneThatHasIt(t *testing.T) {
	n := testnet.NewNetns(t, "node")
	const unknown = 1 << 12
	for attribute, want := range map[int]string{unix.IFLA_PERM_ADDRESS: "", unknown: "permanent MAC"} {
		err := link.PermanentMACs(n.Netns, attribute)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("attribute %d: %v, want %q", attribute, err, want)
		}
	}
}
