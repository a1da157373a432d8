package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/process"
)

// The ways to install Multus: not at all; thin, a plugin that calls others;
// thick, a daemon that a small plugin asks.
const (
	None  = "none"
	Thin  = "thin"
	Thick = "thick"
)

// Options describes a cluster.
type Options struct {
	Nodes int // 0 = 2; at most 100
	// Rails are the names of each node's NICs. nil = those of the NADs in
	// examples/, eight to lend and, last, one to share.
	Rails []string
	// Hardware makes the rails return to the host when a pod's network
	// namespace ends, as NICs of hardware do; a veth is deleted.
	Hardware bool
	// ReadOnly makes the nodes' /etc and /usr read-only, as those of Talos are;
	// /etc/cni and /etc/kubernetes stay writable, and nothing makes /etc/rail-cni.
	ReadOnly bool
	// Multus is [None] (when ""), [Thin] or [Thick].
	Multus string
	// NRI: the nodes run containerd 2, which speaks NRI, instead of Debian's 1.6. Its
	// default validator is on. The socket is at [NRISocket].
	NRI bool
	// Plugins are binaries that are copied into each node's CNI directory,
	// beside those of the default network: see [OurPlugins]. If one is named
	// "whereabouts" the nodes also have its flat file and a kubeconfig of a
	// service account with the roles in deployments/kustomize/base. nil if the
	// plugins are installed by other means.
	Plugins []string
	// KubeletConfig is YAML that is added to each kubelet's configuration
	// (KubeletConfiguration, kubelet.config.k8s.io/v1beta1).
	KubeletConfig string
	// ControlPlane are the options of the control plane. Its Cluster is
	// ignored.
	ControlPlane controlplane.Options
}

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	*controlplane.Plane
	dir     string
	options Options
	files   binaries
	holder  *process.Process // of the control plane's network namespace
	alive   *os.File         // closed when the holder is to clean up and end
	cgroup  string           // below each hierarchy's mount point
	nodes   []*Node
	stop    func() // ends the DNS; nil = there is none
}

// binaries are the directories of the binaries that a cluster needs. containerd 2 has its
// own, the other programs of a runtime are in the one beside it.
type binaries struct{ kubernetes, runtime, containerd2, peers string }

const (
	address = "10.77.0.1" // of the control plane, for the nodes

	// NodeLabel is on each node, as Node Feature Discovery sets it for a
	// Mellanox NIC.
	NodeLabel = "feature.node.kubernetes.io/pci-15b3.present"

	// patience bounds each wait. All of them together take 10 s on an idle
	// machine with two cores.
	patience = 2 * time.Minute
)

var serial atomic.Int64

// Start starts a cluster that ends with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	need.Cluster(t)
	c, err := New(t.Context(), t.TempDir(), o)
	need.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Report())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// OurPlugins returns the paths of the project's plugins in a directory such as
// bin/, for [Options].Plugins.
func OurPlugins(dir string) (paths []string) {
	for _, name := range []string{"host-device", "macvlan", "rdma", "whereabouts", "ipoib", "sriov", "ib-sriov"} {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// New starts a cluster, with all its files in the empty directory dir, and
// waits until all nodes are ready and pods may be made. The caller must close
// it. After an error nothing is left running.
func New(ctx context.Context, dir string, o Options) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, options: o}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cluster: %w", err), c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	o := &c.options
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	if o.Nodes > 100 {
		return fmt.Errorf("%d nodes are more than the 100 that have addresses", o.Nodes)
	}
	if os.Geteuid() != 0 {
		return errors.New("it makes namespaces and runs containers: run it as root")
	}
	if o.Rails == nil {
		rails, err := exampleRails()
		if err != nil {
			return err
		}
		o.Rails = rails
	}
	if err := c.find(); err != nil {
		return err
	}
	images, err := c.baseImages()
	if err != nil {
		return err
	}
	c.cgroup = fmt.Sprintf("rail-cluster-%d-%d", os.Getpid(), serial.Add(1))
	if err := c.hold(ctx); err != nil {
		return err
	}
	if err := c.wire(ctx); err != nil {
		return err
	}
	plane := o.ControlPlane
	plane.Binaries = c.files.kubernetes
	plane.Cluster = &controlplane.ClusterOptions{Netns: namespace(c.holder.Pid(), "net"), Address: address}
	planeDir := filepath.Join(c.dir, "control-plane")
	if err := os.Mkdir(planeDir, 0o700); err != nil {
		return err
	}
	if c.Plane, err = controlplane.New(ctx, planeDir, plane); err != nil {
		return err
	}
	if err := c.accounts(ctx); err != nil {
		return err
	}
	if c.stop, err = c.serveDNS(); err != nil {
		return err
	}
	return c.startNodes(ctx, images)
}

// startNodes boots the nodes, loads the images on them, and waits until they are ready.
func (c *Cluster) startNodes(ctx context.Context, images []string) error {
	for i := range c.options.Nodes {
		n, err := c.boot(ctx, i+1)
		if n != nil {
			c.nodes = append(c.nodes, n) // also an incomplete one, so that Close ends it
		}
		if err != nil {
			return fmt.Errorf("node %d: %w", i+1, err)
		}
	}
	if err := c.LoadImage(ctx, images...); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := n.StartKubelet(ctx); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := n.awaitReady(ctx); err != nil {
			return err
		}
		patch := map[string]any{
			"metadata": map[string]any{"labels": map[string]any{NodeLabel: "true"}},
			"spec":     map[string]any{"podCIDR": n.podNetwork(), "podCIDRs": []string{n.podNetwork()}},
		}
		if code, answer, err := c.Admin().Patch(ctx, "/api/v1/nodes/"+n.Name, controlplane.MergePatch, patch); err != nil || code != 200 {
			return fmt.Errorf("patching %s: %d, %w: %s", n.Name, code, err, answer)
		}
	}
	return nil
}

