package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
)

// TestControllersOfCgroupV2 has the machine's own hierarchy of version 2. Where the controllers
// are in version 1 it has few, and clusters use version 1.
func TestControllersOfCgroupV2(t *testing.T) {
	need.Root(t)
	top := t.TempDir()
	if err := unix.Mount("cgroup2", top, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(top, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	// The machine's root may have processes. That of a container's namespace is another cgroup: its
	// processes stay where they are.
	if _, err := os.Stat(filepath.Join(top, "cgroup.type")); errors.Is(err, os.ErrNotExist) {
		if err := delegate(top); err != nil {
			t.Fatal(err)
		}
	}
	// A container's own cgroup namespace begins at such a cgroup.
	outer := filepath.Join(top, fmt.Sprintf("rail-cluster-test-%d", os.Getpid()))
	if err := os.Mkdir(outer, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, outer) })
	var pids []string
	for range 3 {
		cmd := exec.CommandContext(t.Context(), "sleep", "3600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		pid := fmt.Sprint(cmd.Process.Pid)
		if err := os.WriteFile(filepath.Join(outer, "cgroup.procs"), []byte(pid), 0); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	inner := filepath.Join(outer, "node")
	if err := errors.Join(delegate(outer), os.Mkdir(inner, 0o755)); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range fields(t, outer, "cgroup.controllers") {
		if slices.Contains(controllers, name) {
			want = append(want, name)
		}
	}
	if got := fields(t, inner, "cgroup.controllers"); !slices.Equal(got, want) {
		t.Errorf("the child has the controllers %v, not %v", got, want)
	}
	t.Logf("controllers: %v", want)
	where := outer // without a controller nothing had to move
	if len(want) > 0 {
		where = filepath.Join(outer, aside)
	}
	for _, pid := range pids {
		if got := fields(t, where, "cgroup.procs"); !slices.Contains(got, pid) {
			t.Errorf("process %s is not in %s, which has %v", pid, where, got)
		}
	}
	if err := delegate(outer); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// fields returns the words of a cgroup's file.
func fields(t *testing.T, dir, file string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Fields(string(text))
	slices.Sort(list)
	return list
}

// remove removes the cgroup and its children. What the machine's top directory gives its
// children stays, as clusters of other tests may need it.
func remove(t *testing.T, outer string) {
	t.Helper()
	for _, dir := range []string{filepath.Join(outer, "node"), filepath.Join(outer, aside), outer} {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(dir)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			if time.Now().After(end) { // the kernel is still removing the processes
				t.Errorf("%s is left: %v", dir, err)
				break
			}
		}
	}
}
