package base_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/deployments/kustomize/base"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

var update = flag.Bool("update", false, "write what the chart makes")

const chart = "../../helm/rail-cni"

// run runs a command, and fails the test with its output.
func run(t *testing.T, command string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(command, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(command), strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}

// ofARelease are the labels that only helm's objects have: who manages them, and of which version they
// are.
var ofARelease = regexp.MustCompile(`(?m)^ +(app\.kubernetes\.io/(version|managed-by)|helm\.sh/chart): .*\n`)

// command returns a command of helm.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), testnet.Tool(t, "helm", "tools"), args...)
}

// rendered returns the chart's output, by template, without what only helm needs: the labels of a release, its hooks and
// the rights of its test.
func rendered(t *testing.T, args ...string) map[string]string {
	t.Helper()
	out := run(t, testnet.Tool(t, "helm", "tools"), append([]string{
		"template", "rail-cni", chart, "--namespace", "kube-system", "--no-hooks", "--api-versions", "whereabouts.cni.cncf.io/v1alpha1/NodeSlicePool",
	}, args...)...)
	files := map[string]string{}
	out = ofARelease.ReplaceAll(out, nil)
	source := regexp.MustCompile(`^# Source: rail-cni/templates/(\S+)\n`)
	for part := range strings.SplitSeq(string(out), "---\n") {
		m := source.FindStringSubmatch(part)
		if m == nil || strings.HasPrefix(m[1], "tests/") { // the rights of "helm test"
			continue
		}
		if files[m[1]] != "" {
			files[m[1]] += "---\n"
		}
		files[m[1]] += strings.TrimPrefix(part, m[0])
	}
	return files
}

func TestHelmFindsNothingInTheChart(t *testing.T) {
	for _, values := range []string{
		"values.yaml", "values-openshift.yaml", "values-talos.yaml", "values-bottlerocket.yaml", "values-k3s.yaml", "values-microk8s.yaml",
	} {
		run(t, testnet.Tool(t, "helm", "tools"), "lint", "--strict", "--values", filepath.Join(chart, values), chart)
	}
}

func TestWhereEtcCannotBeWrittenNothingIsMadeThere(t *testing.T) {
	for values, netns := range map[string]string{"values-talos.yaml": "/var/run/netns", "values-bottlerocket.yaml": "/run/netns"} {
		text := rendered(t, "--values", filepath.Join(chart, values))["daemonset.yaml"]
		if strings.Contains(text, "/etc/rail-cni") || !strings.Contains(text, "path: /etc/cni/net.d,") || !strings.Contains(text, "path: "+netns+",") ||
			!strings.Contains(text, "path: "+filepath.Dir(netns)+"/k8s.cni.cncf.io,") || strings.Contains(text, "docker") {
			t.Errorf("%s: %s", values, text)
		}
	}
}

// The overlay is the base without the volume of /etc/rail-cni, as the chart
// makes it.
func TestKustomizeLeavesOutTheVolumeInEtc(t *testing.T) {
	kubectl := testnet.Tool(t, "controlplane/kubectl", "cluster-binaries")
	overlay := decoded(t, bytes.Split(run(t, kubectl, "kustomize", "../read-only-etc"), []byte("\n---\n")))
	var objects [][]byte
	for _, text := range rendered(t, "--set", "nodeFileDir=", "--set", "apiPriority.enabled=false") {
		objects = append(objects, bytes.Split([]byte(text), []byte("\n---\n"))...)
	}
	wantEqual(t, overlay, decoded(t, objects))
}

// The component makes of the base what the chart makes with the device plugin.
func TestKustomizeAddsTheDevicePlugin(t *testing.T) {
	kubectl := testnet.Tool(t, "controlplane/kubectl", "cluster-binaries")
	overlay := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(overlay, filepath.Dir(here)) // kustomize takes no absolute path
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ base, set string }{{"base", "nodeFileDir=/etc/rail-cni"}, {"read-only-etc", "nodeFileDir="}} {
		text := "resources: [" + filepath.Join(up, c.base) + "]\ncomponents: [" + filepath.Join(up, "device-plugin") + "]\n"
		if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		have := decoded(t, bytes.Split(run(t, kubectl, "kustomize", overlay), []byte("\n---\n")))
		var objects [][]byte
		for _, text := range rendered(t, "--set", c.set, "--set", "devicePlugin.enabled=true", "--set", "apiPriority.enabled=false") {
			objects = append(objects, bytes.Split([]byte(text), []byte("\n---\n"))...)
		}
		wantEqual(t, have, decoded(t, objects))
	}
}

