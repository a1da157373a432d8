//go:build machines

package pods

import (
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/integration/rig/kmod"
	"github.com/rail-cni/rail-cni/integration/rig/wire"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// node is the machine as a node of the cluster.
type node struct {
	t *testing.T
	*testnet.Netns
	api     *kube.Client
	agent   *process.Process
	daemons map[string]*process.Process
	pools   int // of addresses: one for each network that pods have used
}

// patience bounds each wait. The whole test takes a minute and a half on a
// quiet host. On a busy one Multus may give up several times before the API
// server answers within a quarter of a second; the kubelet calls it again.
const patience = 5 * time.Minute

// onTheNode makes the machine a node, and runs a pod in each mode, in "make test" in one.
func onTheNode(t *testing.T) {
	began := time.Now()
	n := &node{t: t, Netns: testnet.Here(t), daemons: map[string]*process.Process{}, pools: 8}
	n.rails()
	n.SetRDMAMode(t, rdma.Exclusive)
	n.reachTheServer()
	n.start()
	t.Logf("the node is ready after %v", time.Since(began).Round(time.Millisecond))
	n.topology()
	n.offerDevices()
	t.Logf("its devices are offered after %v", time.Since(began).Round(time.Millisecond))
	for _, m := range need.Sample(t, 1, []rdma.Mode{rdma.Exclusive, rdma.Shared}) {
		ok := t.Run(string(m), func(t *testing.T) {
			n.t = t
			n.SetRDMAMode(t, m)
			n.podWithItsRails()
		})
		if !ok {
			return // the pod may still exist
		}
	}
	if !need.Full() { // integration/devices has the same without NICs
		return
	}
	for _, part := range []struct {
		name string
		mode rdma.Mode
		run  func()
	}{
		{"devices", rdma.Exclusive, n.podOfTwoRails},
		{"many pods", rdma.Exclusive, n.manyPods},
		{"thick Multus", rdma.Exclusive, n.podBehindThickMultus},
		{"InfiniBand", rdma.Shared, n.podsOnOnePort},
		{"virtual functions", rdma.Shared, n.podsOfFunctions},
		{"virtual functions of InfiniBand", rdma.Exclusive, n.podsOfHCAFunctions},
	} {
		ok := t.Run(part.name, func(t *testing.T) {
			n.t = t
			n.SetRDMAMode(t, part.mode)
			part.run()
		})
		if !ok {
			return // pods may still exist
		}
	}
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// rails sets the NICs up as on the users' nodes: MTU 9000, and RDMA devices
// that are numbered in the order of the NADs.
func (n *node) rails() {
	n.t.Helper()
	n.must(os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
	n.must(kmod.ReloadNICs("slots=11,12,13,14,15,16,17,18"))
	networks, err := examples.Networks("roce-nads.yaml")
	n.must(err)
	core, err := rdma.Open(n.Netns.Netns)
	n.must(err)
	defer core.Close()
	devices := make([]rdma.Device, len(networks))
	for i, network := range networks {
		var conf struct{ Device string }
		n.must(json.Unmarshal(network.Config, &conf))
		n.IP("link", "set", conf.Device, "mtu", "9000", "up")
		l, err := link.ByName(n.Netns.Netns, conf.Device)
		n.must(err)
		device, _, err := core.ByNetdev(l.Index)
		n.must(err)
		devices[i] = device
	}
	for pass, name := range []string{"tmp_%d", "mlx5_%d"} {
		for i := range devices {
			d, err := core.ByIndex(devices[i].Index)
			if err == nil {
				err = core.Rename(d, fmt.Sprintf(name, i))
			}
			if err != nil {
				n.t.Fatalf("pass %d: %v", pass, err)
			}
		}
	}
}

// await waits until done returns nil.
func (n *node) await(what string, done func() error) {
	n.t.Helper()
	var err error
	if !testnet.Within(patience, func() bool { err = done(); return err == nil }) {
		n.t.Fatalf("%s: %v\n%s", what, err, n.logs())
	}
}

// reachTheServer connects the machine with the API server.
func (n *node) reachTheServer() {
	n.t.Helper()
	n.must(kmod.LoadAll(wire.Devices))
	n.Batch(nil, "link set eth0 up", "address add "+wire.Address+" dev eth0", "route add default via 10.0.2.2",
		"link add pods0 type dummy", "link set pods0 up")
	n.write(account, `{"apiVersion": "v1", "kind": "Config", "current-context": "rig",
		"contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig"}}],
		"clusters": [{"name": "rig", "cluster": {"server": "http://`+wire.Reached+`"}}], "users": [{"name": "rig", "user": {}}]}`)
	var err error
	n.api, err = kube.Open(kube.Config{Kubeconfig: account})
	n.must(err)
	n.await("the API server", func() error {
		_, err := n.api.Get(n.t.Context(), kube.Resource{Version: "v1", Plural: "namespaces"}, "default")
		return err
	})
}

// write writes a file and its directory.
func (n *node) write(path, text string) {
	n.t.Helper()
	n.must(os.MkdirAll(filepath.Dir(path), 0o755))
	n.must(os.WriteFile(path, []byte(text), 0o600))
}

const logDir = "/run/logs"

// start starts containerd and the kubelet, with Multus before the runtime's
// first network.
func (n *node) start() {
	n.t.Helper()
	for _, dir := range []string{"/var/lib/containerd", "/var/lib/kubelet", logDir} {
		n.must(os.MkdirAll(dir, 0o755))
		n.must(unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	}
	n.must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	n.must(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	n.write(clusterNets+"/10-cluster.conflist", `{"cniVersion": "1.0.0", "name": "cluster", "plugins": [{
		"type": "macvlan", "master": "pods0", "ipam": {"type": "host-local",
		"ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`)
	n.write(multusConf, `{"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus",
		"clusterNetwork": "cluster", "binDir": "`+plugins+`", "kubeconfig": "`+account+`"}`)
	n.write("/etc/cni/net.d/whereabouts.d/whereabouts.conf",
		`{"datastore": "kubernetes", "kubernetes": {"kubeconfig": "`+account+`"}}`)
	// Without pivot_root(2), which an initramfs does not allow.
	n.write("/etc/containerd/config.toml", fmt.Sprintf(`version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = %q
      NoPivotRoot = true
`, pauseImage, plugins, programs+"/runc"))
	// Nothing is evicted: there is little memory, and no disk to measure.
	n.write("/var/lib/kubelet/config.yaml", `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
resolvConf: ""
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
runtimeRequestTimeout: 10m
evictionHard: {memory.available: 50Mi}
`)
	n.containerd()
	archives, err := filepath.Glob(images + "/*")
	n.must(err)
	for _, archive := range archives {
		if out, err := exec.Command(programs+"/ctr", "--namespace", "k8s.io", "images", "import", archive).CombinedOutput(); err != nil {
			n.t.Fatalf("%v\n%s\n%s", err, out, n.logs())
		}
	}
	address, _, _ := strings.Cut(wire.Address, "/")
	n.daemon("kubelet", []string{
		"--config=/var/lib/kubelet/config.yaml", "--kubeconfig=" + account, "--hostname-override=" + nodeName, "--node-ip=" + address,
	}, func(ctx context.Context) error {
		text, err := n.api.Get(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, nodeName)
		if err == nil && !strings.Contains(strings.ReplaceAll(string(text), " ", ""), `"reason":"KubeletReady"`) {
			err = fmt.Errorf("not ready: %.2000s", text)
		}
		return err
	})
}

func (n *node) containerd() {
	n.t.Helper()
	n.daemon("containerd", []string{"--config", "/etc/containerd/config.toml"}, func(ctx context.Context) error {
		return exec.CommandContext(ctx, programs+"/ctr", "version").Run()
	})
}

// daemon starts a daemon with more variables in env, and waits until it is ready.
func (n *node) daemon(name string, args []string, ready func(context.Context) error, env ...string) {
	n.t.Helper()
	p, err := process.Start(process.Spec{
		Name: name, Log: filepath.Join(logDir, name+".log"), Args: append([]string{programs + "/" + name}, args...),
		Env: append(env, "PATH="+programs+":"+os.Getenv("PATH")),
	})
	n.must(err)
	n.daemons[name] = p
	n.t.Cleanup(p.Kill)
	n.must(p.Poll(n.t.Context(), patience, ready))
}

// logs returns the ends of the daemons' logs.
func (n *node) logs() string {
	var b strings.Builder
	files, _ := filepath.Glob(logDir + "/*.log")
	for _, f := range files {
		fmt.Fprintf(&b, "# %s\n%s\n", f, process.Tail(f, 40))
	}
	return b.String()
}

// podWithItsRails applies the examples as a user does, looks into the pod, and
// deletes it.
func (n *node) podWithItsRails() {
	n.t.Helper()
	before, devices := n.State(), n.devices()
	nads := kube.Resource{Group: "k8s.cni.cncf.io", Version: "v1", Plural: "network-attachment-definitions", Namespace: "default"}
	for _, nad := range n.objects("roce-nads.yaml") {
		if _, err := n.api.Create(n.t.Context(), nads, nad); err != nil && !kube.IsAlreadyExists(err) {
			n.t.Fatal(err)
		}
	}
	pod := n.objects("roce-pods.yaml")[0]
	name, container := n.run(pod)
	n.allocatable(map[string]string{shared: "8"}) // also while all are lent
	out, err := exec.Command(programs+"/ctr", "--namespace", "k8s.io", "tasks", "exec", "--exec-id", "look", container, "ibdev2netdev").CombinedOutput()
	var want bytes.Buffer
	for i := range 8 {
		fmt.Fprintf(&want, "mlx5_%d port 1 ==> net%d (Up)\n", i, i+1)
	}
	n.t.Logf("in the container, ibdev2netdev:\n%s", out)
	if err != nil || string(out) != want.String() {
		n.t.Errorf("ibdev2netdev: %v, want\n%s", err, want.Bytes())
	}
	n.delete(name)
	n.asBefore(before, devices)
}

// run makes a pod, and returns its name and the ID of its container when that is ready.
func (n *node) run(pod map[string]any) (name, container string) {
	n.t.Helper()
	name = here(pod)
	pods := kube.Resource{Version: "v1", Plural: "pods", Namespace: "default"}
	created := time.Now()
	_, err := n.api.Create(n.t.Context(), pods, pod)
	n.must(err)
	var status struct {
		Status struct {
			Phase             string
			ContainerStatuses []struct {
				ContainerID string
				Ready       bool
			}
		}
	}
	n.await("the pod", func() error {
		text, err := n.api.Get(n.t.Context(), pods, name)
		if err == nil {
			err = json.Unmarshal(text, &status)
		}
		if err == nil && status.Status.Phase == "Failed" {
			n.t.Fatalf("%s failed: %s\n%s", name, text, n.logs())
		}
		if err == nil && (status.Status.Phase != "Running" || len(status.Status.ContainerStatuses) != 1 || !status.Status.ContainerStatuses[0].Ready) {
			err = fmt.Errorf("not ready: %s", text)
		}
		return err
	})
	n.t.Logf("%s is ready after %v", name, time.Since(created).Round(time.Millisecond))
	return name, strings.TrimPrefix(status.Status.ContainerStatuses[0].ContainerID, "containerd://")
}

// delete deletes a pod, and waits for its end.
func (n *node) delete(name string) {
	n.t.Helper()
	pods := kube.Resource{Version: "v1", Plural: "pods", Namespace: "default"}
	deleted := time.Now()
	n.must(n.api.Delete(n.t.Context(), pods, name, kube.Preconditions{}))
	n.await("the pod's end", func() error {
		if _, err := n.api.Get(n.t.Context(), pods, name); !kube.IsNotFound(err) {
			return errors.Join(errors.New("it is still there"), err)
		}
		return nil
	})
	n.t.Logf("%s is gone after %v", name, time.Since(deleted).Round(time.Millisecond))
}

// objects reads the objects of an example.
func (n *node) objects(file string) []map[string]any {
	n.t.Helper()
	found, err := examples.Objects(file)
	n.must(err)
	return found
}

// here adapts the pod to this node: an image of the node, the devices that it asks for but
// not the memory and CPUs, which the machine has not, and no scheduler or account.
func here(pod map[string]any) (name string) {
	spec, _ := pod["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	for _, c := range containers {
		container, _ := c.(map[string]any)
		container["image"] = toolsImage
		delete(container, "command")
		resources, _ := container["resources"].(map[string]any)
		limits, _ := resources["limits"].(map[string]any)
		delete(limits, "memory")
		delete(limits, "cpu")
	}
	spec["nodeName"], spec["automountServiceAccountToken"], spec["terminationGracePeriodSeconds"] = nodeName, false, 5
	metadata, _ := pod["metadata"].(map[string]any)
	name, _ = metadata["name"].(string)
	return name
}

// devices returns the host's RDMA devices, with their uverbs numbers.
func (n *node) devices() []string {
	n.t.Helper()
	core, err := rdma.Open(n.Netns.Netns)
	n.must(err)
	defer core.Close()
	devices, err := core.Devices()
	n.must(err)
	var lines []string
	for _, d := range devices {
		uverbs, err := core.Uverbs(d)
		n.must(err)
		lines = append(lines, fmt.Sprint(d.Name, " ", d.NodeGUID, " ", d.ParentDev, " ", uverbs.Name))
	}
	slices.Sort(lines)
	return lines
}

// asBefore fails the test if anything is left of any pod: NICs, RDMA devices,
// records, addresses.
func (n *node) asBefore(before string, devices []string) {
	n.t.Helper()
	if d := n.Settled(before); d != "" {
		n.t.Errorf("the host is not as it was:\n%s", d)
	}
	if now := n.devices(); !slices.Equal(now, devices) {
		n.t.Errorf("RDMA devices:\n%v\nbefore:\n%v", now, devices)
	}
	l, err := ledger.Open("/run/rail-cni")
	n.must(err)
	defer l.Close()
	records, errs := l.List()
	n.must(errors.Join(errs...))
	for _, r := range records {
		n.t.Errorf("a record is left: %s, phase %s", r.Holder(), r.Phase)
	}
	pools := kube.Resource{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Plural: "ippools", Namespace: "kube-system"}
	count := 0
	_, err = n.api.List(n.t.Context(), pools, kube.ListOptions{}, func(item []byte) error {
		var pool struct {
			Spec struct {
				Range       string
				Allocations map[string]json.RawMessage
			}
		}
		count++
		if err := json.Unmarshal(item, &pool); err != nil {
			return err
		}
		if len(pool.Spec.Allocations) > 0 {
			n.t.Errorf("addresses of %s are held: %s", pool.Spec.Range, item)
		}
		return nil
	})
	n.must(err)
	if count != n.pools {
		n.t.Errorf("%d pools, want one for each of %d networks", count, n.pools)
	}
}
