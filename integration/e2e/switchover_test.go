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
  config.json: '{"configList": [{"resourceName": "hca_gpu", "resourcePrefix": "rdma", "rdmaHcaMax": 500, "selectors": {"ifNames": ["ens12np0", "ens13np0"]}}]}'
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
		_, err := l.Plane.Kubeconfig(account, controlplane.Form{Path: filepath.Join(conf, "whereabouts.kubeconfig"), Server: "https://" + controlplane.ServiceAddress})
		need.NoError(t, err)
		l.was = append(l.was, l.files(t, n))
	}
}

// TestClusterIsSwitchedOverByThePage runs the commands of the guides on three nodes, of which the
// first two are switched first: before the installation, the switch and back, and the first pod.
func TestClusterIsSwitchedOverByThePage(t *testing.T) {
	need.Cluster(t)
	l := &installing{v1: build(t, "switched")}
	l.lab = &lab{Cluster: cluster.Start(t, cluster.Options{Nodes: 3, Multus: cluster.Thin, Hardware: true})}
	need.NoError(t, l.LoadImage(t.Context(), l.v1.archive))
	text, err := examples.Files.ReadFile("roce-nads.yaml")
	need.NoError(t, err)
	l.apply(t, text)
	l.theirs(t)

	bin := t.TempDir()
	for name, path := range map[string]string{"kubectl": l.KubectlPath(), "helm": testnet.Tool(t, "helm", "tools"), "railctl": filepath.Join(l.v1.bin, "railctl")} {
		path, err := filepath.Abs(path)
		need.NoError(t, errors.Join(err, os.Symlink(path, filepath.Join(bin, name))))
	}
	here := strings.NewReplacer("gpu-1 gpu-2", l.Node(0).Name+" "+l.Node(1).Name, "registry.example/rail-cni", "localhost/rail-cni",
		"image.tag=v1", "image.tag="+l.v1.tag, "NAMESPACE", "default", "ghcr.io/spidernet-io/rdma-tools:v12.5.7", cluster.ToolsImage)
	var page []string
	for _, name := range []string{"docs/guide/requirements.md", "docs/guide/switch-over.md", "docs/guide/install.md", "docs/guide/switch-device-plugin.md"} {
		page = append(page, docs.Scripts(t, name)...)
	}
	const doctor = "railctl doctor cluster"
	// next runs the page's next commands, which are to contain some, and returns what they say.
	next := func(contain string) string {
		t.Helper()
		if len(page) == 0 || !strings.Contains(page[0], contain) {
			t.Fatalf("the page has not %q next: %q", contain, page)
		}
		script := here.Replace(page[0])
		page = page[1:]
		cmd := exec.CommandContext(t.Context(), "sh", "-exc", script)
		cmd.Dir = top
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KUBECONFIG=" + l.Kubeconfig()}
		began := time.Now()
		out, err := cmd.CombinedOutput()
		t.Logf("after %v: %v\n%s", time.Since(began).Round(100*time.Millisecond), err, out)
		if err != nil && contain != doctor { // which finds that the nodes have no RDMA
			t.FailNow()
		}
		return string(out)
	}
	ours := func(node int) bool {
		_, err := os.Stat(l.Node(node).Path("/var/lib/rail-cni/install/record.json"))
		return err == nil
	}

	next("kubectl get nodes")
	next("/sys/fs/cgroup")
	a, b := l.pair(t, "before", 1) // by the reference plugin and whereabouts
	if said := next("railctl check"); !strings.Contains(said, " ok") {
		t.Errorf("the check said %s", said)
	}
	next("scale deployment")
	next("helm install")
	if !ours(0) || !ours(1) || ours(2) {
		t.Errorf("the nodes have ours: %v, %v, %v", ours(0), ours(1), ours(2))
	}
	l.wantNICs(t, a, b) // they keep theirs
	c, d := l.pair(t, "after", 2)
	l.delete(t, a, b, c, d)
	for i := range 2 {
		for _, r := range l.records(t, l.Node(i)) {
			t.Errorf("%s has a record of %s", l.Node(i).Name, r.Holder())
		}
	}
	for _, left := range l.held(t) {
		t.Errorf("an address is left: %s", left)
	}
	if said := next(doctor); !strings.Contains(said, " rules on ") {
		t.Errorf("the doctor said %s", said)
	}
	if said := next("railctl verify"); !strings.Contains(said, l.Node(1).Name) || strings.Contains(said, l.Node(2).Name) {
		t.Errorf("the verification said %s", said)
	}
	l.run(t, pod{name: "third", node: 2, networks: "roce-net-3"})
	next("helm upgrade")
	if !ours(2) {
		t.Error("the third node does not have ours")
	}
	l.run(t, pod{name: "fourth", node: 2, networks: "roce-net-4"})
	l.delete(t, "third", "fourth")
	next("helm uninstall")
	l.wantAsBefore(t)
	l.helm(t, "install", "rail-cni", top+"/deployments/helm/rail-cni", "--set", "image.tag="+l.v1.tag)
	next("rollout status")
	next("railctl check")
	if said := next("kubectl wait pod/first"); !strings.Contains(said, "172.31.1.2/24") {
		t.Errorf("the first pod has %s", said)
	}
	if said := next("/railctl show"); !strings.Contains(said, "default/first") {
		t.Errorf("railctl show said %s", said)
	}
	if said := next("railctl migrate devices"); !strings.Contains(said, "name: rdma/hca_gpu") {
		t.Errorf("the migration said %s", said)
	}
	next("patch daemonset")
	await := []string{"--namespace", "kube-system", "wait", "--for=delete", patience, "pod", "--selector=name=rdma-shared-dp-ds"}
	l.kubectl(t, await...)
	if len(page) > 0 {
		t.Errorf("not run: %q", page)
	}
	e, f := l.pair(t, "back", 1)
	l.delete(t, e, f)
}
