package safepath

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the symbolic links of one path, as in the kernel
// (path_resolution(7)).
const maxLinks = 40

// Check returns an error if another user than root and this process' own user can have
// written the file at path. As in sshd(8) and sudo(8), the file and each directory on the
// way must belong to one of these two users. No other user may have the right to write to
// them, so that no other user can change the file later. A directory on the way may be
// writable for all if it is sticky, like /tmp, because root's files stay in such a
// directory (inode(7)). Symbolic links and their targets follow the same rules.
//
// If a part of the path is missing and the part that exists is safe, the error wraps
// [fs.ErrNotExist].
func Check(path string) error { return check(path, 0o022) }

// CheckExceptGroups is like [Check], but permits that groups may write, as the group of the
// system log may write to /var/log on Debian.
func CheckExceptGroups(path string) error { return check(path, 0o002) }

func check(path string, forbidden fs.FileMode) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	dir, links, kernels := "/", 0, ""
	info, err := os.Lstat(dir)
	if err == nil {
		err = safe(dir, info, forbidden)
	}
	for todo := strings.Split(path, "/"); err == nil && len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if dir == kernels {
				return fmt.Errorf("%s has .. after a link of the kernel (such as /proc/PID/cwd): there .. leads elsewhere than the path shows", path)
			}
			dir = filepath.Dir(dir) // dir has no other links in it, so the kernel does the same
			continue
		}
		next := filepath.Join(dir, name)
		if info, err = os.Lstat(next); err != nil {
			break
		}
		if err = safe(next, info, forbidden); err != nil || info.Mode().Type() != fs.ModeSymlink {
			dir = next
			continue
		}
		if links++; links > maxLinks {
			return fmt.Errorf("%s: %w", path, unix.ELOOP)
		}
		var st unix.Statfs_t
		if err = unix.Statfs(dir, &st); err == nil && st.Type == unix.PROC_SUPER_MAGIC {
			// The text of such a link is not its target (proc_pid_root(5)).
			if info, err = os.Stat(next); err == nil {
				err = safe(next, info, forbidden)
			}
			dir, kernels = next, next
			continue
		}
		var target string
		if target, err = os.Readlink(next); filepath.IsAbs(target) {
			dir = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return err
}

// safe returns an error if other users can write to the file at path, or can give
// themselves the right to write to it.
func safe(path string, info fs.FileInfo, forbidden fs.FileMode) error {
	mode := info.Mode()
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, not to root", path, st.Uid)
	}
	if mode.Type() == fs.ModeSymlink || mode.Perm()&forbidden == 0 || mode.IsDir() && mode&fs.ModeSticky != 0 {
		return nil
	}
	return fmt.Errorf("users other than root can write to %s (mode %04o)", path, mode.Perm())
}
