package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// readOnly are the mounts with the settings of NICs. In a container that is not privileged, runc
// makes them read-only.
var readOnly = []string{"/proc/sys", "/sys"}

// makeWritable makes /proc/sys and /sys writable in the mount namespace of the calling process.
// This must be the mount namespace of the process's container.
func makeWritable() error {
	for _, path := range readOnly {
		var fs unix.Statfs_t
		if err := unix.Statfs(path, &fs); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if fs.Flags&unix.ST_RDONLY == 0 {
			continue
		}
		if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("make %s writable (this needs CAP_SYS_ADMIN, and AppArmor must allow mounts): %w", path, err)
		}
	}
	return nil
}
