package base_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/deployments/kustomize/base"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netconf"
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

// rendered returns the chart's output, by template.
func rendered(t *testing.T, args ...string) map[string]string {
	t.Helper()
	out := run(t, testnet.Tool(t, "helm", "tools"), append([]string{"template", "rail-cni", chart, "--namespace", "kube-system", "--no-hooks"}, args...)...)
	files := map[string]string{}
	source := regexp.MustCompile(`^# Source: rail-cni/templates/(\S+)\n`)
	for part := range strings.SplitSeq(string(out), "---\n") {
		m := source.FindStringSubmatch(part)
		if m == nil {
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
	for _, values := range []string{"values.yaml", "values-openshift.yaml", "values-talos.yaml", "values-bottlerocket.yaml"} {
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

// The agent's node file, with each key, is valid for the plugins.
func TestNodeFileOfTheValues(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	const nodeFile = `nodeFile:
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
	n, err := netconf.ParseNodeFile([]byte(text))
	if err != nil || len(n.NICs) != 2 || n.Allow == nil || !n.OpensPath(netconf.KeyStateDir, `/srv/it's "here"/x`) {
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
	if want := []string{"agent.yaml", "daemonset.yaml", "plugin.yaml", "priority.yaml", "reconciler.yaml"}; !slices.Equal(names, want) {
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
	if len(ours) != 16 {
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

// TestChartMakesWhatTheServerTakes has a real API server validate all objects,
// including those of helm's hook, field by field.
func TestChartMakesWhatTheServerTakes(t *testing.T) {
	c := newCluster(t)
	t.Run("and notes", func(t *testing.T) { testNotes(t, c.plane.AdminKubeconfig()) })
	for _, set := range [][]string{
		nil,
		{
			"image.tag=v1", "image.pullSecrets={a,b}", "plugins.prefix=rail-", "plugins.names={macvlan,whereabouts}", "whereabouts.apiServer=https://[fd00::1]:6443",
			"whereabouts.replaceFiles=true", "reconcile=false", "metrics.address=::1", "nodeSelector.a=b", "priorityClassName=", "maxUnavailable=1",
			"stateDirs={/run/rail-cni,/run/other}", "tolerations=null", "resources=null",
			"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=a",
			"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists",
			"cniBinDir=/home/kubernetes/bin", "cniConfDir=/etc/kubernetes/cni/net.d",
		},
		{"uninstall.enabled=false", "metrics.address=0.0.0.0", "reconcile=daemonset"},
		{"reconcile=off", "privileged=false", "netnsDirs={/run/netns}", "metrics.secure=true", "metrics.certSecret=a", "reconcile=false", "image.digest=sha256:" + strings.Repeat("0a", 32)},
		{"values-openshift.yaml"},
		{"values-talos.yaml"},
		{"values-bottlerocket.yaml"},
		{"nodeFile.nics[0].name=ens*", "nodeFile.allow={uplink}", "reconcile=true", "admissionPolicy=true", "reconciler.nodeSelector.a=b", "reconciler.tolerations=null", "reconciler.resources=null"},
	} {
		all := objects(t, set...)
		want := 24
		if slices.Contains(set, "uninstall.enabled=false") {
			want -= 6
		}
		if slices.Contains(set, "reconcile=false") {
			want -= 7
		}
		if slices.Contains(set, "reconcile=daemonset") {
			want -= 2
		}
		if slices.Contains(set, "metrics.secure=true") || slices.Contains(set, "values-openshift.yaml") {
			want += 2
		}
		if slices.Contains(set, "admissionPolicy=true") {
			want += 6
		}
		if len(all) != want {
			t.Errorf("%v: %d objects, not %d", set, len(all), want)
		}
		for name, o := range all {
			object, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			path := c.path(object) + "?dryRun=All&fieldValidation=Strict"
			// The cluster has the base, whose cluster-wide objects have the
			// same names.
			code, answer, err := c.plane.Admin().Do(t.Context(), "POST", path, controlplane.YAML, object)
			if err != nil || code != 201 && !(code == 409 && bytes.Contains(answer, []byte("AlreadyExists"))) {
				t.Errorf("%v: %s: %d, %v: %s", set, name, code, err, answer)
			}
		}
	}
}

func TestValuesThatCannotBeAreRefused(t *testing.T) {
	for _, set := range []string{
		"plugins.names={bridge}", "plugins.names={}", "plugins.prefix=../x", "plugin.prefix=rail-", "cniBinDir=opt/cni/bin", "image.pullPolicy=Maybe",
		"whereabouts.tokenLifetime=1 day", "whereabouts.apiServer=10.0.0.1", "metrics.port=0", "stateDirs={/tmp/x}", "reconcile=perhaps", "reconciler.replicas=2", "admissionPolicy=yes", "netnsDirs={/}", "nodeFileDir=/etc", "nodeFile.nic=x", "nodeFile.paths={srv}", "nodeFile.nics[0].names=x", "openshift=yes", "privileged=no", "image.digest=sha256:0", "uninstall.timeout=soon",
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
	const psa, open, pinned = "pod-security.kubernetes.io/enforce=privileged", "WARNING", "image.digest"
	for _, c := range []struct {
		args       []string
		want, none []string
	}{
		{[]string{"--namespace", "kube-system"}, []string{pinned}, []string{psa, open}},
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
