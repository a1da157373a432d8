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
	"github.com/rail-cni/rail-cni/integration/testnet"
)

var update = flag.Bool("update", false, "write what the chart makes")

const chart = "../../helm/rail-cni"

// run runs a command, and fails the test with what it says.
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

// rendered is what the chart makes, by template.
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

func TestBaseIsWhatTheChartMakes(t *testing.T) {
	files := rendered(t)
	var names []string
	for name, text := range files {
		names = append(names, name)
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
	if want := []string{"agent.yaml", "daemonset.yaml", "plugin.yaml"}; !slices.Equal(names, want) {
		t.Errorf("the chart makes %v", names)
	}
}

// decoded gives objects as kubectl and helm mean them, by kind, namespace and
// name.
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
	if len(ours) != 12 {
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
