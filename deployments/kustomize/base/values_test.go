package base_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// readmeHead is the chart's README above the table of values.
const readmeHead = `# rail-cni

The chart installs rail-cni in a cluster: the plugins on each node, and agents that keep the plugins there, return the NICs of dead pods,
and check the rails. See [install](../../../docs/guide/install.md) for the guide, and [deployments](../../README.md) for details of the
values.

%s
helm install rail-cni deployments/helm/rail-cni --namespace kube-system
helm test rail-cni --namespace kube-system --logs
%s

%shelm test%s waits until the agents of all nodes and the reconciler are ready, and until the API server has address pools. The test's pod may
only read the DaemonSets, the Deployment and the pods of the release's namespace, and the pools.

Install the chart only once in a cluster. There are values files for systems other than plain Kubernetes:
[OpenShift](values-openshift.yaml), [Talos](values-talos.yaml), [Bottlerocket](values-bottlerocket.yaml), [k3s](values-k3s.yaml),
[MicroK8s](values-microk8s.yaml).

## Values

This table is generated from [values.yaml](values.yaml), by %sgo test ./deployments/kustomize/base -update%s. [A schema](values.schema.json)
checks values: an unknown key is an error.

| value | default | meaning |
|---|---|---|
`

// valueRows returns the rows of the table of values, one for each key that is no mapping or has a
// comment. undocumented are the values without a comment.
func valueRows(t *testing.T, n *yaml.Node, path string) (rows, undocumented []string) {
	t.Helper()
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := path + key.Value
		comment := meaning(strings.Join([]string{key.HeadComment, key.LineComment, value.LineComment}, "\n"))
		branch := value.Kind == yaml.MappingNode && len(value.Content) > 0 && value.Style != yaml.FlowStyle && !opaque[name]
		if !branch || comment != "" {
			text := ""
			if !branch {
				var plain any
				if err := value.Decode(&plain); err != nil {
					t.Fatal(err)
				}
				out, err := json.Marshal(plain)
				if err != nil {
					t.Fatal(err)
				}
				text = "`" + strings.ReplaceAll(string(out), "|", `\|`) + "`"
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", name, text, comment))
		}
		if !branch {
			if comment == "" {
				undocumented = append(undocumented, name)
			}
			continue
		}
		more, without := valueRows(t, value, name+".")
		rows, undocumented = append(rows, more...), append(undocumented, without...)
	}
	return rows, undocumented
}

// opaque are mappings that are values of Kubernetes and not groups of values.
var opaque = map[string]bool{"reconciler.affinity": true, "reconciler.resources": true, "resources": true}

// meaning returns a comment as a cell of a table. Lines that are indented are code.
func meaning(comment string) string {
	var cell []string
	for line := range strings.Lines(comment) {
		text := strings.TrimPrefix(strings.TrimRight(line, "\n"), "#")
		switch trimmed := strings.TrimSpace(text); {
		case trimmed == "":
		case strings.HasPrefix(text, "   "):
			cell = append(cell, "`"+trimmed+"`")
		default:
			cell = append(cell, trimmed)
		}
	}
	joined := strings.ReplaceAll(strings.Join(cell, " "), "|", `\|`)
	return strings.ReplaceAll(joined, "` `", "`<br>`")
}

func TestReadmeOfTheChartHasTheValues(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	rows, undocumented := valueRows(t, file.Content[0], "")
	if len(rows) < 60 {
		t.Errorf("only %d values", len(rows))
	}
	if len(undocumented) > 0 {
		t.Errorf("values.yaml has no comment for %s", strings.Join(undocumented, ", "))
	}
	var page bytes.Buffer
	fmt.Fprintf(&page, readmeHead, "```", "```", "`", "`", "`", "`")
	page.WriteString(strings.Join(rows, "\n") + "\n")
	wantFile(t, filepath.Join(chart, "README.md"), page.Bytes())
}
