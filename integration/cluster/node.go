package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/process"
)

// Node is a machine of the cluster.
type Node struct {
	Name    string
	Address string // IPv4
	cluster *Cluster
	index   int    // from 1
	dir     string // of its logs, on the machine
	init    *process.Process

	stop func() // ends this process' work for the node; nil = nothing

	mu      sync.Mutex
	daemons map[string]*process.Process // those that run, by name
}

// boot starts a node up to containerd. The caller must end the node also after
// an error, unless it is nil.
func (c *Cluster) boot(ctx context.Context, i int) (*Node, error) {
	n := &Node{
		Name: fmt.Sprintf("node-%d", i), Address: nodeAddress(i), cluster: c, index: i,
		dir: filepath.Join(c.dir, fmt.Sprintf("node-%d", i)), daemons: map[string]*process.Process{},
	}
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return nil, err
	}
	if err := makeCgroup(c.cgroup, n.Name); err != nil {
		return nil, err
	}
	var err error
	n.init, err = process.Start(process.Spec{
		Name: n.Name, Log: filepath.Join(n.dir, "init.log"), Args: []string{"/proc/self/exe"},
		Env:        []string{roleEnv + "=" + nodeRole, nameEnv + "=" + n.Name, "TMPDIR=" + os.TempDir()},
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS,
	})
	if err != nil {
		return nil, err
	}
	err = n.init.Poll(ctx, patience, func(context.Context) error {
		_, err := os.Stat(n.Path(readyMark))
		return err
	})
	if err != nil {
		return n, err
	}
	if err := n.wire(ctx); err != nil {
		return n, err
	}
	if c.options.Hardware {
		if err := n.startFallingHome(); err != nil {
			return n, err
		}
	}
	if err := n.furnish(ctx); err != nil {
		return n, err
	}
	if c.options.ReadOnly {
		if _, err := n.Exec(ctx, "sh", "-ec", readOnly); err != nil {
			return n, err
		}
	}
	return n, n.StartContainerd(ctx)
}

// readOnly is for [Options].ReadOnly.
const readOnly = `umount /etc/rail-cni
rmdir /etc/rail-cni
mount --bind /usr /usr
for dir in /etc /usr; do mount -o remount,bind,ro $dir; done`

// Path returns the path by which this process reaches a file of the node.
func (n *Node) Path(path string) string {
	if strings.HasPrefix(path, "/var/run/") {
		path = strings.TrimPrefix(path, "/var") // an absolute link would lead out of the node
	}
	return fmt.Sprintf("/proc/%d/root%s", n.init.Pid(), path)
}

// CNIBin returns the node's directory of plugins, as [Node.Path] does.
func (n *Node) CNIBin() string { return n.Path(pluginDir) }

// CNIConf returns the directory of the runtime's network configuration, as
// [Node.Path] does.
func (n *Node) CNIConf() string { return n.Path(runtimeConf) }

// Pid returns the process ID of the node's first process.
func (n *Node) Pid() int { return n.init.Pid() }

// Netns returns the path of the node's network namespace.
func (n *Node) Netns() string { return namespace(n.init.Pid(), "net") }

// Command returns a command that runs in all of the node's namespaces.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter",
		append([]string{"--target", strconv.Itoa(n.init.Pid()), "--net", "--mount", "--pid", "--uts", "--"}, args...)...)
}

// Exec runs a command on the node, and returns its stdout; an error contains
// its stderr.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	return output(n.Command(ctx, args...))
}

