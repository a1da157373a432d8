package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	netnsDir = "/run/netns" // where ip(8) looks for names
	nodeName = "node"
	farName  = "far"
)

// reexec runs this program again, as the node: in a network and a mount
// namespace of its own, with one more flag.
func reexec(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{"-inside"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  unix.SIGKILL,
	}
	return cmd.Run()
}

// enterNode makes the node from the new namespaces of reexec.
func enterNode() error {
	for _, m := range []struct {
		what, target, kind string
		flags              uintptr
		data               string
	}{
		// The mounts below must not be seen outside.
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{"tmpfs", "/run", "tmpfs", 0, "mode=0755"},
		// A sysfs shows the links of the namespace in which it was mounted.
		{"sysfs", "/sys", "sysfs", 0, ""},
	} {
		if err := unix.Mount(m.what, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s for the node: %w", m.target, err)
		}
	}
	if err := nameOwnNetns(nodeName); err != nil {
		return err
	}
	// A link that has just been set up behaves like one that has been up for
	// long: no duplicate address detection is under way.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := ip("link", "set", "lo", "up"); err != nil {
		return err
	}
	return ip("netns", "add", farName)
}

// nameOwnNetns returns the namespace of this process a name for ip(8).
func nameOwnNetns(name string) error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(netnsDir, name)
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("naming the node's network namespace: %w", err)
	}
	return nil
}

// ip runs ip(8) in the node.
func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// addNIC makes a NIC of the node: one end of a veth pair, its other end up in
// the namespace far.
func addNIC(name string) error {
	peer := name + "f"
	return errors.Join(
		ip("link", "add", name, "type", "veth", "peer", "name", peer, "netns", farName),
		ip("-n", farName, "link", "set", peer, "up"),
	)
}

// readyNICs brings NICs (name → address) into the state in which an
// administrator leaves them: up, with carrier and one address. It changes
// nothing that is so already.
//
// All NICs at once, not each before its turn: the kernel reports a link's new
// state up to a second later, which would disturb a measurement.
func readyNICs(nics map[string]string) error {
	for name, address := range nics {
		if err := errors.Join(
			ip("address", "replace", address, "dev", name),
			ip("link", "set", name, "up"),
		); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(5 * time.Second)
	for name := range nics {
		for {
			state, err := os.ReadFile(filepath.Join("/sys/class/net", name, "operstate"))
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(state)) == "up" {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("NIC %s does not come up (%s)", name, bytes.TrimSpace(state))
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// within calls f on a thread in the named network namespace. Processes that f
// starts are in it as well.
func within(netns string, f func() error) error {
	runtime.LockOSThread()
	back, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer back.Close()
	ns, err := os.Open(filepath.Join(netnsDir, netns))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering network namespace %s: %w", netns, err)
	}
	err = f()
	if back := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, so that the runtime never uses it again.
		return errors.Join(err, fmt.Errorf("leaving network namespace %s: %w", netns, back))
	}
	runtime.UnlockOSThread()
	return err
}
