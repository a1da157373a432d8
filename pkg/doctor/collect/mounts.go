package collect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxMounts bounds what is read of a process' mounts, in bytes: a pod may make 100,000.
const maxMounts = 4 << 20

// localTypes are the types of file systems whose reading waits for the kernel and its disks only.
// With others, as FUSE and NFS, it waits for a server, which may be the pod's own.
var localTypes = []string{
	"btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "xfs", "zfs",
}

// checkMounts returns an error if a directory of a process, or one above, is on a file system
// that may wait for a server. It opens none of them.
func (c *collector) checkMounts(pid int, dir string) error {
	f, err := os.OpenFile(c.procPath(pid, "mountinfo"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has ended
	}
	if err != nil {
		return err
	}
	defer f.Close()
	above := []string{"/"}
	for at := path.Join("/", dir); at != "/"; at = path.Dir(at) {
		above = append(above, at)
	}
	kinds, read := map[string]string{}, 0
	lines := bufio.NewScanner(io.LimitReader(f, maxMounts))
	lines.Buffer(nil, maxMounts)
	for lines.Scan() {
		read += len(lines.Bytes()) + 1
		// proc_pid_mountinfo(5): the mount point is the fifth field, and the type the first behind "-".
		fields := strings.Fields(lines.Text())
		if i := slices.Index(fields, "-"); len(fields) > 4 && i >= 0 && i+1 < len(fields) && slices.Contains(above, fields[4]) {
			kinds[fields[4]] = fields[i+1] // the last one is on top
		}
	}
	if read >= maxMounts || lines.Err() != nil {
		return fmt.Errorf("its container has too many mounts (more than %d bytes)", maxMounts)
	}
	for at, kind := range kinds {
		if !slices.Contains(localTypes, kind) {
			return fmt.Errorf("not read: %s of its container is on the file system %s, which may wait for a server", at, kind)
		}
	}
	return nil
}
