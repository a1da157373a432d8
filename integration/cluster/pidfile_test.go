package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/cluster"
)

func TestPidfileOfARunningProcessIsLeftAlone(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	pidfile := filepath.Join(t.TempDir(), "cluster.pid")
	if err := cluster.Unclaimed(pidfile); err != nil {
		t.Errorf("without a file: %v", err)
	}
	if err := os.WriteFile(pidfile, []byte(strconv.Itoa(ended.Process.Pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Claim(pidfile); err != nil {
		t.Errorf("of a process that ended: %v", err)
	}
	if text, err := os.ReadFile(pidfile); err != nil || string(text) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if err := cluster.Unclaimed(pidfile); err == nil || !strings.Contains(err.Error(), "make cluster-down") {
		t.Errorf("of this process: %v", err)
	}
}
