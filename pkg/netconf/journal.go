package netconf

import "path/filepath"

// defaultJournalDir outlives a reboot, unlike [DefaultStateDir].
const defaultJournalDir = "/var/lib/rail-cni/ipam-journal"

// JournalDir returns the directory of the DELs that could not reach the API
// server. For another state directory than the default it is below that.
func JournalDir(stateDir string) string {
	if stateDir == DefaultStateDir {
		return defaultJournalDir
	}
	return filepath.Join(stateDir, filepath.Base(defaultJournalDir))
}
