package nodefile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/versions"
)

// TestStateDirsOfEachVersionAreRead reads the list of state directories that an agent has written.
func TestStateDirsOfEachVersionAreRead(t *testing.T) {
	sample := &StateDirs{}
	versions.Fill(t, sample)
	versions.Kept(t, "state-dirs.json", sample, func(data []byte) (any, error) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, StateDirsFile), data, 0o600); err != nil {
			return nil, err
		}
		return ReadStateDirs(dir)
	})
}
