package deviceplugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// Config is the configuration of another device plugin.
type Config struct {
	shared bool // true for k8s-rdma-shared-dev-plugin, false for sriov-network-device-plugin
	config *resource.Config
}

// These are the keys that show for which device plugin a configuration is.
const (
	SharedKey = "configList"
	SRIOVKey  = "resourceList"
)

// Find returns the only configuration in the text. The text is either the JSON itself or a
// ConfigMap with the JSON as a value. key is the key of the ConfigMap, or "" for any key. Find
// returns an error if there is not exactly one configuration.
func Find(text []byte, key string) (*Config, error) {
	if isConfiguration(text) {
		return parse(text)
	}
	found := map[string]string{}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var document configMap
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("the input is neither YAML nor JSON: %w", err)
		}
		for _, m := range append(document.Items, document) {
			m.collect(found, key)
		}
	}
	names := slices.Sorted(maps.Keys(found))
	switch len(names) {
	case 0:
		return nil, fmt.Errorf("the input has no configuration of a device plugin: no JSON with the key %q (k8s-rdma-shared-dev-plugin)"+
			" or %q (sriov-network-device-plugin); give the ConfigMap, or its config.json", SharedKey, SRIOVKey)
	case 1:
		return parse([]byte(found[names[0]]))
	}
	return nil, fmt.Errorf("the input has several configurations: %s; give one ConfigMap, or choose its key with --key", strings.Join(names, ", "))
}

// configMap is a ConfigMap, or a list of them.
type configMap struct {
	Metadata struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Data  map[string]string `yaml:"data"`
	Items []configMap       `yaml:"items"`
}

// collect adds the configurations in the ConfigMap to found, by the ConfigMap's name and the key.
// If key is not "", it adds only the value of this key.
func (m *configMap) collect(found map[string]string, key string) {
	for name, text := range m.Data {
		if key == name || key == "" && isConfiguration([]byte(text)) {
			found[m.Metadata.Name+"/"+name] = text
		}
	}
}

// isConfiguration reports whether the text is JSON with one of the two keys.
func isConfiguration(text []byte) bool {
	var keys map[string]json.RawMessage
	return json.Unmarshal(text, &keys) == nil && (keys[SharedKey] != nil || keys[SRIOVKey] != nil)
}

// parse parses the JSON. If there are several mistakes, the error has the first mistake of each
// resource.
func parse(text []byte) (*Config, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil, fmt.Errorf("the configuration is not JSON: %w", err)
	}
	if (keys[SharedKey] != nil) == (keys[SRIOVKey] != nil) {
		return nil, fmt.Errorf("the configuration must have one of the keys %q and %q", SharedKey, SRIOVKey)
	}
	p, list, parseAll := &Config{shared: keys[SharedKey] != nil}, SRIOVKey, resource.ParseSRIOVDevicePlugin
	if p.shared {
		list, parseAll = SharedKey, resource.ParseSharedDevicePlugin
	}
	var err error
	if p.config, err = parseAll(text); err == nil {
		return p, nil
	}
	var resources []json.RawMessage
	if json.Unmarshal(keys[list], &resources) != nil || len(resources) < 2 {
		return nil, err
	}
	var each []error
	for i, r := range resources {
		alone, _ := json.Marshal(map[string][]json.RawMessage{list: {r}}) // no error: the values come from JSON
		if _, err := parseAll(alone); err != nil {
			each = append(each, fmt.Errorf("resource %d: %w", i, err))
		}
	}
	if len(each) == 0 { // no resource alone has a mistake, so several resources contradict each other
		return nil, err
	}
	return nil, errors.Join(each...)
}

// nativePool is a pool in the form of the node file.
type nativePool struct {
	Name     string           `yaml:"name"`
	Mode     resource.Mode    `yaml:"mode"`
	Max      int              `yaml:"max,omitempty"`
	Select   *resource.Select `yaml:"select"`
	Topology *bool            `yaml:"topology,omitempty"`
}

// nodeResources is the key "resources" of the node file.
type nodeResources struct {
	Resources struct {
		Pools []nativePool `yaml:"pools"`
	} `yaml:"resources"`
}

// native returns the pools in the form of the node file. It returns an error if the node file's
// parser would not read the same pools from this text.
func (p *Config) native() (string, error) {
	var node nodeResources
	var refused []error
	for i := range p.config.PoolConfigs {
		pool := &p.config.PoolConfigs[i]
		switch {
		case len(pool.Select) != 1:
			refused = append(refused, fmt.Errorf("%s: the node file cannot express a list of several selectors", pool.Name))
			continue
		case len(pool.AdditionalInfo) > 0:
			refused = append(refused, fmt.Errorf("%s: the node file has no additionalInfo", pool.Name))
			continue
		}
		n := nativePool{Name: pool.Name, Mode: pool.Mode, Max: pool.Max, Select: &pool.Select[0]}
		if pool.Topology != (pool.Mode != resource.Shared) { // the default
			n.Topology = &pool.Topology
		}
		node.Resources.Pools = append(node.Resources.Pools, n)
	}
	if err := errors.Join(refused...); err != nil {
		return "", p.verbatim(err)
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(node); err != nil {
		return "", err
	}
	if _, err := nodefile.Parse(out.Bytes()); err != nil {
		return "", p.verbatim(err)
	}
	return out.String(), nil
}

// verbatim adds to an error that the node file can name the file, so that it is used without a
// change.
func (p *Config) verbatim(err error) error {
	key := "sriovConfigFile"
	if p.shared {
		key = "sharedConfigFile"
	}
	return fmt.Errorf("%w\nto use the file unchanged, name it by resources.%s in the node file", err, key)
}

// Write writes the key "resources" of the node file, and the steps to switch over as comments.
func (p *Config) Write(out io.Writer) error {
	text, err := p.native()
	if err != nil {
		return err
	}
	name, daemonSet, configMap := "sriov-network-device-plugin", "kube-sriov-device-plugin", "sriovdp-config"
	if p.shared {
		name, daemonSet, configMap = "k8s-rdma-shared-dev-plugin", "rdma-shared-dp-ds", "rdma-devices"
	}
	_, err = fmt.Fprintf(out, `%s
# What to do:
# 1. Put these lines into the node file: below "nodeFile:" in the values of the Helm chart, or, for one node, into
#    %s there.
# 2. Remove %s: "kubectl -n kube-system delete daemonset %s". The name may differ in
#    your cluster. With NVIDIA's network-operator remove the plugin from the NicClusterPolicy instead. Only one device
#    plugin may serve a resource on a node. Pods that run keep their devices.
# 3. Start the device plugin of rail-agent at once: "helm upgrade … --set devicePlugin.enabled=true". The kubelet keeps
#    the resources for five minutes without a device plugin.
# 4. Compare: "kubectl get node NODE -o jsonpath={.status.allocatable}", and "railctl nics -o wide" on the node.
#    Then the ConfigMap (%s) is no longer needed.
# InfiniBand only: containers no longer get umad, by which a program manages the fabric, nor issm. For a pod that
# needs umad (infiniband-diags, SHARP) add "umad: true" to its pool.
`, text, nodefile.DefaultPath, name, daemonSet, configMap)
	return err
}

// Warnings returns problems with the configuration itself that the administrator should know.
func (p *Config) Warnings() []resource.Problem { return p.config.Warnings }

// Problems returns problems with the pools on this node that the administrator should know.
func (p *Config) Problems(nics []resource.NIC) []resource.Problem {
	_, problems := p.config.Pools(nics, nil)
	return problems
}
