package netconf

import (
	"path/filepath"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// defaultJournalDir is a directory that survives a reboot, unlike [nodefile.DefaultStateDir].
const defaultJournalDir = "/var/lib/rail-cni/ipam-journal"

// JournalDir returns the directory for the DELs that could not reach the API server. If stateDir is
// not the default, the journal is below stateDir.
func JournalDir(stateDir string) string {
	if stateDir == nodefile.DefaultStateDir {
		return defaultJournalDir
	}
	return filepath.Join(stateDir, filepath.Base(defaultJournalDir))
}
