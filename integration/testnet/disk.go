package testnet

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// OnDisk returns a temporary directory of the test that does not look like a tmpfs. If
// the directory for temporary files is on a tmpfs, OnDisk mounts an overlay.
func OnDisk(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
		return dir
	}
	made := map[string]string{}
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		made[name] = filepath.Join(dir, name)
		if err := os.Mkdir(made[name], 0o700); err != nil {
			t.Fatal(err)
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", made["lower"], made["upper"], made["work"])
	if err := unix.Mount("overlay", made["merged"], "overlay", 0, layers); err != nil {
		t.Fatalf("%s is on a tmpfs, and no overlay can be mounted there (set TMPDIR to a directory on a disk): %v", dir, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(made["merged"], unix.MNT_DETACH) })
	return made["merged"]
}
