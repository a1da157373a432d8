package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rail-cni/rail-cni/integration/versions"
)

// TestInstallationOfEachVersionIsRead reads the records of replaced files that earlier versions
// have written. An uninstallation must restore these files.
func TestInstallationOfEachVersionIsRead(t *testing.T) {
	sample := &record{Version: version}
	versions.Fill(t, sample)
	versions.Kept(t, "install.json", sample, func(data []byte) (any, error) {
		dir := filepath.Join(t.TempDir(), "install")
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, recordName), data, 0o600); err != nil {
			return nil, err
		}
		entries, err := Open(dir).Entries()
		return record{Version: version, Files: entries}, err
	})
}
