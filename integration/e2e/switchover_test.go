package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/deployments/crds"
	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// theirObjects are the account of whereabouts, and objects in the place of its reconciler and
// of k8s-rdma-shared-dev-plugin.
const theirObjects = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: whereabouts-cni}
rules:
- {apiGroups: [whereabouts.cni.cncf.io], resources: ["*"], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: ["*"]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: whereabouts-cni}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: whereabouts-cni}
subjects: [{kind: ServiceAccount, name: whereabouts, namespace: kube-system}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: whereabouts-reconciler, namespace: kube-system}
spec:
  selector: {matchLabels: {name: whereabouts-reconciler}}
  template:
    metadata: {labels: {name: whereabouts-reconciler}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: ` + cluster.ToolsImage + `}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: rdma-shared-dp-ds, namespace: kube-system}
spec:
  selector: {matchLabels: {name: rdma-shared-dp-ds}}
  template:
    metadata: {labels: {name: rdma-shared-dp-ds}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: ` + cluster.ToolsImage + `}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: rdma-devices, namespace: kube-system}
data:
  config.json: |
    {"configList": [{"resourceName": "hca_gpu", "resourcePrefix": "rdma", "rdmaHcaMax": 500,
      "selectors": {"ifNames": ["ens12np0", "ens13np0"]}}]}
