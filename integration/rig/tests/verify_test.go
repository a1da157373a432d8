//go:build rig

package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
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
	type defect struct {
		node   int
		device string
		netem  []string
		kind   verify.Kind
		rail   int
	}
	delays := []defect{
		{1, "net6", []string{"delay", "5ms"}, verify.KindLatency, 5},
		{0, "net1", []string{"delay", "2ms", "200us"}, verify.KindLatency, 0},
	}
	losses := []defect{
		{1, "net3", []string{"loss", "10%"}, verify.KindLoss, 2},
		{0, "net8", []string{"loss", "30%"}, verify.KindLoss, 7},
	}
	for _, c := range slices.Concat(need.Sample(t, 1, delays), need.Sample(t, 1, losses)) {
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
	healthy := run(verify.ExitHealthy)
	t.Logf("2 nodes × 8 rails: %.1f s", healthy.Seconds)
}

// TestVerifyMeasuresRDMA runs perftest over Soft-RoCE between 2 nodes × 2 rails. One end has no
// RDMA device. (Programs that measure latency poll, and an emulated machine has no time for those
// of several rails.) Level 3 takes three times as long as level 2.
func TestVerifyMeasuresRDMA(t *testing.T) {
	if err := kmod.SoftRoCE(); errors.Is(err, kmod.ErrNoSoftRoCE) {
		need.Skip(t, err)
	} else if err != nil {
		t.Fatal(err)
	}
	r := testnet.NewRails(t, 2, 2, testnet.RailIPv4)
	for _, d := range []struct {
		node         int
		name, netdev string
	}{{0, "rxe00", "net1"}, {1, "rxe10", "net1"}, {0, "rxe01", "net2"}} {
		r.Nodes[d.node].Exec("rdma", "link", "add", d.name, "type", "rxe", "netdev", d.netdev)
	}
	for _, level := range need.Sample(t, 1, []string{"2", "3"}) {
		t.Run("level "+level, func(t *testing.T) { measuresRDMA(t, r, level) })
	}
}

func measuresRDMA(t *testing.T, r *testnet.Rails, level string) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(filepath.Join(testnet.Bin(t), "railctl"), "verify", "--level", level, "-o", "json", "--netns", r.Nodes[0].Name+","+r.Nodes[1].Name)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	_ = cmd.Run()
	var result verify.Result
	if err := json.Unmarshal(out.Bytes(), &result); err != nil || cmd.ProcessState.ExitCode() != verify.ExitDefects {
		t.Fatalf("exit code %d: %v\n%s\n%s", cmd.ProcessState.ExitCode(), err, &errOut, &out)
	}
	t.Logf("2 nodes × 2 rails: %.1f s", result.Seconds)
	broken := 0
	for _, f := range result.Findings {
		t.Logf("%s %v: %s", f.Kind, f.Ends, f.Evidence)
		if f.Kind != verify.KindRDMA {
			continue
		}
		want := []verify.End{{Node: r.Nodes[1].Name, Rail: 1}}
		if broken++; !slices.Equal(f.Ends, want) || !strings.Contains(f.Evidence, "net2 has no RDMA device") {
			t.Errorf("not of %v: %+v", want, f)
		}
	}
	if broken != 1 {
		t.Errorf("%d findings of RDMA", broken)
	}
	for _, p := range result.Paths {
		if m := p.RDMA; m == nil || p.From.Rail == 0 && (m.Ping <= 0 || level == "3" && (m.Latency <= 0 || m.Bandwidth <= 0)) {
			t.Errorf("%v to %v: %+v", p.From, p.To, m)
		} else {
			t.Logf("%v to %v: %+v", p.From, p.To, *m)
		}
	}
}
