//go:build rig

package tests

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

// TestVerifyNamesDelayAndLossOfNetem plants them on rails of 2 nodes × 8 rails. The machine
// that builds this may have a kernel without netem.
func TestVerifyNamesDelayAndLossOfNetem(t *testing.T) {
	r := testnet.NewRails(t, 2, 8, testnet.RailIPv4)
	run := func(code int) *verify.Result {
		t.Helper()
		var out, errOut bytes.Buffer
		cmd := exec.Command(filepath.Join(testnet.Bin(t), "railctl"), "verify", "--fabric", "isolated", "-o", "json", "--netns", r.Nodes[0].Name+","+r.Nodes[1].Name)
		cmd.Stdout, cmd.Stderr = &out, &errOut
		_ = cmd.Run()
		var result verify.Result
		if err := json.Unmarshal(out.Bytes(), &result); err != nil || cmd.ProcessState.ExitCode() != code {
			t.Fatalf("exit code %d, not %d: %v\n%s\n%s", cmd.ProcessState.ExitCode(), code, err, &errOut, &out)
		}
		return &result
	}
	healthy := run(verify.ExitHealthy)
	t.Logf("2 nodes × 8 rails: %.1f s", healthy.Seconds)
	for _, c := range []struct {
		node   int
		device string
		netem  []string
		kind   verify.Kind
		rail   int
	}{
		{1, "net6", []string{"delay", "5ms"}, verify.KindLatency, 5},
		{0, "net1", []string{"delay", "2ms", "200us"}, verify.KindLatency, 0},
		{1, "net3", []string{"loss", "10%"}, verify.KindLoss, 2},
		{0, "net8", []string{"loss", "30%"}, verify.KindLoss, 7},
	} {
		node := r.Nodes[c.node]
		node.Exec(append([]string{"tc", "qdisc", "add", "dev", c.device, "root", "netem"}, c.netem...)...)
		found := run(verify.ExitDefects).Findings
		want := verify.End{Node: node.Name, Rail: c.rail}
		if len(found) != 1 || found[0].Kind != c.kind || found[0].Either || len(found[0].Ends) != 1 || found[0].Ends[0] != want {
			t.Errorf("netem %v of %v: %+v", c.netem, want, found)
		}
		for _, f := range found {
			t.Logf("netem %v: %s: %s", c.netem, f.Kind, f.Evidence)
		}
		node.Exec("tc", "qdisc", "del", "dev", c.device, "root")
	}
	run(verify.ExitHealthy)
}
