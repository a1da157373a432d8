package procs

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

// maxMounts is the maximum size, in bytes, of a process' list of mounts. A pod may make 100,000
// mounts.
const maxMounts = 4 << 20

// localTypes are the types of file systems that need only the kernel and its disks to be read.
// Reading another type, such as FUSE or NFS, waits for a server, which may be a program of the pod.
var localTypes = []string{
	"btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "xfs", "zfs",
}

// checkMounts returns an error if the directory dir of a process, or a directory above it, is on a
// file system that may wait for a server. It does not open any of these directories.
func (c *Reader) checkMounts(pid int, dir string) error {
	f, err := os.OpenFile(c.procPath(pid, "mountinfo"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the process has ended
	}
	if err != nil {
		return err
	}
	defer f.Close()
	above := []string{"/"}
	for parent := path.Join("/", dir); parent != "/"; parent = path.Dir(parent) {
		above = append(above, parent)
	}
	kinds, read := map[string]string{}, 0
	lines := bufio.NewScanner(io.LimitReader(f, maxMounts))
	lines.Buffer(nil, maxMounts)
	for lines.Scan() {
		read += len(lines.Bytes()) + 1
		// By proc_pid_mountinfo(5), the mount point is the fifth field, and the type is the first field after "-".
		fields := strings.Fields(lines.Text())
		if i := slices.Index(fields, "-"); len(fields) > 4 && i >= 0 && i+1 < len(fields) && slices.Contains(above, fields[4]) {
			kinds[fields[4]] = fields[i+1] // the last mount at a path is the visible one
		}
	}
	if read >= maxMounts || lines.Err() != nil {
		return fmt.Errorf("the container has too many mounts (their list has more than %d bytes)", maxMounts)
	}
	for mount, kind := range kinds {
		if !slices.Contains(localTypes, kind) {
			return fmt.Errorf("not read, because %s of the container is on the file system %s, which may wait for a server", mount, kind)
		}
	}
	return nil
}