// nodePools are values with two pools of nodes.
const nodePools = `devicePlugin: {enabled: true, sharedConfigMap: rdma-devices}
nodeSelector: {rdma: "yes"}
nodeFile: {allow: [], resources: {health: {down: 1s}}}
nodePools:
- name: h100
  nodeSelector: {gpu: h100}
  nodeFile: {rails: {auto: pciOrder}, resources: {pools: [{name: a.b/nic, mode: perRail, select: {rdma: true}}]}}
- name: "2"
  nodeSelector: {}
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: NotIn, values: [h100]}]}]}}}
`

// Each pool of nodes has a DaemonSet with its own node file, and all of them are
// uninstalled.
func TestNodePoolsAreDaemonSetsWithNodeFilesOfTheirOwn(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(nodePools), 0o600); err != nil {
		t.Fatal(err)
	}
	all := objects(t, values)
	if all["DaemonSet default/rail-agent"] != nil {
		t.Error("there is a DaemonSet for all nodes")
	}
	for name, want := range map[string]string{
		"h100": `{"rails":{"auto":"pciOrder"},"resources":{"pools":[{"mode":"perRail","name":"a.b/nic","select":{"rdma":true}}],"sharedConfigFile":"/rdma-devices/config.json"}}`,
		"2":    `{"allow":[],"resources":{"health":{"down":"1s"},"sharedConfigFile":"/rdma-devices/config.json"}}`,
	} {
		o := all["DaemonSet default/rail-agent-"+name]
		pod := field(o, "spec", "template", "spec")
		agents, _ := field(pod, "containers").([]any)
		if len(agents) != 1 {
			t.Fatalf("%s: %v", name, o)
		}
		if args := fmt.Sprint(field(agents[0], "args")); !strings.Contains(args, "--node-file="+want+" ") {
			t.Errorf("%s: no node file %s in %s", name, want, args)
		}
		if _, err := nodefile.Parse([]byte(want)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, labels := range []any{field(o, "spec", "selector", "matchLabels"), field(o, "spec", "template", "metadata", "labels")} {
			if field(labels, "rail-cni.io/node-pool") != name {
				t.Errorf("%s: the labels are %v", name, labels)
			}
		}
		selector := fmt.Sprint(field(pod, "nodeSelector"))
		if want := map[string]string{"h100": "map[gpu:h100 kubernetes.io/os:linux rdma:yes]", "2": "map[kubernetes.io/os:linux rdma:yes]"}[name]; selector != want {
			t.Errorf("%s: the node selector is %s, not %s", name, selector, want)
		}
		if has := field(pod, "affinity") != nil; has != (name == "2") {
			t.Errorf("%s: the affinity is %v", name, field(pod, "affinity"))
		}
	}
	job := fmt.Sprint(all["Job default/rail-cni-uninstall"])
	role := fmt.Sprint(all["Role default/rail-cni-uninstall"])
	if !strings.Contains(job, "--daemonset=rail-agent-h100 --daemonset=rail-agent-2]") || !strings.Contains(role, "resourceNames:[rail-agent-h100 rail-agent-2]") {
		t.Errorf("not all are uninstalled: %s, %s", job, role)
	}
}

// What a pod of the agent sees of the kubelet's directories, and whether it can write there.
func TestDevicePluginsDirectoriesAreEachSwitchable(t *testing.T) {
	const plugins, registry, resources, cdi, config = "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/pod-resources", "/var/run/cdi", "/rdma-devices"
	for set, want := range map[string]map[string]bool{ // true: writable
		"enabled=false":           {},
		"cdi=false":               {plugins: true, registry: false, resources: false},
		"pluginsRegistry=false":   {plugins: true, resources: false},
		"devicePlugins=false":     {registry: true, resources: false},
		"podResources=false":      {plugins: true, registry: false},
		"cdi=true":                {plugins: true, registry: false, resources: false, cdi: true},
		"sharedConfigMap=devices": {plugins: true, registry: false, resources: false, config: false},
	} {
		all := objects(t, "devicePlugin.enabled=true", "devicePlugin."+set)
		agents, _ := field(all["DaemonSet default/rail-agent"], "spec", "template", "spec", "containers").([]any)
		have := map[string]bool{}
		for _, m := range field(agents[0], "volumeMounts").([]any) { //nolint:errcheck // a test
			switch path := field(m, "mountPath").(string); path { //nolint:errcheck // a test
			case plugins, registry, resources, cdi, config:
				have[path] = field(m, "readOnly") != true
			}
		}
		if !maps.Equal(have, want) {
			t.Errorf("%s: the mounts are %v, not %v", set, have, want)
		}
		args := fmt.Sprint(field(agents[0], "args"))
		kubelet, cdiDir := "/var/lib/kubelet", "off"
		if set == "enabled=false" {
			kubelet = "off"
		}
		if set == "cdi=true" {
			cdiDir = cdi
		}
		if !strings.Contains(args, " --kubelet-dir="+kubelet+" ") || kubelet != "off" && !strings.Contains(args, " --cdi-dir="+cdiDir+" ") {
			t.Errorf("%s: the arguments are %s", set, args)
		}
	}
}

