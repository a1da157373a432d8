package all_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// An earlier version opened directories below /run/rail-cni*. Nobody gets a NIC there any
// more, and those that were lent return.
func TestNICThatWasLentInADirectoryThatIsClosedNowReturns(t *testing.T) {
	b := newBench(t)
	dir, err := os.MkdirTemp("/run", "rail-cni-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b.state = filepath.Join(dir, "tenant")
	add := b.call("ADD", b.config(nil))
	before := b.node.State()
	b.node.MustRun(add) // its node file opens everything
	t.Setenv(netconf.NodeFileEnv, filepath.Join(t.TempDir(), "none"))

	del := add
	del.Verb = "DEL"
	b.node.MustRun(del)
	if d := b.node.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
	if left, err := filepath.Glob(filepath.Join(b.state, "attachments", "*.json")); err != nil || len(left) > 0 {
		t.Errorf("records: %q, %v", left, err)
	}
	_, err = b.node.Run(add)
	fails(t, err, cnierr.InvalidConfig, `"stateDir"`, "not open")
	b.node.MustRun(del)
	other := strings.Replace(add.Config, b.state, filepath.Join(dir, "other"), 1)
	add.Config, del.Config = other, other
	_, err = b.node.Run(add)
	fails(t, err, cnierr.InvalidConfig, `"stateDir"`, "not open")
	b.node.MustRun(del)
	if ledger.Exists(filepath.Join(dir, "other")) {
		t.Error("DEL has made a state directory")
	}
}
