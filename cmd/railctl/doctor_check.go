package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/doctor"
)

func newCheck() *cobra.Command {
	var files []string
	var j judgeFlags
	cmd := &cobra.Command{
		Use:   "check -f FILE...",
		Short: "Judge network configurations and node files before they are applied",
		Long: `Judge files by the rules of "railctl doctor" for configurations, with the plugins'
own parsers. It needs neither root nor a cluster. It recognizes these files by their
content:

  NetworkAttachmentDefinitions, also as several documents and as lists
  a CNI configuration or list of plugins, in JSON
  the node file (node.yaml)
  the configuration of k8s-rdma-shared-dev-plugin or sriov-network-device-plugin, in
  JSON or in a ConfigMap

Networks are also compared with each other, so name all files in one command. Other
objects of Kubernetes in a file are ignored; a file with nothing to judge is an error.

` + exitCodesHelp,
		Example: `  railctl check -f nads.yaml -f node.yaml
  kubectl get net-attach-def -A -o yaml | railctl check -f -`,
		Args:        cobra.NoArgs,
		Annotations: judges,
	}
	j.add(cmd)
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, `file to judge, "-" for stdin; may be repeated`)
	_ = cmd.MarkFlagRequired("filename") // fails only for a flag that does not exist
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rules, err := j.rules(doctor.Select(doctor.Rules(), doctor.ConfigScope))
		if err != nil {
			return err
		}
		var configs []doctor.Config
		for _, name := range files {
			text, err := readInput(cmd.InOrStdin(), name)
			if err != nil {
				return err
			}
			found, err := configsIn(name, text)
			if err != nil {
				return fmt.Errorf("%s: %s", name, harmless(err))
			}
			configs = append(configs, found...)
		}
		f := &doctor.Facts{
			Schema: doctor.Schema, Taken: time.Now().UTC(), Version: version,
			Configs: &doctor.Configs{},
		}
		ofNAD := func(c doctor.Config) bool { return c.Kind == doctor.NADConfig }
		source := strings.Join(files, ", ")
		f.Configs.NADs = doctor.Known(slices.DeleteFunc(slices.Clone(configs), func(c doctor.Config) bool { return !ofNAD(c) }), source)
		f.Configs.Files = doctor.Known(slices.DeleteFunc(configs, ofNAD), source)
		return j.report(cmd, f, doctor.Judge(rules, f))
	}
	return cmd
}

// harmless returns the text of an error, which may quote a file, without control characters.
func harmless(err error) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, err.Error())
}

// mostDocuments bounds the documents of a file.
const mostDocuments = 10000

// errNothing is the error of a file with nothing to judge.
var errNothing = errors.New(`it has nothing to judge: no NetworkAttachmentDefinition, CNI configuration ("type" or "plugins"), node file ("rails", "resources", "nics", ...), or configuration of a device plugin ("configList" or "resourceList")`)

// configsIn returns the configurations in a file.
func configsIn(name string, text []byte) ([]doctor.Config, error) {
	if !json.Valid(text) { // one JSON document may be larger in YAML's form
		return documentsIn(name, text)
	}
	found, err := configOf(name, name, string(text))
	if err == nil && len(found) == 0 {
		err = errNothing
	}
	return found, err
}

// documentsIn returns the configurations in the documents of a YAML file.
func documentsIn(name string, text []byte) ([]doctor.Config, error) {
	var documents []string
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			break
		}
		if len(documents) == mostDocuments {
			return nil, fmt.Errorf("it has more than %d documents; split it", mostDocuments)
		}
		if err != nil {
			return nil, fmt.Errorf("it is neither YAML nor JSON: %w", err)
		}
		documents = append(documents, documentAt(&node))
	}
	if len(documents) == 1 {
		documents[0] = string(text) // as its author wrote it: errors name lines
	}
	var found []doctor.Config
	for i, document := range documents {
		source := name
		if len(documents) > 1 {
			source = fmt.Sprintf("%s, document %d", name, i+1)
		}
		configs, err := configOf(name, source, document)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		found = append(found, configs...)
	}
	if len(found) == 0 {
		return nil, errNothing
	}
	return found, nil
}

// documentAt returns the text of a document, with the same keys in the same order.
func documentAt(node *yaml.Node) string {
	text, err := yaml.Marshal(node)
	if err != nil {
		return ""
	}
	return string(text)
}