// exampleRails returns the NICs that the NADs in examples/ name, in their
// order.
func exampleRails() ([]string, error) {
	var rails []string
	for _, file := range []string{"roce-nads.yaml", "macvlan-nad.yaml"} {
		networks, err := examples.Networks(file)
		if err != nil {
			return nil, err
		}
		for _, n := range networks {
			var conf struct{ Device, Master string }
			if err := json.Unmarshal(n.Config, &conf); err != nil {
				return nil, err
			}
			rails = append(rails, conf.Device+conf.Master)
		}
	}
	return rails, nil
}

// find finds the binaries.
func (c *Cluster) find() error {
	for _, place := range []struct {
		dir      *string
		variable string
		path     []string
	}{
		{&c.files.kubernetes, "RAIL_CNI_CONTROLPLANE", []string{"tools", "controlplane"}},
		{&c.files.runtime, "RAIL_CNI_RUNTIME", []string{"tools", "runtime"}},
		{&c.files.containerd2, "RAIL_CNI_RUNTIME2", []string{"tools", "runtime2"}},
		{&c.files.peers, "RAIL_CNI_PEERS", []string{"peers"}},
	} {
		dir, err := controlplane.Built(place.variable, place.path...)
		if err != nil {
			return err
		}
		*place.dir = dir
	}
	files := []string{
		filepath.Join(c.files.runtime, "runc"), filepath.Join(c.files.kubernetes, "kubelet"), c.KubectlPath(),
		filepath.Join(c.files.peers, "loopback"),
	}
	if c.options.NRI {
		files = append(files, filepath.Join(c.files.containerd2, "containerd"))
	}
	for _, file := range files {
		if err := need.Built(file, "cluster-binaries peers"); err != nil {
			return err
		}
	}
	return nil
}

// Node returns a node; the first is 0.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// Nodes returns all nodes.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// Fabric returns a process in the network namespace that has the switches of the rails, the
// bridges rail<k>, and the other ends of the nodes' cables, n<i>-rail<k>; both begin with 1.
func (c *Cluster) Fabric() int { return c.holder.Pid() }

// Kubeconfig returns the path of a kubeconfig of a cluster administrator. It
// works on the machine: this process listens on its loopback for the cluster.
func (c *Cluster) Kubeconfig() string { return c.AdminKubeconfig() }

// KubectlPath returns the path of the kubectl of the cluster's version.
func (c *Cluster) KubectlPath() string { return filepath.Join(c.files.kubernetes, "kubectl") }

// Kubectl runs kubectl as a cluster administrator, and returns its stdout. An
// error contains its stderr.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, nil, args...)
}

func (c *Cluster) kubectl(ctx context.Context, stdin []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.KubectlPath(), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir} // where it caches
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	return output(cmd)
}

// Apply applies objects: YAML or JSON, as many as there are.
func (c *Cluster) Apply(ctx context.Context, objects []byte) error {
	_, err := c.kubectl(ctx, objects, "apply", "--filename=-")
	return err
}

// Exec runs a command in the first container of a pod of the namespace
// "default", and returns its stdout.
func (c *Cluster) Exec(ctx context.Context, pod string, args ...string) (string, error) {
	return c.Kubectl(ctx, append([]string{"exec", pod, "--"}, args...)...)
}

// LoadImage imports these archives into all nodes: those of `docker save`, or
// OCI layouts as tar files.
func (c *Cluster) LoadImage(ctx context.Context, archives ...string) error {
	for _, archive := range archives {
		for _, n := range c.nodes {
			if err := n.loadImage(ctx, archive); err != nil {
				return fmt.Errorf("loading %s on %s: %w", archive, n.Name, err)
			}
		}
	}
	return nil
}

// Report returns the cluster's state for the log of a failed test: pods,
// events, and the ends of the nodes' logs.
func (c *Cluster) Report() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var b strings.Builder
	for _, args := range [][]string{{"get", "pods", "-A", "-o", "wide"}, {"get", "events", "-A", "--sort-by=.lastTimestamp", "--field-selector=type!=Normal"}} {
		out, err := c.Kubectl(ctx, args...)
		fmt.Fprintf(&b, "# kubectl %s\n%s", strings.Join(args, " "), out)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	for _, n := range c.nodes {
		logs, _ := filepath.Glob(filepath.Join(n.dir, "*.log"))
		for _, log := range logs {
			fmt.Fprintf(&b, "# %s, %s\n%s\n", n.Name, filepath.Base(log), process.Tail(log, 15))
		}
	}
	return b.String()
}

// Close ends everything. Its error names what could not be removed. It may be
// called again.
func (c *Cluster) Close() error {
	if c.stop != nil {
		c.stop()
	}
	for _, n := range c.nodes {
		if n.stop != nil {
			n.stop()
		}
		n.init.Kill() // the kernel then kills all other processes of its PID namespace
	}
	if c.Plane != nil {
		c.Plane.Close()
	}
	if c.alive == nil {
		return nil
	}
	_ = c.alive.Close()
	c.alive = nil
	select {
	case <-c.holder.Gone():
	case <-time.After(patience):
		c.holder.Kill()
	}
	return cgroupsLeft(c.cgroup)
}

// output runs a command, and returns its stdout; an error contains its stderr.
func output(cmd *exec.Cmd) (string, error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), nil
}
