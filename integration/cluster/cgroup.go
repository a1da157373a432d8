package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
				// The parent must enable the children's controllers
				// (cgroup-v2.rst, "Enabling and Disabling").
				if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpuset +cpu +io +memory +pids"), 0); err != nil {
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
