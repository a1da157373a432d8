package procs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
)

func TestDirectoriesThatMayWaitForAServerAreNotOpened(t *testing.T) {
	const root = "100 99 0:50 / / rw,relatime - overlay overlay rw\n"
	const dev = "101 100 0:51 / /dev rw,nosuid - tmpfs tmpfs rw\n"
	for name, c := range map[string]struct{ mounts, want string }{
		"of a runtime":             {root + dev + "102 100 0:60 / /data rw - nfs4 server:/x rw\n", ""},
		"FUSE at it":               {root + dev + "102 101 0:60 / /dev/infiniband rw - fuse.csi x rw\n", "/dev/infiniband of the container is on the file system fuse.csi"},
		"NFS above":                {root + "101 100 0:51 / /dev rw shared:7 - nfs4 server:/x rw\n", "file system nfs4"},
		"FUSE as root":             {"100 99 0:50 / / rw - fuse.fuse-overlayfs x rw\n" + dev, "file system fuse.fuse-overlayfs"},
		"FUSE under another mount": {root + dev + "102 101 0:60 / /dev/infiniband rw - fuse x rw\n103 102 0:61 / /dev/infiniband rw - tmpfs x rw\n", ""},
		"a mount over it":          {root + dev + "102 101 0:60 / /dev/infiniband rw - tmpfs x rw\n103 102 0:61 / /dev/infiniband rw - fuse x rw\n", "file system fuse"},
		"very many":                {root + strings.Repeat("102 100 0:60 / /data rw - tmpfs tmpfs rw\n", 110_000), "too many mounts"},
	} {
		dir := scratch.Tree(t, map[string]string{"proc/400/mountinfo": c.mounts})
		withDevices(t, filepath.Join(dir, "proc/400/root/dev/infiniband"), "uverbs3")
		names, err := procReaderIn(dir).devicesIn(400, "dev/infiniband")
		if c.want == "" && (err != nil || !slices.Equal(names, []string{"uverbs3"})) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %q, %v", name, names, err)
		}
	}
	if err := (&Reader{Roots: files.Roots{Proc: "/proc"}}).checkMounts(os.Getpid(), "dev/infiniband"); err != nil {
		t.Errorf("this process' own: %v", err)
	}
}
