package doctor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/docs"
)

// TestRunbookRunsRailctlOnTheNode runs the first commands of the page, which find the agent's pod
// of a node.
func TestRunbookRunsRailctlOnTheNode(t *testing.T) {
	l := theLab(t)
	l.healthy(t)
	const example = "node=gpu-7\n"
	script := docs.Scripts(t, "docs/guide/runbook.md")[0]
	if !strings.HasPrefix(script, example) {
		t.Fatalf("the page begins with another command: %s", script)
	}
	for _, n := range l.Nodes() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-e", "-c", "node="+n.Name+"\n"+strings.TrimPrefix(script, example))
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(l.KubectlPath())+":"+os.Getenv("PATH"), "KUBECONFIG="+l.Kubeconfig())
		cmd.WaitDelay = time.Second // kubectl has the pipe too
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", n.Name, err, out)
		}
		for _, want := range []string{"POD ", "default/", " ok"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: %q is not in\n%s", n.Name, want, out)
			}
		}
	}
}
