package diagnose

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/migrate/deviceplugin"
)

// NewCheck returns the command "railctl check".
func NewCheck() *cobra.Command {
	var files []string
	var j judgeFlags
	cmd := &cobra.Command{
		Use:   "check FILE|DIRECTORY...",
		Short: "Check network configurations and node files before they are applied",
		Long: `Check files by the rules for configurations of "railctl doctor". The files are read
with the plugins' own parsers. The command needs neither root nor a cluster. It
recognizes these files by their content:

  NetworkAttachmentDefinitions, also as several documents and as lists
  a CNI configuration or list of plugins, in JSON
  the node file (node.yaml)
  the configuration of k8s-rdma-shared-dev-plugin or sriov-network-device-plugin, in
  JSON or in a ConfigMap

Networks are also compared with each other. So name all files in one command, or
name their directory. The command prints how many things no rule could check:
plugins of other projects, other objects of Kubernetes, and files without a
configuration. If the files contain nothing that a rule can check, the command
fails.

` + exitCodesHelp,
		Example: `  railctl check nads.yaml node.yaml
  railctl check manifests/
  kubectl get net-attach-def -A -o yaml | railctl check -`,
		Annotations: cli.Judges,
	}
	j.add(cmd, "check")
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, `file or directory to check, "-" for stdin; may be repeated`)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		names := append(slices.Clone(files), args...)
		if len(names) == 0 {
			return errors.New(`name the files to check: railctl check FILE...; "-" is stdin`)
		}
		rules, err := j.rules(rule.Select(doctor.Rules(), rule.ConfigScope))
		if err != nil {
			return err
		}
		var c checked
		for _, name := range names {
			if err := c.read(cmd.InOrStdin(), name); err != nil {
				return err
			}
		}
		if len(c.configs) == 0 {
			return fmt.Errorf("%s: %s", strings.Join(names, ", "), harmless(c.nothing))
		}
		f := &fact.Facts{
			Schema: fact.Schema, Taken: time.Now().UTC(), Version: cli.Version,
			Configs: &fact.Configs{},
		}
		ofNAD := func(c fact.Config) bool { return c.Kind == fact.NADConfig }
		source := strings.Join(names, ", ")
		f.Configs.NADs = fact.Known(slices.DeleteFunc(slices.Clone(c.configs), func(c fact.Config) bool { return !ofNAD(c) }), source)
		f.Configs.Files = fact.Known(slices.DeleteFunc(c.configs, ofNAD), source)
		return j.report(cmd, f, rule.Judge(rules, f), append(doctor.NotJudged(f), c.notes()...)...)
	}
	return cmd
}

// checked has everything that "railctl check" has read.
type checked struct {
	configs []fact.Config
	others  map[string]int // the number of objects of Kubernetes that no rule judges, by their kind
	empty   []string       // files with nothing to judge
	nothing error          // the error of the last of these files
}

// read reads a file or the files of a directory. A file with nothing to judge is not an error yet,
// because another file may have something to judge. read only notes it.
func (c *checked) read(stdin io.Reader, name string) error {
	paths := []string{name}
	if info, err := os.Stat(name); name != "-" && err == nil && info.IsDir() {
		if paths, err = filesIn(name); err != nil {
			return err
		}
	}
	for _, path := range paths {
		text, err := cli.ReadInput(stdin, path)
		if err != nil {
			return err
		}
		found, others, err := configsIn(path, text)
		if errors.Is(err, errNothing) {
			c.empty, c.nothing = append(c.empty, path), err
			err = nil
		}
		if err != nil {
			return fmt.Errorf("%s: %s", path, harmless(err))
		}
		c.configs = append(c.configs, found...)
		for _, kind := range others {
			if c.others == nil {
				c.others = map[string]int{}
			}
			c.others[kind]++
		}
	}
	return nil
}

// filesIn returns the files below a directory whose names show that they can contain
// configurations.
func filesIn(dir string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && slices.Contains(configEndings, filepath.Ext(path)) {
			found = append(found, path)
		}
		return err
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%s has no file that ends in %s", dir, strings.Join(configEndings, ", "))
	}
	return found, err
}

// configEndings are the endings of the names of files that "railctl check" reads in a directory.
var configEndings = []string{".yaml", ".yml", ".json", ".conf", ".conflist"}

// notes returns sentences about things that were read but not judged.
func (c *checked) notes() []string {
	var all []string
	if len(c.others) > 0 {
		total, kinds := 0, slices.Sorted(maps.Keys(c.others))
		for i, kind := range kinds {
			total += c.others[kind]
			kinds[i] = cell.Printable(kind)
		}
		all = append(all, fmt.Sprintf("not checked: %d object(s) of other kinds (%s)", total, strings.Join(kinds, ", ")))
	}
	if len(c.empty) > 0 {
		all = append(all, fmt.Sprintf("not checked: %d file(s) without a configuration (%s)", len(c.empty), cell.Printable(strings.Join(c.empty, ", "))))
	}
	return all
}

// harmless returns the text of an error without control characters. The error may quote a file.
func harmless(err error) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, err.Error())
}

// maxDocuments is the maximum number of documents in a file.
const maxDocuments = 10000

// errNothing is the error for a file with nothing to judge.
var errNothing = errors.New(`it has nothing to check: no NetworkAttachmentDefinition, CNI configuration ("type" or "plugins"), node file ("rails", "resources", "nics", ...), or configuration of a device plugin ("configList" or "resourceList")`)

