package plans_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/without"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// What an earlier version lent on such a kernel still ends.
func TestKernelThatIsTooOldIsRefusedBeforeAnythingChanges(t *testing.T) {
	t.Parallel()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := "Linux " + unix.ByteSliceToString(name.Release[:])
	b := newBench(t)
	b.node.NIC("ens13np0", testnet.NewNetns(t, "wire2"))
	testnet.Bin(t) // builds, if it must, on an ordinary thread
	before := b.node.State()
	run := func(call testnet.Call) (err error) {
		call.OfThread = true
		without.Fsopen(t, func() { _, err = b.node.Run(call) })
		return err
	}
	for _, config := range []string{b.config(nil), b.macvlanConfig(nil), b.rdmaConfig(map[string]any{"rdma": "auto", "prevResult": b.prev("1.1.0")})} {
		for _, verb := range []string{"ADD", "STATUS"} {
			fails(t, run(b.call(verb, config)), cnierr.NotAvailable, release, "fsopen", "5.10")
		}
		for _, verb := range []string{"DEL", "GC"} {
			if err := run(b.call(verb, config)); err != nil {
				t.Errorf("%s of what is not there: %v\n%s", verb, err, config)
			}
		}
	}
	b.untouched(before)

	config := b.config(map[string]any{"ipam": localIPAM("172.31.1.0/24")})
	lent := b.call("ADD", config)
	result := b.node.MustRun(lent)
	if err := run(b.call("CHECK", b.withPrevResult(config, result))); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := run(lent.With("DEL")); err != nil {
		t.Errorf("DEL: %v", err)
	}
	b.untouched(before)
}
