package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// udevPackages are unpacked for the guest's udev, with Debian's rules: those of
// systemd, and those by which rdma-core names RDMA devices.
var udevPackages = []string{"udev", "rdma-core", "libnl-3-200"}

// udevPatterns are what the guest gets of the packages, there or below usr (since
// Debian 13); the rest of udev's programs, and its database of hardware, are
// about other devices.
var udevPatterns = []string{
	"etc/udev/udev.conf", "lib/udev/rules.d/*.rules", "lib/systemd/network/*.link", "lib/udev/rdma_rename",
	"lib/x86_64-linux-gnu/libnl-3.so.200", "bin/udevadm",
}

// udevFiles returns udev, its rules, and the libraries of this machine that it
// loads, each by its name in the guest. Nothing starts udev: a test does.
func (b *builder) udevFiles(ctx context.Context) (names map[string]string, err error) {
	dir, err := b.udev(ctx)
	if err != nil {
		return nil, err
	}
	names = map[string]string{}
	own := map[string]string{} // file name → path in dir
	for _, pattern := range udevPatterns {
		for _, below := range []string{"", "usr"} {
			files, err := filepath.Glob(filepath.Join(dir, below, pattern))
			if err != nil {
				return nil, err
			}
			for _, f := range files {
				names[f] = strings.TrimPrefix(f, dir)
				own[filepath.Base(f)] = f
			}
		}
	}
	for _, program := range []string{"udevadm", "rdma_rename"} {
		if own[program] == "" {
			return nil, fmt.Errorf("the packages %v have no %s", udevPackages, program)
		}
		out, err := run(ctx, "", "ldd", own[program])
		if err != nil {
			return nil, err
		}
		for _, l := range libraryPath.FindAllString(string(out), -1) {
			if own[filepath.Base(l)] == "" {
				names[l] = l
			}
		}
		for _, m := range missingLibrary.FindAllStringSubmatch(string(out), -1) {
			if own[m[1]] == "" {
				return nil, fmt.Errorf("%s needs %s, which is not on this machine", program, m[1])
			}
		}
	}
	names[own["udevadm"]] = "/bin/udevadm"
	return names, nil
}

var missingLibrary = regexp.MustCompile(`(\S+) => not found`)

// udev returns the directory with the packages, unpacked once.
func (b *builder) udev(ctx context.Context) (string, error) {
	kept := filepath.Join(b.shared, "udev")
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	fmt.Fprintf(b.log, "rig: unpacking udev (2 MB of Debian packages, once) …\n")
	work, err := os.MkdirTemp(b.shared, "udev-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work) // if it is incomplete
	if err := b.unpack(ctx, work, udevPackages...); err != nil {
		return "", err
	}
	return kept, os.Rename(work, kept)
}
