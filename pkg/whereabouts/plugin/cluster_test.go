package plugin

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNodeNameIsThatOfTheEnvironmentBeforeThatOfTheFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nodename"), []byte(" of-the-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]string{"": "of-the-file", " of-the-environment ": "of-the-environment"} {
		t.Setenv("NODENAME", env)
		if got, err := nodeName(dir); err != nil || got != want {
			t.Errorf("NODENAME=%q: %q, %v, want %q", env, got, err, want)
		}
	}
}
