package scratch_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// childEnv makes this program the child of a test; its value is a file that the child shows
// in its directory by a mount.
const childEnv = "RAIL_CNI_SCRATCH_TEST_CHILD"

// made is what a child made.
type made struct{ netns, dir, given string }

// paths returns all that the child made.
func (m made) paths() []string { return []string{m.netns, m.dir, m.given} }

// child makes one thing of each kind, says what, and waits.
func child(t *testing.T, shown string) {
	n := testnet.NewNetns(t, "child")
	dir := scratch.Dir(t)
	given, err := scratch.MkdirFor(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, filepath.Join(given, "TestX", "a strange\\place")} {
		point, below := filepath.Join(at, "mounted"), filepath.Join(at, "mounted", "below")
		file := filepath.Join(below, "file")
		err := errors.Join(os.MkdirAll(point, 0o700), unix.Mount("tmpfs", point, "tmpfs", 0, ""), os.Mkdir(below, 0o700),
			os.WriteFile(file, nil, 0o600), unix.Mount(shown, file, "", unix.MS_BIND, ""),
			os.Mkdir(filepath.Join(below, "dir"), 0o700), unix.Mount(filepath.Dir(shown), filepath.Join(below, "dir"), "", unix.MS_BIND, ""))
		if err != nil {
			t.Fatal(err)
		}
	}
	fmt.Printf("made: %s %s %s\n", n.Path, dir, given)
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the test ends, or kills it
	_ = scratch.Remove(given)
}

// start starts a child and returns what it made. end ends it in order, kill does not wait
// for it: the killed child is a zombie until the test ends.
func start(t *testing.T, shown string) (m made, kill, end func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWhatAKilledProcessLeftIsRemoved$")
	cmd.Env = append(os.Environ(), childEnv+"="+shown)
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() { in.Close(); _ = cmd.Wait() })
	t.Cleanup(end)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "made: %s %s %s", &m.netns, &m.dir, &m.given); err == nil {
			break
		}
		t.Log(lines.Text())
	}
	for _, path := range m.paths() {
		if _, err := os.Lstat(path); err != nil {
			t.Fatal("the child made it: ", err)
		}
	}
	return m, func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
	}, end
}

func TestWhatAKilledProcessLeftIsRemoved(t *testing.T) {
	need.Root(t)
	if shown := os.Getenv(childEnv); shown != "" {
		child(t, shown)
		return
	}
	kept := filepath.Join(t.TempDir(), "kept")
	foreign := filepath.Join(filepath.Dir(scratch.Dir(t)), fmt.Sprintf("rail-4194304-of-nobody-%d", os.Getpid()))
	if err := errors.Join(os.WriteFile(kept, []byte("kept"), 0o600), os.Mkdir(foreign, 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(foreign) })
	killed, kill, _ := start(t, kept)
	living, _, end := start(t, kept)
	kill()

	var sweeps sync.WaitGroup
	for range 4 {
		sweeps.Go(func() {
			if err := scratch.Sweep(); err != nil {
				t.Error(err)
			}
		})
	}
	sweeps.Wait()
	for _, path := range killed.paths() {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, of a killed process, is still there (%v)", path, err)
		}
	}
	for _, path := range append(living.paths(), foreign) {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("of a process that lives, or of others: %v", err)
		}
	}
	if text, err := os.ReadFile(kept); string(text) != "kept" {
		t.Errorf("a file that was mounted there has %q now, %v", text, err)
	}
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range killed.paths() {
		if strings.Contains(string(table), path) {
			t.Errorf("something is mounted at or below %s:\n%s", path, table)
		}
	}
	if !strings.Contains(string(table), living.netns) || !strings.Contains(string(table), living.dir) {
		t.Errorf("nothing is mounted any longer where a process lives:\n%s", table)
	}

	end()
	for _, path := range living.paths() {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there after the end of its test (%v)", path, err)
		}
	}
}

// A process in another PID namespace cannot see whether an owner lives.
func TestOwnersOfAnotherPIDNamespaceAreLeftAlone(t *testing.T) {
	need.Root(t)
	if os.Getenv(childEnv) != "" {
		if err := scratch.Sweep(); err != nil {
			t.Log(err) // /proc is that of the other namespace
		}
		return
	}
	dir := scratch.Dir(t)
	for name, script := range map[string]string{
		"with /proc of its own":  "mount -t proc proc /proc && exec \"$@\"",
		"with /proc of this one": "exec \"$@\"",
	} {
		t.Run(name, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("unshare", "--pid", "--fork", "--mount", "sh", "-ec", script, "sh", self, "-test.run=^"+t.Name()[:strings.Index(t.Name(), "/")]+"$", "-test.v")
			cmd.Env = append(os.Environ(), childEnv+"=x")
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestOwners") {
				t.Fatalf("%v\n%s", err, out)
			}
			if _, err := os.Lstat(dir); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// What has no owner in its name is of others.
func TestOnlyWhatTestsMadeIsRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"", ".", "..", "node", "rail-node-4194304-1", "rail-1.x-node-1", "rail-99999999999999999999.1-x"} {
		if err := scratch.RemoveNetns(name); err == nil {
			t.Errorf("a network namespace named %q was removed", name)
		}
		if err := scratch.Remove(filepath.Join(dir, name)); err == nil {
			t.Errorf("a directory named %q was removed", name)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

// A script's directory is no directory for those of its tests: their paths would grow.
func TestDirectoriesOfTestsAreBesideThoseOfTheirScript(t *testing.T) {
	script, err := scratch.MkdirFor(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = scratch.Remove(script) })
	t.Setenv("TMPDIR", filepath.Join(script, "TestX", "001"))
	if dir := scratch.Dir(t); filepath.Dir(dir) != filepath.Dir(script) {
		t.Errorf("%s is not beside %s", dir, script)
	}
	if info, err := os.Stat(script); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&fs.ModeSticky == 0 {
		t.Errorf("the script's directory is not as /tmp is: %v, %v", info.Mode(), err)
	}
}

// removeEnv names the directory that this program removes as the child of a test.
const removeEnv = "RAIL_CNI_SCRATCH_TEST_REMOVE"

// In a user namespace of its own a process may not unmount what was mounted before, and umount2(2)
// fails as if nothing were mounted there, with EINVAL (mount_namespaces(7), locked mounts).
func TestNothingIsRemovedWhereAMountStays(t *testing.T) {
	need.Root(t)
	if dir := os.Getenv(removeEnv); dir != "" {
		if err := scratch.Remove(dir); err == nil {
			t.Error("it was removed")
		}
		return
	}
	kept, dir := filepath.Join(t.TempDir(), "kept"), scratch.Dir(t)
	point := filepath.Join(dir, "mounted")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.Mkdir(point, 0o700), unix.Mount(filepath.Dir(kept), point, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), removeEnv+"="+dir)
	root := []syscall.SysProcIDMap{{Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: root, GidMappings: root}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}
