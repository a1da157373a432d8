package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// readOnly are the mounts of NICs' settings that runc makes read-only in a
// container without privileges.
var readOnly = []string{"/proc/sys", "/sys"}

// makeWritable makes /proc/sys and /sys writable in the mount namespace of the
// calling process, which must be that of its container.
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
			return fmt.Errorf("make %s writable (it needs CAP_SYS_ADMIN, and AppArmor to allow mounts): %w", path, err)
		}
	}
	return nil
}