`

// theirs installs the reference plugin host-device and whereabouts on each node.
func (l *installing) theirs(t *testing.T) {
	t.Helper()
	for _, name := range []string{"ippools.yaml", "overlappingrangeipreservations.yaml"} {
		text, err := crds.Files.ReadFile(name)
		need.NoError(t, err)
		l.apply(t, text)
	}
	l.apply(t, []byte(theirObjects))
	account, err := l.ServiceAccount(t.Context(), "kube-system", "whereabouts")
	need.NoError(t, err)
	for _, n := range l.Nodes() {
		for name, from := range map[string]string{"host-device": "host-device", "whereabouts": "kubernetes/whereabouts"} {
			text, err := os.ReadFile(filepath.Join(testnet.Peers(t), from))
			need.NoError(t, err)
			path := filepath.Join(n.CNIBin(), name)
			need.NoError(t, errors.Join(os.WriteFile(path, text, 0o700), os.Chmod(path, 0o755)))
		}
		const dir = "/etc/cni/net.d/whereabouts.d"
		flat := `{"datastore": "kubernetes", "kubernetes": {"kubeconfig": "` + dir + `/whereabouts.kubeconfig"}}`
		conf := filepath.Join(n.CNIConf(), "whereabouts.d")
		need.NoError(t, errors.Join(os.Mkdir(conf, 0o755), os.WriteFile(filepath.Join(conf, "whereabouts.conf"), []byte(flat), 0o600)))
		form := controlplane.Form{Path: filepath.Join(conf, "whereabouts.kubeconfig"), Server: "https://" + controlplane.ServiceAddress}
		_, err := l.Plane.Kubeconfig(account, form)
		need.NoError(t, err)
		l.was = append(l.was, l.files(t, n))
	}
}

// guided runs the commands of guides in a cluster.
type guided struct {
	*installing
	bin    string // directory with kubectl, helm and railctl
	here   *strings.Replacer
	blocks []string // that were not run yet
}

// guides are the pages in the order in which their commands are run.
var guides = []string{
	"docs/guide/requirements.md", "docs/guide/switch-over.md", "docs/guide/install.md", "docs/guide/switch-device-plugin.md",
}

func beginGuided(t *testing.T) *guided {
	t.Helper()
	need.Cluster(t)
	l := &installing{v1: build(t, "switched")}
	l.lab = &lab{Cluster: cluster.Start(t, cluster.Options{Nodes: 3, Multus: cluster.Thin, Hardware: true})}
	need.NoError(t, l.LoadImage(t.Context(), l.v1.archive))
	text, err := examples.Files.ReadFile("roce-nads.yaml")
	need.NoError(t, err)
	l.apply(t, text)
	l.theirs(t)
	g := &guided{installing: l, bin: t.TempDir()}
	helm := testnet.Tool(t, "helm", "tools")
	for name, path := range map[string]string{"kubectl": l.KubectlPath(), "helm": helm, "railctl": filepath.Join(l.v1.bin, "railctl")} {
		path, err := filepath.Abs(path)
		need.NoError(t, errors.Join(err, os.Symlink(path, filepath.Join(g.bin, name))))
	}
	// The chart of the checkout in place of a published one, with the image of this test.
	g.here = strings.NewReplacer("gpu-1 gpu-2", l.Node(0).Name+" "+l.Node(1).Name,
		"oci://registry.example/rail-cni/charts/rail-cni --version 0.1.0", "deployments/helm/rail-cni --set image.tag="+l.v1.tag,
		"NAMESPACE", "default", "ghcr.io/spidernet-io/rdma-tools:v12.5.7", cluster.ToolsImage)
	for _, page := range guides {
		g.blocks = append(g.blocks, docs.Scripts(t, page)...)
	}
	return g
}

const doctor = "railctl doctor cluster"

// next runs the next block of the guides, which is to have a command, and fails the test unless
// its output has a text.
func (g *guided) next(t *testing.T, command, want string) {
	t.Helper()
	if len(g.blocks) == 0 || !strings.Contains(g.blocks[0], command) {
		t.Fatalf("%q is not next in the guides: %q", command, g.blocks)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-exc", g.here.Replace(g.blocks[0]))
	g.blocks = g.blocks[1:]
	cmd.Dir = top
	cmd.Env = []string{"PATH=" + g.bin + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KUBECONFIG=" + g.Kubeconfig()}
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("after %v: %v\n%s", time.Since(began).Round(100*time.Millisecond), err, out)
	if err != nil && command != doctor { // which finds that the nodes have no RDMA
		t.FailNow()
	}
	if !strings.Contains(string(out), want) {
		t.Errorf("the output lacks %q", want)
	}
}

// wantOurs fails the test unless rail-agent has installed the plugins on these nodes only.
func (g *guided) wantOurs(t *testing.T, want ...bool) {
	t.Helper()
	for i, n := range g.Nodes() {
		_, err := os.Stat(n.Path("/var/lib/rail-cni/install/record.json"))
		if (err == nil) != want[i] {
			t.Errorf("%s has the plugins of rail-cni: %v", n.Name, err)
		}
	}
}

// TestClusterIsSwitchedOverByThePage runs the commands of the guides on three nodes, of which the
// first two are switched first: before the installation, the switch and back, and the first pod.
func TestClusterIsSwitchedOverByThePage(t *testing.T) {
	g := beginGuided(t)
	g.next(t, "kubectl get nodes", g.Node(2).Name)
	g.next(t, "/sys/fs/cgroup", "fs\n")
	a, b := g.pair(t, "before", 1) // by the reference plugin and whereabouts
	g.next(t, "railctl check", " ok")
	g.next(t, "scale deployment", "scaled")
	g.delete(t, a, b) // a NIC of the host that the reference plugin lent returns later too, but these are virtual links
	g.next(t, "helm install", "successfully rolled out")
	g.wantOurs(t, true, true, false)
	a, b = g.pair(t, "after", 2)
	g.delete(t, a, b)
	for _, n := range g.Nodes() {
		for _, r := range g.records(t, n) {
			t.Errorf("%s has a record of %s", n.Name, r.Holder())
		}
	}
	for _, left := range g.held(t) {
		t.Errorf("an address is left: %s", left)
	}
	g.next(t, doctor, " rules on 2 nodes: ")
	g.next(t, "railctl verify", "2 nodes × 8 rails")
	g.run(t, pod{name: "third", node: 2, networks: "roce-net-3"})
	g.next(t, "helm upgrade", "successfully rolled out")
	g.wantOurs(t, true, true, true)
	g.run(t, pod{name: "fourth", node: 2, networks: "roce-net-4"})
	g.delete(t, "third", "fourth")
	for _, n := range g.Nodes() { // the page has the command among its words, with one name
		g.kubectl(t, "cordon", n.Name)
	}
	g.next(t, "helm uninstall", "uninstalled")
	for _, n := range g.Nodes() {
		g.kubectl(t, "uncordon", n.Name)
	}
	g.wantAsBefore(t)
	a, b = g.pair(t, "back", 1)
	g.delete(t, a, b)

	g.helm(t, "install", "rail-cni", top+"/deployments/helm/rail-cni", "--set", "image.tag="+g.v1.tag)
	g.next(t, "rollout status", "successfully rolled out")
	g.next(t, "railctl check", " ok")
	g.next(t, "kubectl wait pod/first", "172.31.1.2/24")
	g.next(t, "/railctl show", "default/first")
	g.next(t, "railctl migrate devices", "name: rdma/hca_gpu")
	g.next(t, "patch daemonset", "patched")
	g.kubectl(t, "--namespace", "kube-system", "wait", "--for=delete", patience, "pod", "--selector=name=rdma-shared-dp-ds")
	if len(g.blocks) > 0 {
		t.Errorf("not run: %q", g.blocks)
	}
}