// enter calls start on a thread that it moves into the node's namespaces. The
// thread cannot return, so it ends.
func (n *Node) enter(start func() error) error {
	kinds := []struct {
		name string
		flag int
	}{{"pid", unix.CLONE_NEWPID}, {"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"mnt", unix.CLONE_NEWNS}}
	fds := make([]int, len(kinds))
	for i, kind := range kinds {
		path := namespace(n.init.Pid(), kind.name)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	// A thread that shares its working directory with others cannot enter a
	// mount namespace (setns(2)).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	for i, kind := range kinds {
		if err := unix.Setns(fds[i], kind.flag); err != nil {
			return fmt.Errorf("enter the %s namespace of %s: %w", kind.name, n.Name, err)
		}
	}
	return start()
}

// temporary is a node's directory for temporary files, which ends with the node: /tmp is the
// machine's, and a killed runc leaves files.
const temporary = "/var/tmp"

// StartDaemon starts a program of the machine as a daemon of the node, in all
// of its namespaces, with its log in [Cluster.Report], and waits until ready
// returns nil. env is added to PATH and HOME. It does nothing if the daemon of
// this name runs already.
func (n *Node) StartDaemon(ctx context.Context, name string, env, args []string, ready func(context.Context) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.daemons[name]; d != nil && d.Ended() == nil {
		return nil
	}
	d, err := process.Start(process.Spec{
		Name: name + " of " + n.Name, Log: filepath.Join(n.dir, name+".log"), Args: args,
		Env: append([]string{"TMPDIR=" + temporary, "GOGC=400"}, env...), Enter: n.enter, Outlives: true, // it ends with the node's first process
	})
	if err != nil {
		return err
	}
	n.daemons[name] = d
	return d.Poll(ctx, patience, ready)
}

// KillDaemon kills a daemon (SIGKILL), if it runs.
func (n *Node) KillDaemon(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.daemons[name]; d != nil {
		d.Kill()
		delete(n.daemons, name)
	}
}

// StartContainerd starts containerd and waits until it answers.
func (n *Node) StartContainerd(ctx context.Context) error {
	dir := n.cluster.files.runtime
	if n.cluster.options.NRI {
		dir = n.cluster.files.containerd2
	}
	env := []string{"PATH=" + dir + ":" + os.Getenv("PATH")} // for its shim
	args := []string{filepath.Join(dir, "containerd"), "--config", containerdConf}
	return n.StartDaemon(ctx, "containerd", env, args, func(ctx context.Context) error {
		_, err := n.Exec(ctx, n.runtime("ctr"), "version")
		return err
	})
}

// KillContainerd kills containerd. Containers go on.
func (n *Node) KillContainerd() { n.KillDaemon("containerd") }

// StartKubelet starts the kubelet and waits until it is healthy. The node's
// status in the API comes later.
func (n *Node) StartKubelet(ctx context.Context) error {
	args := []string{
		filepath.Join(n.cluster.files.kubernetes, "kubelet"), "--config=" + kubeletConf, "--kubeconfig=" + kubeletAccount,
		"--hostname-override=" + n.Name, "--node-ip=" + n.Address,
	}
	return n.StartDaemon(ctx, "kubelet", nil, args, func(ctx context.Context) error {
		_, err := n.Exec(ctx, n.runtime("busybox"), "wget", "-q", "-O", "-", "http://127.0.0.1:10248/healthz")
		return err
	})
}

// KillKubelet kills the kubelet. Pods go on.
func (n *Node) KillKubelet() { n.KillDaemon("kubelet") }

func (n *Node) runtime(binary string) string { return filepath.Join(n.cluster.files.runtime, binary) }

// awaitReady waits until the API reports that the node accepts pods.
func (n *Node) awaitReady(ctx context.Context) error {
	return n.daemons["kubelet"].Poll(ctx, patience, func(ctx context.Context) error {
		code, answer, err := n.cluster.Admin().Get(ctx, "/api/v1/nodes/"+n.Name)
		if err != nil {
			return err
		}
		var node struct {
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
		if err := json.Unmarshal(answer, &node); err != nil {
			return fmt.Errorf("%d: %w", code, err)
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" {
				return nil
			} else if condition.Type == "Ready" {
				return errors.New(condition.Message)
			}
		}
		return errors.New("it is not registered")
	})
}

func (n *Node) loadImage(ctx context.Context, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := n.Command(ctx, n.runtime("ctr"), "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = file
	_, err = output(cmd)
	return err
}

// write writes a file of the node, and its directory.
func (n *Node) write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(n.Path(path)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(n.Path(path), text, 0o600)
}

func (n *Node) writeJSON(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return n.write(path, text)
}

// kubeconfig writes a kubeconfig that works on the node.
func (n *Node) kubeconfig(path string, c controlplane.Credential) error {
	if err := n.write(path, nil); err != nil { // its directory
		return err
	}
	_, err := n.cluster.Plane.Kubeconfig(c, controlplane.Form{Path: n.Path(path), Server: "https://" + controlplane.ServiceAddress})
	return err
}
