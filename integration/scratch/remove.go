package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RemoveNetns removes the name of a network namespace, also one at which nothing is mounted
// any longer. It returns nil if there is none, and removes no name of others.
func RemoveNetns(name string) error {
	if _, ok := ownerOf(name); !ok {
		return fmt.Errorf("%q is no name of a test's network namespace", name)
	}
	path := filepath.Join(netnsDir, name)
	err := unmount(path)
	if err == nil {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Remove unmounts what is mounted in a directory of this package, and removes it and all
// below it. It removes nothing if a mount stays, which may show files of others. An empty
// name, of a directory that was never made, is nothing to remove.
func Remove(dir string) error {
	if dir == "" {
		return nil
	}
	if _, ok := ownerOf(filepath.Base(dir)); !ok {
		return fmt.Errorf("%q is no directory that a test made", dir)
	}
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, point := range points {
		if err := unmount(point); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if points, err = mountsBelow(dir); err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("%s stays, because %v cannot be unmounted; unmount them as root, and remove it", dir, points)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove what a test left: %w", err)
	}
	return nil
}

// unmount unmounts all that is mounted at a path, which may be nothing.
func unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINTR) || err == nil {
			continue // there may be another below it
		}
		if errors.Is(err, unix.EINVAL) { // it is no mount point
			return nil
		}
		if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 { // nobody else may ask, whether or not it is one
			return nil
		}
		return &fs.PathError{Op: "unmount", Path: path, Err: err}
	}
}

// mountsBelow returns the mount points at and below a directory, the last mounted first.
func mountsBelow(dir string) (points []string, err error) {
	// As the kernel's table has it; not what a link of this name leads to.
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	dir = filepath.Join(above, filepath.Base(dir))
	table, tableErr := os.ReadFile("/proc/thread-self/mountinfo")
	if err := errors.Join(err, tableErr); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(table)) {
		// proc_pid_mountinfo(5): the mount point is the fifth field.
		if f := strings.Fields(line); len(f) > 4 {
			point := unescape(f[4])
			if point == dir || strings.HasPrefix(point, dir+"/") {
				points = append(points, point)
			}
		}
	}
	slices.Reverse(points)
	return points, nil
}

var escape = regexp.MustCompile(`\\[0-7]{3}`)

// unescape reverses the kernel's escapes of blanks and backslashes in a table of mounts.
func unescape(s string) string {
	return escape.ReplaceAllStringFunc(s, func(octal string) string {
		c, _ := strconv.ParseUint(octal[1:], 8, 8) // the pattern has digits only
		return string([]byte{byte(c)})
	})
}
