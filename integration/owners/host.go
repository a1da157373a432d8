package owners

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// Variable is the environment variable with the directory of the unpacked packages.
const Variable = "RAIL_CNI_OWNERS"

// Patience bounds how long a daemon may take for anything, on a busy machine.
const Patience = time.Minute

// Tree returns the directory of the unpacked packages.
func Tree() string { return cmp.Or(os.Getenv(Variable), "../../bin/tools/owners") }

// Host is a network namespace with a file system for daemons.
type Host struct {
	*testnet.Netns
	t    testing.TB
	tree string // of the packages
	dir  string // its run/ is the daemons' /run
}

// users are those that the daemons run as; FRRouting wants root to be in its group.
const (
	passwd = "root:x:0:0::/root:/bin/sh\nsystemd-network:x:998:998::/:/usr/sbin/nologin\n"
	group  = "root:x:0:\nsystemd-network:x:998:\nfrrvty:x:997:root\n"
)

// NewHost returns a host in a network namespace, whose daemons end with the test.
func NewHost(t testing.TB, ns *testnet.Netns) *Host {
	t.Helper()
	need.Root(t)
	tree, err := filepath.Abs(Tree())
	if err == nil {
		err = need.Built(filepath.Join(tree, "usr/sbin/NetworkManager"), "owners")
	}
	need.NoError(t, err)
	h := &Host{Netns: ns, t: t, tree: tree, dir: scratch.Dir(t)} // t.TempDir is too long for sockets' paths
	h.Write("passwd", passwd)
	h.Write("group", group)
	for _, dir := range []string{"run/frr", "run/systemd/network", "run/systemd/netif/links", "run/systemd/netif/leases", "run/systemd/netif/lldp"} {
		path := filepath.Join(h.dir, dir)
		// networkd drops root before it writes.
		for err := os.MkdirAll(path, 0o755); ; err = nil {
			if err == nil {
				err = os.Chmod(path, 0o777)
			}
			if err != nil {
				t.Fatal(err)
			}
			if path = filepath.Dir(path); path == h.dir {
				break
			}
		}
	}
	return h
}

// Write writes a file of the host. The name run/x is that of the daemons' /run/x.
func (h *Host) Write(name, text string) (path string) {
	h.t.Helper()
	path = filepath.Join(h.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return path
}

// enter is the script that starts a daemon, with the host's directory and the command.
const enter = `
mount --bind "$1/run" /run
mount -t tmpfs none /var/lib
mount -o remount,bind,ro /sys
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/group" /etc/group
shift
exec "$@"`

// libraries are the directories of the packages' libraries.
var libraries = []string{
	"usr/lib/x86_64-linux-gnu/systemd", "usr/lib/x86_64-linux-gnu/frr", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu",
}

// LibraryPath returns the value of LD_LIBRARY_PATH for the packages' programs.
func LibraryPath(tree string) string {
	var dirs []string
	for _, dir := range libraries {
		dirs = append(dirs, filepath.Join(tree, dir))
	}
	return strings.Join(dirs, ":")
}

// Daemon is a program that runs on a host.
type Daemon struct {
	*process.Process
	t    testing.TB
	name string
	log  string
}

// Start starts a program of the packages. The test ends it, and if the test has failed its log is
// printed.
func (h *Host) Start(program string, args ...string) *Daemon {
	h.t.Helper()
	path := filepath.Join(h.tree, program)
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(h.tree, "usr", program) // since Debian 13
	}
	d := &Daemon{t: h.t, name: filepath.Base(program), log: filepath.Join(h.dir, filepath.Base(program)+".log")}
	var err error
	d.Process, err = process.Start(process.Spec{
		Name: d.name, Log: d.log,
		Args: append([]string{
			"ip", "netns", "exec", h.Name, "sh", "-ec", enter, "sh", h.dir,
			"env", "LD_LIBRARY_PATH=" + LibraryPath(h.tree), "DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/bus", path,
		}, args...),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		d.Stop()
		if h.t.Failed() {
			h.t.Logf("%s on %s wrote:\n%s", d.name, h.Name, process.Tail(d.log, 60))
		}
	})
	return d
}

// Stop ends the daemon as its service manager does.
func (d *Daemon) Stop() {
	d.t.Helper()
	_ = d.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-d.Gone():
	case <-time.After(Patience):
		d.Kill()
		d.t.Errorf("%s does not end", d.name)
	}
}

// await waits until done reports true while the daemon runs.
func (d *Daemon) await(what string, done func() bool) {
	d.t.Helper()
	err := d.Poll(context.Background(), Patience, func(context.Context) error {
		if !done() {
			return fmt.Errorf("still waiting for %s", what)
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

// logged reports whether the daemon's log has the text.
func (d *Daemon) logged(text string) bool {
	log, _ := os.ReadFile(d.log)
	return slices.ContainsFunc(strings.Split(string(log), "\n"), func(line string) bool { return strings.Contains(line, text) })
}
