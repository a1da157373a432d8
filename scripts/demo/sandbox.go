package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// insideVar marks the process that runs in the demo's own namespaces.
const insideVar = "RAIL_CNI_DEMO_INSIDE"

// workDir is the demo's directory in its private /run.
const workDir = "/run/rail-cni-demo"

// runInside runs this program again in network, mount and process namespaces of
// its own. The kernel ends all of them, and thereby every link and mount of the
// demo, when that process ends or this one is killed.
func runInside(args []string) error {
	if os.Geteuid() != 0 {
		return errors.New("the demo makes network namespaces, which needs root: run it as root, for example `sudo make demo`")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), insideVar+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID,
		Pdeathsig:  unix.SIGKILL,
	}
	// Pdeathsig is about the thread that starts the process.
	runtime.LockOSThread()
	err = cmd.Run()
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("this root may not make namespaces (a container without CAP_SYS_ADMIN?): run the demo where `unshare --net true` works: %w", err)
	}
	return err
}

// furnish prepares the new namespaces for the demo, and hides the machine's
// state behind file systems of its own. It returns the new path of binDir.
func furnish(binDir string) (string, error) {
	bin, err := os.Open(binDir)
	if err != nil {
		return "", fmt.Errorf("%w (run `make build` first)", err)
	}
	defer bin.Close()
	mounts := []struct {
		what, target, kind string
		flags              uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE}, // the mounts below are not seen outside
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},     // /run/netns, /run/rail-cni
		{"tmpfs", "/var/lib", "tmpfs", 0}, // libcni's cache in /var/lib/cni
	}
	for _, m := range mounts {
		if err := unix.Mount(m.what, m.target, m.kind, m.flags, ""); err != nil {
			return "", fmt.Errorf("mount %s for the demo: %w", m.target, err)
		}
	}
	for _, dir := range []string{workDir + "/bin", confDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	}
	// The directory may be below a path that is hidden now.
	hidden := fmt.Sprintf("/proc/self/fd/%d", bin.Fd())
	if err := unix.Mount(hidden, workDir+"/bin", "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("show the binaries of %s to the demo: %w", binDir, err)
	}
	return filepath.Join(workDir, "bin"), nil
}
