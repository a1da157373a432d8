package rig

import (
	"context"
	"path/filepath"
	"strings"
)

// udevTree has the guest's udev, with Debian's rules: those of systemd, and those by which
// rdma-core names RDMA devices. All that the packages depend on would be a whole systemd.
var udevTree = tree{"udev", "2 MB", []string{"udev", "rdma-core", "libnl-3-200"}, false}

// udevPatterns are what the guest gets of the packages beside udev itself, there or
// below usr (since Debian 13); the rest of udev's programs, and its database of
// hardware, are about other devices.
var udevPatterns = []string{"etc/udev/udev.conf", "lib/udev/rules.d/*.rules", "lib/systemd/network/*.link"}

// udevFiles returns udev, its rules, and the libraries of this machine that it
// loads, each by its name in the guest. Nothing starts udev: a test does.
func (b *builder) udevFiles(ctx context.Context) (map[string]string, error) {
	dir, err := b.unpacked(ctx, udevTree)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, pattern := range udevPatterns {
		for _, below := range []string{"", "usr"} {
			files, err := filepath.Glob(filepath.Join(dir, below, pattern))
			if err != nil {
				return nil, err
			}
			for _, f := range files {
				names[f] = strings.TrimPrefix(f, dir)
			}
		}
	}
	if err := addPackaged(ctx, names, dir, "bin/udevadm", "/bin/udevadm"); err != nil {
		return nil, err
	}
	return names, addPackaged(ctx, names, dir, "lib/udev/rdma_rename", "/lib/udev/rdma_rename")
}
