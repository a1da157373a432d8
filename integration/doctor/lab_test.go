package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

const (
	top      = "../.."
	patience = 2 * time.Minute // bounds each wait
	agents   = "kube-system"
	tag      = "doctor" // of our image
)

// lab is a cluster of two nodes with rail-agent, and pods that hold NICs all the time.
type lab struct {
	*cluster.Cluster
	bin string // directory of our programs
}

var shared struct {
	sync.Once
	lab *lab
	dir string
	err error
}

// theLab returns the cluster, which the first test starts.
func theLab(t *testing.T) *lab {
	t.Helper()
	need.Cluster(t)
	bin, helm := testnet.Bin(t), testnet.Tool(t, "helm", "tools")
	shared.Do(func() {
		began := time.Now()
		if shared.dir, shared.err = scratch.MkdirTemp("doctor"); shared.err != nil {
			return
		}
		shared.lab, shared.err = newLab(t.Context(), shared.dir, bin, helm)
		t.Logf("the cluster is up after %v", time.Since(began).Round(time.Millisecond))
	})
	need.NoError(t, shared.err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(shared.lab.Report())
		}
	})
	return shared.lab
}

// endLab ends the cluster, if there is one.
func endLab() (err error) {
	if shared.lab != nil {
		err = shared.lab.Close()
	}
	return errors.Join(err, scratch.Remove(shared.dir))
}

// newLab starts a cluster in the directory, installs rail-agent, and makes the networks and
// the pods of a healthy cluster.
func newLab(ctx context.Context, dir, bin, helm string) (*lab, error) {
	c, err := cluster.New(context.WithoutCancel(ctx), dir, cluster.Options{
		Hardware: true, Multus: cluster.Thin, NRI: true, KubeletConfig: "nodeStatusUpdateFrequency: 1s\nregistryPullQPS: 0",
	})
	if err != nil {
		return nil, err
	}
	l := &lab{Cluster: c, bin: bin}
	for _, step := range []func() error{
		func() error { return l.furnish(ctx) },
		func() error { return l.install(ctx, dir, helm) },
		func() error { return l.networks(ctx) },
		func() error { return l.begin(ctx) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, errors.New(l.Report()), c.Close())
		}
	}
	return l, nil
}

// furnish makes the files of hardware on the nodes.
func (l *lab) furnish(ctx context.Context) error {
	for _, n := range l.Nodes() {
		if _, err := n.PCI(ctx); err != nil {
			return err
		}
	}
	return nil
}

// programs are those of the image.
var programs = []string{"rail-agent", "railctl", "host-device", "macvlan", "rdma", "whereabouts"}

// install installs rail-agent by the chart, and adds what this cluster needs: the files that
// stand for hardware, because a container's /sys is the kernel's, and short intervals.
func (l *lab) install(ctx context.Context, dir, helm string) error {
	from, archive := filepath.Join(dir, runtime.GOARCH), filepath.Join(dir, "image.tar")
	if err := os.Mkdir(from, 0o755); err != nil {
		return err
	}
	for _, name := range programs {
		if err := os.Symlink(filepath.Join(l.bin, name), filepath.Join(from, name)); err != nil {
			return err
		}
	}
	if err := command(ctx, top, "go", "run", "./scripts/image", "-tags", tag, "-out", archive, from); err != nil {
		return err
	}
	if err := l.LoadImage(ctx, archive); err != nil {
		return err
	}
	values := "image: {tag: " + tag + "}\ndevicePlugin: {enabled: true}\nnodeFile:\n  " + strings.ReplaceAll(railsOfNodes, "\n", "\n  ")
	file := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		return err
	}
	if err := command(ctx, top, helm, "install", "rail-cni", "deployments/helm/rail-cni", "--kubeconfig", l.Kubeconfig(), "--namespace", agents, "--values", file); err != nil {
		return err
	}
	if _, err := l.Kubectl(ctx, "-n", agents, "patch", "daemonset", "rail-agent", "--type=json", "--patch", agentPatch); err != nil {
		return err
	}
	for _, object := range []string{"daemonset/rail-agent", "deployment/rail-cni-reconciler"} {
		if _, err := l.Kubectl(ctx, "-n", agents, "rollout", "status", object, "--timeout", patience.String()); err != nil {
			return err
		}
	}
	return nil
}

// railsOfNodes are the rails in the node file of each node.
const railsOfNodes = `rails:
- {id: 0, pci: "0000:41:00.0"}
- {id: 1, pci: "0000:42:00.0"}
- {id: 2, pci: "0000:43:00.0"}
- {id: 3, pci: "0000:44:00.0"}
- {id: 4, pci: "0000:45:00.0"}
- {id: 5, pci: "0000:46:00.0"}
- {id: 6, pci: "0000:47:00.0"}
- {id: 7, pci: "0000:48:00.0"}
`

// agentPatch mounts the files of [cluster.Node.PCI].
const agentPatch = `[
{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--doctor-interval=2s"},
{"op": "add", "path": "/spec/template/spec/volumes/-", "value": {"name": "pci", "hostPath": {"path": "/run/pci"}}},
{"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value": {"name": "pci", "mountPath": "/run/pci"}},
{"op": "add", "path": "/spec/template/spec/volumes/-", "value": {"name": "pci-bus", "hostPath": {"path": "/run/pci/bus"}}},
{"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value": {"name": "pci-bus", "mountPath": "/sys/bus/pci/devices"}}
]`