// kubeObject is an object of Kubernetes. The types of its spec and data depend on its kind.
type kubeObject struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name        string            `yaml:"name"`
		Namespace   string            `yaml:"namespace"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Spec  yaml.Node   `yaml:"spec"`
	Data  yaml.Node   `yaml:"data"`
	Items []yaml.Node `yaml:"items"`
}

// nodeFileKeys are the keys by which a node file is known.
var nodeFileKeys = []string{"nics", "allow", "paths", "rails", "resources", "fabric", "node", "prefixes", "publish"}

// configOf returns the configurations in one document, none for an object of Kubernetes that
// has none.
func configOf(name, source, text string) ([]doctor.Config, error) {
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return nil, err
	}
	var keys map[string]yaml.Node
	switch {
	case len(document.Content) == 0 || document.Content[0].ShortTag() == "!!null":
		return nil, nil // empty, between two lines "---"
	case document.Content[0].Kind != yaml.MappingNode:
		return nil, errNothing
	}
	if err := document.Decode(&keys); err != nil {
		return nil, err
	}
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(key string) bool { _, ok := keys[key]; return ok })
	}
	one := func(kind doctor.ConfigKind) ([]doctor.Config, error) {
		return []doctor.Config{{Kind: kind, Name: name, Source: source, Text: text}}, nil
	}
	switch {
	case has("apiVersion", "kind"):
		return objectConfigs(name, source, &document)
	case has(sharedKey):
		return one(doctor.SharedConfig)
	case has(sriovKey):
		return one(doctor.SRIOVConfig)
	case has("plugins", "type", "cniVersion"):
		if !json.Valid([]byte(text)) {
			return nil, errors.New("a CNI configuration is JSON")
		}
		return one(doctor.NADConfig)
	case has(nodeFileKeys...):
		return one(doctor.NodeFile)
	}
	return nil, fmt.Errorf("nothing in it can be judged: its keys are %s", quotedKeys(keys))
}

func quotedKeys(keys map[string]yaml.Node) string {
	names := slices.Sorted(maps.Keys(keys))
	var quoted []string
	for _, name := range names[:min(len(names), 5)] {
		quoted = append(quoted, fmt.Sprintf("%.40q", name))
	}
	return strings.Join(quoted, ", ")
}

// objectConfigs returns the configurations in an object of Kubernetes.
func objectConfigs(name, source string, document *yaml.Node) ([]doctor.Config, error) {
	var kind struct {
		Kind  string    `yaml:"kind"`
		Items yaml.Node `yaml:"items"`
	}
	if err := document.Decode(&kind); err != nil {
		return nil, err
	}
	list := kind.Kind == "List" || strings.HasSuffix(kind.Kind, "List") && kind.Items.Kind == yaml.SequenceNode
	if !list && kind.Kind != "NetworkAttachmentDefinition" && kind.Kind != "ConfigMap" {
		return nil, nil // its fields may have any type
	}
	var o kubeObject
	if err := document.Decode(&o); err != nil {
		return nil, err
	}
	full := cmp.Or(o.Metadata.Namespace, "default") + "/" + o.Metadata.Name
	var found []doctor.Config
	switch {
	case list:
		for i := range o.Items {
			configs, err := configOf(name, fmt.Sprintf("%s, item %d", source, i+1), documentAt(&o.Items[i]))
			if err != nil {
				return nil, fmt.Errorf("item %d: %w", i+1, err)
			}
			found = append(found, configs...)
		}
	case kind.Kind == "ConfigMap":
		var data map[string]string
		if err := o.Data.Decode(&data); err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			c := doctor.Config{Name: full + "/" + key, Source: source, Text: data[key]}
			if c.Kind = dataKind(key, data[key]); c.Kind != "" {
				found = append(found, c)
			}
		}
	default:
		var spec struct {
			Config string `yaml:"config"`
		}
		if err := o.Spec.Decode(&spec); err != nil {
			return nil, err
		}
		found = []doctor.Config{{
			Kind: doctor.NADConfig, Name: full, Source: source, Text: spec.Config,
			Resource: o.Metadata.Annotations["k8s.v1.cni.cncf.io/resourceName"],
		}}
	}
	return found, nil
}

// dataKind returns the kind of a value of a ConfigMap, "" for others. The configurations of
// other programs, too, have keys like "resources" or "paths": unless its key is node.yaml, a
// node file has no key that is unknown.
func dataKind(key, text string) doctor.ConfigKind {
	configs, err := configOf("", "", text)
	if err != nil || len(configs) != 1 {
		return ""
	}
	switch kind := configs[0].Kind; kind {
	case doctor.SharedConfig, doctor.SRIOVConfig:
		return kind
	case doctor.NodeFile:
		var keys map[string]yaml.Node
		if err := yaml.Unmarshal([]byte(text), &keys); err != nil {
			return ""
		}
		for k := range keys {
			if key != "node.yaml" && !slices.Contains(nodeFileKeys, k) {
				return ""
			}
		}
		return kind
	}
	return ""
}