// A node file with resources that nobody would offer is an error, and so is a device plugin
// that no kubelet can find.
func TestDevicePluginThatCannotWorkIsRefused(t *testing.T) {
	for set, want := range map[string]string{
		"nodeFile.resources.cdi=true": "need devicePlugin.enabled: true",
		"nodePools[0].name=a,nodePools[0].nodeSelector.b=c,nodePools[0].nodeFile.resources.cdi=true":    "need devicePlugin.enabled: true",
		"devicePlugin.enabled=true,devicePlugin.devicePlugins=false,devicePlugin.pluginsRegistry=false": "needs devicePlugins or pluginsRegistry",
	} {
		out, err := exec.Command(testnet.Tool(t, "helm", "tools"), "template", "rail-cni", chart, "--set", set).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte(want)) {
			t.Errorf("%s: %v\n%s", set, err, out)
		}
	}
}

// The agent's node file, with each key, is valid for the plugins.
func TestNodeFileOfTheValues(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	const nodeFile = `devicePlugin: {enabled: true}
nodeFile:
  rails: [{id: 0, pci: "0000:3b:00.0"}]
  resources: {pools: [{name: rdma/hca_gpu, mode: shared, max: 8, select: {rdma: true}}]}
  nics: [{name: "ens*np0"}, {pci: "0000:3b:*", driver: mlx5_core}]
  allow: []
  paths: ["/etc/cni/net.d/whereabouts.d/*", "/srv/it's \"here\"/**"]
`
	if err := os.WriteFile(values, []byte(nodeFile), 0o600); err != nil {
		t.Fatal(err)
	}
	var pod struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []struct{ Args []string } }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(rendered(t, "--values", values)["daemonset.yaml"]), &pod); err != nil {
		t.Fatal(err)
	}
	var text string
	for _, arg := range pod.Spec.Template.Spec.Containers[0].Args {
		if after, ok := strings.CutPrefix(arg, "--node-file="); ok {
			text = after
		}
	}
	n, err := nodefile.Parse([]byte(text))
	if err != nil || len(n.NICs) != 2 || len(n.Rails.List) != 1 || len(n.Resources.PoolConfigs) != 1 || n.Allow == nil || !n.OpensPath(nodefile.KeyStateDir, `/srv/it's "here"/x`) {
		t.Errorf("%q: %+v, %v", text, n, err)
	}
	if strings.Contains(rendered(t)["daemonset.yaml"], "--node-file") {
		t.Error("there is one without a value")
	}
}

func TestBaseIsWhatTheChartMakes(t *testing.T) {
	files := rendered(t)
	var names []string
	for name, text := range files {
		names = append(names, name)
		if name == "priority.yaml" { // not each cluster of those who use the base has the API
			name = "../api-priority/priority.yaml"
		}
		text = "# Rendered from deployments/helm/rail-cni: change that, then \"go test ./deployments/kustomize/base -update\".\n" + text
		if *update {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(name)
		if err != nil || string(have) != text {
			t.Errorf("%s is stale (%v): go test ./deployments/kustomize/base -update", name, err)
		}
	}
	slices.Sort(names)
	if want := []string{"admission.yaml", "agent.yaml", "daemonset.yaml", "plugin.yaml", "priority.yaml", "reconciler.yaml"}; !slices.Equal(names, want) {
		t.Errorf("the chart makes %v", names)
	}
}

// decoded returns the objects by kind, namespace and name, with the default
// namespace of kubectl and helm.
func decoded(t *testing.T, objects [][]byte) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, text := range objects {
		var o map[string]any
		if err := yaml.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		meta := o["metadata"].(map[string]any) //nolint:errcheck // a test
		namespace, _ := meta["namespace"].(string)
		all[o["kind"].(string)+" "+namespace+"/"+meta["name"].(string)] = o //nolint:errcheck // a test
	}
	return all
}

