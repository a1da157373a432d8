package diagnose

import (
	_ "embed"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// goodNAD is a NetworkAttachmentDefinition with which nothing is wrong.
//
//go:embed testdata/nad.yaml
var goodNAD string

func TestCheckKnowsFilesByTheirContent(t *testing.T) {
	const shared = `{"configList": [{"resourceName": "hca", "rdmaHcaMax": 8, "selectors": {"ifNames": ["ens1"]}}]}`
	nad := fact.Config{
		Kind: fact.NADConfig, Name: "default/roce", Resource: "rdma/roce",
		Text: `{"cniVersion": "1.0.0", "name": "roce", "type": "host-device", "device": "ens1", "ipam": {"type": "whereabouts", "range": "10.1.0.0/24"}}`,
	}
	at := func(c fact.Config, source string) fact.Config { c.Source = source; return c }
	second := nad
	second.Name = "gpu/other"
	both := goodNAD + "---\n# nothing\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: gpu}\n---\n" + strings.Replace(goodNAD, "name: roce,", "name: other, namespace: gpu,", 1)
	for name, c := range map[string]struct {
		text string
		want []fact.Config
		err  string
	}{
		"a NAD":         {goodNAD, []fact.Config{at(nad, "f")}, ""},
		"two documents": {both, []fact.Config{at(nad, "f, document 1"), at(second, "f, document 4")}, ""},
		"a list": {
			"apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(goodNAD), "\n", "\n  ") + "\n",
			[]fact.Config{at(nad, "f, item 1")},
			"",
		},
		"a configuration":   {nad.Text, []fact.Config{{Kind: fact.NADConfig, Name: "f", Source: "f", Text: nad.Text}}, ""},
		"a node file":       {"rails: auto\n", []fact.Config{{Kind: fact.NodeFile, Name: "f", Source: "f", Text: "rails: auto\n"}}, ""},
		"a device plugin's": {shared, []fact.Config{{Kind: fact.SharedConfig, Name: "f", Source: "f", Text: shared}}, ""},
		"in a ConfigMap":    {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rdma-devices, namespace: kube-system}\ndata: {config.json: '" + shared + "', note: x}\n", []fact.Config{{Kind: fact.SharedConfig, Name: "kube-system/rdma-devices/config.json", Source: "f", Text: shared}}, ""},
		"a node file's": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nodes, namespace: kube-system}\ndata: {node.yaml: 'rials: auto, paths: {}', gpu: 'rails: auto', plugin: 'resources: {}\n\n  version: v1'}\n", []fact.Config{
			{Kind: fact.NodeFile, Name: "kube-system/nodes/gpu", Source: "f", Text: "rails: auto"},
		}, ""},
		"objects of others":    {"apiVersion: opentelemetry.io/v1beta1\nkind: OpenTelemetryCollector\nspec: {config: {receivers: {}}}\n---\napiVersion: apps/v1\nkind: ControllerRevision\ndata: {spec: {template: {}}}\n---\n" + goodNAD, []fact.Config{at(nad, "f, document 3")}, ""},
		"too many documents":   {strings.Repeat("---\na: b\n", maxDocuments+1), nil, "more than"},
		"another ConfigMap":    {"apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n", nil, "nothing to check"},
		"a pod":                {"apiVersion: v1\nkind: Pod\n", nil, "nothing to check"},
		"nothing":              {"", nil, "nothing to check"},
		"other keys":           {"nic: ens1\n", nil, `"nic"`},
		"a text":               {"hello\n", nil, "nothing to check"},
		"a JSON list":          {"[1, 2]", nil, "nothing to check"},
		"a key twice":          {"rails: auto\nrails: auto\n", nil, "already defined"},
		"neither YAML nor so":  {"a: b: c\n", nil, "neither YAML nor JSON"},
		"a configuration YAML": {"type: macvlan\nname: x\n", nil, "is JSON"},
		"data with a number":   {"apiVersion: v1\nkind: ConfigMap\ndata: [1]\n", nil, "cannot unmarshal"},
	} {
		have, _, err := configsIn("f", []byte(c.text))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, not %q", name, err, c.err)
			}
			continue
		}
		if err != nil || !slices.Equal(have, c.want) {
			t.Errorf("%s: %v\n%+v\nnot\n%+v", name, err, have, c.want)
		}
	}
}
