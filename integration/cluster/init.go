package cluster

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A process that imports this package may be started again as one of these two;
// its environment says which.
const (
	roleEnv  = "RAIL_CNI_CLUSTER_ROLE"
	nameEnv  = "RAIL_CNI_CLUSTER_NAME"
	holdRole = "hold"
	nodeRole = "node"
)

func init() {
	switch os.Getenv(roleEnv) {
	case holdRole:
		hold(os.Getenv(nameEnv))
	case nodeRole:
		fmt.Fprintln(os.Stderr, nodeInit(os.Getenv(nameEnv)))
		os.Exit(1)
	default:
		// A thread that enters a node's namespaces ends with its goroutine. The
		// main thread cannot end, so it is kept for the main goroutine.
		runtime.LockOSThread()
	}
}

// hold keeps a network namespace until stdin ends, which it does when the
// process that started it ends, and then removes the cgroups. It does so even
// if that process was killed.
func hold(cgroup string) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	for range 600 {
		if removeCgroups(cgroup) == nil {
			break
		}
		time.Sleep(50 * time.Millisecond) // until all processes in them are gone
	}
	os.Exit(0)
}

// private are directories of a node that hide the machine's content. Their
// parents are private, too, but begin with the machine's content.
var private = []string{
	"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/lib/rail-cni", "/var/log",
	"/etc/cni", "/etc/rail-cni", "/etc/kubernetes", "/opt/cni",
}

// readyMark exists once the node's files are complete.
const readyMark = "/run/node-is-ready-for-its-daemons"

// nodeInit is the first process of a node: it makes the node's files, and then
// reaps orphaned processes.
func nodeInit(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	if err := nodeFiles(name); err != nil {
		return err
	}
	for setting, value := range map[string]string{
		"net/ipv4/ip_forward":                "1",
		"net/ipv6/conf/default/accept_dad":   "0", // addresses are settled at once
		"net/ipv6/conf/default/accept_ra":    "0",
		"net/ipv4/conf/default/arp_announce": "2", // NICs of one machine must not answer ARP for each other
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys", setting), []byte(value), 0); err != nil {
			return err
		}
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	if err := os.WriteFile(readyMark, nil, 0o600); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(-1, &status, 0, nil); err != nil { // there is none
			<-children
		}
	}
}

// nodeFiles makes the node's view of the file system, in its mount namespace.
func nodeFiles(name string) error {
	m := &mounter{}
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	m.detachNamespaces()
	m.mount("proc", "/proc", "proc", 0, "")

	// The work directory is in /run, which is mounted over later.
	m.mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
	const work = "/run/.node"
	m.mkdir(work)
	m.mount("tmpfs", work, "tmpfs", 0, "mode=700")
	m.mkdir(work + "/cgroup")
	m.mount("/sys/fs/cgroup", work+"/cgroup", "", unix.MS_BIND|unix.MS_REC, "")
	m.mount("sysfs", "/sys", "sysfs", 0, "")
	m.mount(work+"/cgroup", "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, "")
	m.do("umount", work+"/cgroup", func() error { return unix.Unmount(work+"/cgroup", unix.MNT_DETACH) })
	for _, dir := range []string{"etc", "opt", "var"} {
		upper, workdir := filepath.Join(work, dir), filepath.Join(work, dir+".work")
		m.mkdir(upper)
		m.mkdir(workdir)
		m.mount("overlay", "/"+dir, "overlay", 0, fmt.Sprintf("lowerdir=/%s,upperdir=%s,workdir=%s", dir, upper, workdir))
	}
	for _, dir := range private {
		m.mkdir(dir)
		m.mount("tmpfs", dir, "tmpfs", 0, "mode=755")
	}
	m.do("write", "/etc/hostname", func() error { return os.WriteFile("/etc/hostname", []byte(name+"\n"), 0o644) })
	// Containers see later mounts if their manifests ask for it.
	m.mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	return m.err
}

// mounter makes mounts one after another, until one fails.
type mounter struct{ err error }

func (m *mounter) do(verb, object string, f func() error) {
	if m.err == nil {
		if err := f(); err != nil {
			m.err = fmt.Errorf("%s %s: %w", verb, object, err)
		}
	}
}

func (m *mounter) mount(source, target, kind string, flags uintptr, data string) {
	m.do("mount "+kind, target, func() error { return unix.Mount(source, target, kind, flags, data) })
}

func (m *mounter) mkdir(dir string) {
	m.do("mkdir", dir, func() error { return os.MkdirAll(dir, 0o755) })
}

// detachNamespaces unmounts the network namespaces: a copy of such a mount
// would keep its namespace alive.
func (m *mounter) detachNamespaces() {
	m.do("detach namespaces", "below /", func() error {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(mounts)) {
			// proc_pid_mountinfo(5): the mount point is the fifth field; the type
			// is the first behind the separator.
			before, after, _ := strings.Cut(line, " - ")
			if fields := strings.Fields(before); len(fields) > 4 && strings.HasPrefix(after, "nsfs ") {
				_ = unix.Unmount(fields[4], unix.MNT_DETACH) // it may be below one that is already detached
			}
		}
		return nil
	})
}