func TestKustomizeTakesAllOfIt(t *testing.T) {
	kustomized := decoded(t, bytes.Split(run(t, testnet.Tool(t, "controlplane/kubectl", "cluster-binaries"), "kustomize", "."), []byte("\n---\n")))
	ours := decoded(t, base.Objects())
	wantEqual(t, kustomized, ours)
	if len(ours) != 26 {
		t.Errorf("%d objects", len(ours))
	}
	printed := run(t, filepath.Join(testnet.Bin(t), "railctl"), "install", "--manifest")
	wantEqual(t, decoded(t, bytes.Split(bytes.TrimSpace(printed), []byte("\n---\n"))), ours)
}

func wantEqual(t *testing.T, have, want map[string]any) {
	t.Helper()
	a, err := yaml.Marshal(have)
	if err != nil {
		t.Fatal(err)
	}
	b, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("it is\n%s\nand not\n%s", a, b)
	}
}

func TestValuesThatCannotBeAreRefused(t *testing.T) {
	for _, set := range []string{
		"plugins.names={bridge}", "plugins.names={}", "plugins.prefix=../x", "plugin.prefix=rail-", "cniBinDir=opt/cni/bin", "image.pullPolicy=Maybe",
		"whereabouts.tokenLifetime=1 day", "whereabouts.apiServer=10.0.0.1", "metrics.port=0", "stateDirs={/tmp/x}", "reconcile=perhaps", "reconciler.replicas=0", "admissionPolicy=yes", "netnsDirs={/}", "nodeFileDir=/etc", "nodeFile.nic=x", "nodeFile.paths={srv}", "nodeFile.nics[0].names=x", "openshift=yes", "devicePlugin.enabled=on", "devicePlugin.kubeletDir=kubelet", "devicePlugin.dir=/x", "devicePlugin.sharedConfigMap=/x", "nodePools[0].name=a", "nodePools[0].name=A_b", "nodePools[0].nodeFile.rail=x", "nodeFile.rails=auto", "privileged=no", "image.digest=sha256:0", "uninstall.timeout=soon", "fullnameOverride=A", "log.level=loud", "log.format=xml", "railctl.hostDir=bin", "monitoring.podMonitor.interval=often", "commonLabels.a=true", "extraVolumes[0].hostPath.path=/x",
	} {
		out, err := exec.Command(testnet.Tool(t, "helm", "tools"), "template", "rail-cni", chart, "--set", set).CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("don't meet the specifications of the schema")) {
			t.Errorf("%s: %v\n%s", set, err, out)
		}
	}
}

// testNotes fails the test unless helm's notes name the open steps.
func testNotes(t *testing.T, kubeconfig string) {
	t.Helper()
	notes := func(args ...string) string {
		t.Helper()
		out := run(t, testnet.Tool(t, "helm", "tools"), append([]string{"install", "rail-cni", chart, "--kubeconfig", kubeconfig, "--dry-run=client", "--skip-crds", "--take-ownership"}, args...)...)
		_, text, _ := strings.Cut(string(out), "NOTES:\n")
		return text
	}
	const psa, open, pinned, next = "pod-security.kubernetes.io/enforce=privileged", "WARNING", "image.digest", "exec daemonset/rail-agent -- /railctl show"
	for _, c := range []struct {
		args       []string
		want, none []string
	}{
		{[]string{"--namespace", "kube-system"}, []string{pinned, next}, []string{psa, open}},
		{[]string{"--namespace", "kube-system", "--set", "metrics.address=localhost"}, []string{pinned, next}, []string{psa, open}},
		{[]string{"--namespace", "rails", "--set", "metrics.address=0.0.0.0"}, []string{psa, open}, nil},
		{[]string{"--namespace", "rails", "--set", "metrics.address=0.0.0.0", "--set", "metrics.secure=true", "--set", "image.digest=sha256:" + strings.Repeat("0a", 32)}, []string{psa}, []string{open, pinned}},
	} {
		text := notes(c.args...)
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%v: no %q in\n%s", c.args, want, text)
			}
		}
		for _, none := range c.none {
			if strings.Contains(text, none) {
				t.Errorf("%v: %q in\n%s", c.args, none, text)
			}
		}
	}
}
