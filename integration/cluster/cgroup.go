package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupMount = "/sys/fs/cgroup"

// hierarchies returns the top directories of all cgroup hierarchies: several of
// version 1, or the one of version 2.
func hierarchies() (dirs []string, unified bool, err error) {
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers")); err == nil {
		return []string{cgroupMount}, true, nil
	}
	files, err := filepath.Glob(filepath.Join(cgroupMount, "*", "cgroup.procs"))
	for _, file := range files {
		dirs = append(dirs, filepath.Dir(file))
	}
	if err == nil && len(dirs) == 0 {
		err = fmt.Errorf("no cgroups below %s: the kubelet needs them", cgroupMount)
	}
	return dirs, false, err
}

// makeCgroup makes the cgroup of a node in all hierarchies: kubelet's
// cgroupRoot must exist before the kubelet starts.
func makeCgroup(cluster, node string) error {
	dirs, unified, err := hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		for _, name := range []string{cluster, node} {
			if unified {
				if err := delegate(dir); err != nil {
					return err
				}
			}
			up := dir
			dir = filepath.Join(dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			// In a cpuset of version 1 nothing may run until these files are
			// set (cpusets.rst).
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(up, file))
				if err != nil || unified {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// controllers are those that a kubelet asks for in its cgroup of version 2, where the machine
// has them, and io.
var controllers = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// aside is the child of a cgroup to which its processes go.
const aside = "rail-cluster-aside"

// delegate enables the controllers of a cgroup of version 2 for its children. Only the root of the
// machine may have processes and such children (cgroup-v2.rst, "No Internal Process
// Constraint"). In a container whose top directory is another cgroup its processes go into a
// child, and stay there.
func delegate(dir string) error {
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var enable []string
	for _, name := range strings.Fields(string(has)) {
		if slices.Contains(controllers, name) {
			enable = append(enable, "+"+name)
		}
	}
	for try := 0; ; try++ { // processes make others meanwhile
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(enable, " ")), 0)
		if !errors.Is(err, unix.EBUSY) || try == 10 {
			return err
		}
		if err := putAside(dir); err != nil {
			return err
		}
	}
}

// putAside moves the processes of a cgroup into a child.
func putAside(dir string) error {
	to := filepath.Join(dir, aside)
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(pids)) {
		// ESRCH: it has ended.
		if err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(pid), 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %s: %w", pid, err)
		}
	}
	return nil
}

// removeCgroups removes the cgroups of a cluster. It fails as long as one of
// them contains a process.
func removeCgroups(cluster string) error {
	dirs, _, err := hierarchies()
	for _, dir := range dirs {
		var all []string
		_ = filepath.WalkDir(filepath.Join(dir, cluster), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil // nothing to remove
		})
		for i := len(all) - 1; i >= 0; i-- { // children first
			if e := os.Remove(all[i]); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// cgroupsLeft returns an error that names the cgroups that still exist.
func cgroupsLeft(cluster string) error {
	dirs, _, err := hierarchies()
	var left []string
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, cluster)); err == nil {
			left = append(left, filepath.Join(dir, cluster))
		}
	}
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("cgroups are left: %s", strings.Join(left, ", ")))
	}
	return err
}