func command(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// rails are those that pods have all the time. The NICs of the networks of examples/ are others.
const rails = 4

// networks makes the networks of examples/, and one for each rail.
func (l *lab) networks(ctx context.Context) error {
	for _, file := range []string{"roce-nads.yaml", "macvlan-nad.yaml"} {
		text, err := examples.Files.ReadFile(file)
		if err != nil {
			return err
		}
		if err := l.Apply(ctx, text); err != nil {
			return err
		}
	}
	for i := range rails {
		config := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "rail-%d", "type": "host-device", "rail": %d, "ipam": {"type": "whereabouts", "range": "10.60.%d.0/24"}}`, i, i, i)
		if err := l.applyNAD(ctx, fmt.Sprintf("rail-%d", i), config, ""); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) applyNAD(ctx context.Context, name, config, resource string) error {
	meta := map[string]any{"name": name, "namespace": "default"}
	if resource != "" {
		meta["annotations"] = map[string]any{"k8s.v1.cni.cncf.io/resourceName": resource}
	}
	object, err := json.Marshal(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": meta, "spec": map[string]any{"config": config},
	})
	if err != nil {
		return err
	}
	return l.Apply(ctx, object)
}

// The networks of the pods that run all the time: on each node train-N, which has the rails, and
// roce-N, which has NICs and a macvlan of the networks of examples/. The NIC of roce-net-8, and
// any number of macvlans, are for guests.
const (
	trainNetworks = "rail-0,rail-1,rail-2,rail-3"
	roceNetworks  = "roce-net-5,roce-net-6,roce-net-7,rdma-net-ipam"
	guestNetworks = "roce-net-8,rdma-net-ipam"
)

func (l *lab) begin(ctx context.Context) error {
	if err := l.kubeconfigs(); err != nil {
		return err
	}
	var all []pod
	for i := range l.Nodes() {
		all = append(all, pod{name: fmt.Sprintf("train-%d", i+1), node: i, networks: trainNetworks}, pod{name: fmt.Sprintf("roce-%d", i+1), node: i, networks: roceNetworks})
	}
	return l.run(ctx, all...)
}

// nodeAccount is the administrator's kubeconfig on each node.
const nodeAccount = "/run/admin.kubeconfig"

func (l *lab) kubeconfigs() error {
	account, err := l.CertificateFor("admin", "system:masters")
	if err != nil {
		return err
	}
	for _, n := range l.Nodes() {
		if _, err := l.Plane.Kubeconfig(account, controlplane.Form{Path: n.Path(nodeAccount), Server: "https://" + controlplane.ServiceAddress}); err != nil {
			return err
		}
	}
	return nil
}

// pod is a pod with one container that sleeps.
type pod struct {
	name     string
	node     int
	networks string
	env      map[string]string
	security map[string]any // of the container
}

func (p *pod) object(l *lab) map[string]any {
	container := map[string]any{"name": "c", "image": cluster.ToolsImage, "imagePullPolicy": "Never", "securityContext": p.security}
	var env []any
	for name, value := range p.env {
		env = append(env, map[string]any{"name": name, "value": value})
	}
	container["env"] = env
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": p.name, "namespace": "default", "annotations": map[string]any{nadv1.NetworkAttachmentAnnot: p.networks}},
		"spec": map[string]any{
			"nodeName": l.Node(p.node).Name, "containers": []any{container}, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
		},
	}
}

// run makes pods, and waits until they are ready.
func (l *lab) run(ctx context.Context, pods ...pod) error {
	var items []any
	args := []string{"wait", "--for=condition=Ready", "--timeout", patience.String(), "pod"}
	for i := range pods {
		items = append(items, pods[i].object(l))
		args = append(args, pods[i].name)
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return err
	}
	if err := l.Apply(ctx, text); err != nil {
		return err
	}
	_, err = l.Kubectl(ctx, args...)
	return err
}

// end deletes pods, and waits until they are gone.
func (l *lab) end(ctx context.Context, pods ...string) error {
	_, err := l.Kubectl(ctx, append([]string{"delete", "--ignore-not-found", "--wait", "--timeout", patience.String(), "pod"}, pods...)...)
	return err
}

// findings are what the doctor found, by the ID of the rule: "object: evidence".
type findings map[string][]string

func (f findings) String() string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(f)) {
		for _, text := range f[id] {
			fmt.Fprintf(&b, "%s %s\n", id, text)
		}
	}
	return b.String()
}

// judgeCluster returns the findings of "railctl doctor cluster", with the facts that are missing.
func (l *lab) judgeCluster(ctx context.Context) (findings, []string, error) {
	return judged(exec.CommandContext(ctx, filepath.Join(l.bin, "railctl"), "doctor", "cluster", "--kubeconfig", l.Kubeconfig(), "-o", "json"))
}

// judgeNode returns the findings of "railctl doctor" on a node, with the facts that are missing.
func (l *lab) judgeNode(ctx context.Context, node int) (findings, []string, error) {
	return judged(l.Node(node).Command(ctx, filepath.Join(l.bin, "railctl"), "doctor", "--kubeconfig", nodeAccount, "-o", "json"))
}

func judged(cmd *exec.Cmd) (findings, []string, error) {
	var stderr bytes.Buffer
	cmd.Env, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, &stderr
	out, runErr := cmd.Output() // the exit code is 1 if a rule fails
	var document struct{ Results []rule.Result }
	if err := json.Unmarshal(out, &document); err != nil || len(document.Results) == 0 {
		return nil, nil, fmt.Errorf("%w, %w: %s%s", runErr, err, out, stderr.Bytes())
	}
	found := findings{}
	var missing []string
	for i := range document.Results {
		r := &document.Results[i]
		for _, f := range r.Findings {
			found[r.ID] = append(found[r.ID], strings.TrimSpace(r.Node+" "+f.Object+": "+f.Evidence))
		}
		for _, m := range r.Missing {
			missing = append(missing, r.ID+" "+m)
		}
	}
	return found, missing, nil
}