// configsIn returns the configurations in a file, and the kinds of the other objects in the file.
func configsIn(name string, text []byte) (found []fact.Config, others []string, err error) {
	if !json.Valid(text) { // JSON is not parsed as YAML, because that would need more memory
		return documentsIn(name, text)
	}
	found, others, err = configOf(name, name, string(text))
	if err == nil && len(found) == 0 {
		err = errNothing
	}
	return found, others, err
}

// documentsIn returns the configurations in the documents of a YAML file.
func documentsIn(name string, text []byte) (found []fact.Config, others []string, err error) {
	var documents []string
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			break
		}
		if len(documents) == maxDocuments {
			return nil, nil, fmt.Errorf("it has more than %d documents; split it", maxDocuments)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("it is neither YAML nor JSON: %w", err)
		}
		documents = append(documents, documentAt(&node))
	}
	if len(documents) == 1 {
		documents[0] = string(text) // the original text, because errors name its lines
	}
	for i, document := range documents {
		source := name
		if len(documents) > 1 {
			source = fmt.Sprintf("%s, document %d", name, i+1)
		}
		configs, more, err := configOf(name, source, document)
		if err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		found, others = append(found, configs...), append(others, more...)
	}
	if len(found) == 0 {
		return nil, others, errNothing
	}
	return found, others, nil
}

// documentAt returns a document as YAML, with its keys in the same order.
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

// nodeFileKeys are the keys by which a node file is recognized.
var nodeFileKeys = []string{"nics", "allow", "paths", "rails", "resources", "fabric", "node", "prefixes", "publish"}

// configOf returns the configurations in one document. For an object of Kubernetes without a
// configuration it returns no configuration, but the object's kind in others.
func configOf(name, source, text string) (found []fact.Config, others []string, err error) {
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return nil, nil, err
	}
	var keys map[string]yaml.Node
	switch {
	case len(document.Content) == 0 || document.Content[0].ShortTag() == "!!null":
		return nil, nil, nil // the document between two lines "---" is empty
	case document.Content[0].Kind != yaml.MappingNode:
		return nil, nil, errNothing
	}
	if err := document.Decode(&keys); err != nil {
		return nil, nil, err
	}
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(key string) bool { _, ok := keys[key]; return ok })
	}
	one := func(kind fact.ConfigKind) ([]fact.Config, []string, error) {
		return []fact.Config{{Kind: kind, Name: name, Source: source, Text: text}}, nil, nil
	}
	switch {
	case has("apiVersion", "kind"):
		return objectConfigs(name, source, &document)
	case has(deviceplugin.SharedKey):
		return one(fact.SharedConfig)
	case has(deviceplugin.SRIOVKey):
		return one(fact.SRIOVConfig)
	case has("plugins", "type", "cniVersion"):
		if !json.Valid([]byte(text)) {
			return nil, nil, errors.New("a CNI configuration is JSON")
		}
		return one(fact.NADConfig)
	case has(nodeFileKeys...):
		return one(fact.NodeFile)
	}
	return nil, nil, fmt.Errorf("nothing in it can be checked: its keys are %s", quotedKeys(keys))
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
func objectConfigs(name, source string, document *yaml.Node) (found []fact.Config, others []string, err error) {
	var kind struct {
		Kind  string    `yaml:"kind"`
		Items yaml.Node `yaml:"items"`
	}
	if err := document.Decode(&kind); err != nil {
		return nil, nil, err
	}
	list := kind.Kind == "List" || strings.HasSuffix(kind.Kind, "List") && kind.Items.Kind == yaml.SequenceNode
	if !list && kind.Kind != "NetworkAttachmentDefinition" && kind.Kind != "ConfigMap" {
		return nil, []string{kind.Kind}, nil // the fields of another kind may have any type
	}
	var o kubeObject
	if err := document.Decode(&o); err != nil {
		return nil, nil, err
	}
	full := cmp.Or(o.Metadata.Namespace, "default") + "/" + o.Metadata.Name
	switch {
	case list:
		for i := range o.Items {
			configs, more, err := configOf(name, fmt.Sprintf("%s, item %d", source, i+1), documentAt(&o.Items[i]))
			if err != nil {
				return nil, nil, fmt.Errorf("item %d: %w", i+1, err)
			}
			found, others = append(found, configs...), append(others, more...)
		}
	case kind.Kind == "ConfigMap":
		var data map[string]string
		if err := o.Data.Decode(&data); err != nil {
			return nil, nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			c := fact.Config{Name: full + "/" + key, Source: source, Text: data[key]}
			if c.Kind = dataKind(key, data[key]); c.Kind != "" {
				found = append(found, c)
			}
		}
		if len(found) == 0 {
			others = append(others, kind.Kind)
		}
	default:
		var spec struct {
			Config string `yaml:"config"`
		}
		if err := o.Spec.Decode(&spec); err != nil {
			return nil, nil, err
		}
		found = []fact.Config{{
			Kind: fact.NADConfig, Name: full, Source: source, Text: spec.Config,
			Resource: o.Metadata.Annotations["k8s.v1.cni.cncf.io/resourceName"],
		}}
	}
	return found, others, nil
}

// dataKind returns the kind of configuration in a value of a ConfigMap. It returns "" for any other
// value. Configurations of other programs can also have keys like "resources" or "paths". So a
// value counts as a node file only if its key in the ConfigMap is node.yaml, or if it has no key
// that a node file does not have.
func dataKind(key, text string) fact.ConfigKind {
	configs, _, err := configOf("", "", text)
	if err != nil || len(configs) != 1 {
		return ""
	}
	switch kind := configs[0].Kind; kind {
	case fact.SharedConfig, fact.SRIOVConfig:
		return kind
	case fact.NodeFile:
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
