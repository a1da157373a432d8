package replay_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/replay"
)

// journal writes entries to the journal of a state directory, like a DEL that
// cannot reach its server.
func journal(t *testing.T, stateDir string, kubeconfigs ...string) {
	t.Helper()
	dir := netconf.JournalDir(stateDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, kubeconfig := range kubeconfigs {
		text := fmt.Appendf(nil, `{"kubeconfig":%q,"pool":{"Prefix":"10.0.0.0/24"},"owner":{"ContainerID":"c%d","IfName":"net1","PodRef":"default/pod"}}`, kubeconfig, i)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("e%d.free", i)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// nodeFile writes a node file that permits only these paths.
func nodeFile(t *testing.T, paths ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte("paths: ["+strings.Join(paths, ", ")+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(nodefile.PathEnv, path)
}

func TestEveryStateDirectoryCounts(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	journal(t, one, "/a", "/b")
	journal(t, two, "/a")
	j := replay.Journals{StateDirs: []string{one, two, filepath.Join(one, "nothing")}}
	if n, err := j.Waiting(); n != 3 || err != nil {
		t.Errorf("%d addresses wait, %v", n, err)
	}
}

// Everything else needs a server, which the tests of cmd/rail-agent have.
func TestKubeconfigThatTheNodeFileClosedIsNotUsed(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	closed, missing := filepath.Join(one, "closed"), filepath.Join(two, "missing")
	journal(t, one, closed)
	journal(t, two, missing)
	nodeFile(t, missing)
	j := replay.Journals{StateDirs: []string{one, two}, NodeFile: &nodefile.Reader{}, Log: slog.New(slog.DiscardHandler)}
	err := j.Replay(t.Context())
	if err == nil {
		t.Fatal("it was replayed")
	}
	for _, want := range []string{"of kubeconfig " + closed + ": ", "add the path to", "of kubeconfig " + missing + ": ", "no such file"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if n, err := j.Waiting(); n != 2 || err != nil {
		t.Errorf("%d addresses wait, %v", n, err)
	}
}
