package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// sharedPrefix is the prefix of the resources of k8s-rdma-shared-dev-plugin if the key
// resourcePrefix is missing.
const sharedPrefix = "rdma"

// sharedPlugin is the name of the format in errors.
const sharedPlugin = "configuration of k8s-rdma-shared-dev-plugin"

// sharedFile is the JSON that [ParseSharedDevicePlugin] reads.
type sharedFile struct {
	PeriodicUpdateInterval *int         `json:"periodicUpdateInterval"`
	ConfigList             []sharedPool `json:"configList"`
}

type sharedPool struct {
	ResourceName   string          `json:"resourceName"`
	ResourcePrefix string          `json:"resourcePrefix"`
	RdmaHcaMax     int             `json:"rdmaHcaMax"`
	Devices        []string        `json:"devices"`
	Selectors      sharedSelectors `json:"selectors"`
}

type sharedSelectors struct {
	Vendors   []string `json:"vendors"`
	DeviceIDs []string `json:"deviceIDs"`
	Drivers   []string `json:"drivers"`
	IfNames   []string `json:"ifNames"`
	LinkTypes []string `json:"linkTypes"`
}

func (s *sharedSelectors) empty() bool {
	return len(s.Vendors)+len(s.DeviceIDs)+len(s.Drivers)+len(s.IfNames)+len(s.LinkTypes) == 0
}

var (
	sharedFileKeys = []string{"periodicUpdateInterval", "configList"}
	sharedPoolKeys = []string{"resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors"}
	sharedSelKeys  = []string{"vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"}
)

// ParseSharedDevicePlugin returns the pools of a config.json of k8s-rdma-shared-dev-plugin v1.5.3
// (pkg/types, pkg/resources). All of these pools are shared. It returns an error for a file that
// the plugin refuses, and for a name that the kubelet would refuse. The plugin ignores keys that it
// does not know, so ParseSharedDevicePlugin only adds a warning for each of them. The update
// interval has no effect, because rail-agent does not poll.
func ParseSharedDevicePlugin(data []byte) (*Config, error) {
	var file sharedFile
	if err := decode(data, &file, sharedPlugin); err != nil {
		return nil, err
	}
	c := &Config{Health: defaultHealth()}
	for _, u := range unknownSharedKeys(data) {
		c.Warnings = append(c.Warnings, Problem{"", UnknownKey, sharedPlugin + ": " + u + "; it has no effect"})
	}
	if file.PeriodicUpdateInterval != nil && *file.PeriodicUpdateInterval < 0 {
		return nil, mistake(sharedPlugin, "remove the key", "periodicUpdateInterval is %d", *file.PeriodicUpdateInterval)
	}
	if len(file.ConfigList) == 0 {
		return nil, mistake(sharedPlugin, `add a resource, such as {"resourceName": "hca_gpu", "rdmaHcaMax": 8, "selectors": {"ifNames": ["ens11np0"]}}`, "configList has no resource")
	}
	names := map[string]bool{}
	for i := range file.ConfigList {
		p := &file.ConfigList[i]
		pool, warning, err := p.config()
		if err != nil {
			return nil, failure.Wrap(err, failure.InvalidConfig, "%s: configList[%d]", sharedPlugin, i)
		}
		// The plugin names its sockets without the prefix.
		if names[p.ResourceName] {
			return nil, mistake(sharedPlugin, "rename one of the resources, even if their prefixes differ", "two resources have the resourceName %q", p.ResourceName)
		}
		names[p.ResourceName] = true
		c.PoolConfigs = append(c.PoolConfigs, pool)
		c.Warnings = append(c.Warnings, warning...)
	}
	if err := c.check(); err != nil {
		return nil, failure.Wrap(err, failure.InvalidConfig, "%s", sharedPlugin)
	}
	return c, nil
}

// config returns the resource as a pool.
func (p *sharedPool) config() (PoolConfig, []Problem, error) {
	prefix := p.ResourcePrefix
	if prefix == "" {
		prefix = sharedPrefix
	}
	name := prefix + "/" + p.ResourceName
	what := fmt.Sprintf("resource %q", name)
	switch {
	case !within(strings.ReplaceAll(p.ResourceName, "_", "x"), ""):
		return PoolConfig{}, nil, mistake(what, "rename the resource", "resourceName %q may have only letters, digits and \"_\"", p.ResourceName)
	case p.RdmaHcaMax < 0 || p.RdmaHcaMax > maxDevices:
		return PoolConfig{}, nil, mistake(what, fmt.Sprintf("set a number from 0 to %d", maxDevices), "rdmaHcaMax is %d", p.RdmaHcaMax)
	case p.Selectors.empty() && len(p.Devices) == 0:
		return PoolConfig{}, nil, mistake(what, "add selectors", "it has neither selectors nor devices")
	case !p.Selectors.empty() && len(p.Devices) > 0:
		return PoolConfig{}, nil, mistake(what, "move devices into selectors.ifNames", "it has both selectors and devices")
	}
	var warnings []Problem
	if len(p.Devices) > 0 {
		warnings = append(warnings, Problem{name, Deprecated, what + `: "devices" is deprecated by k8s-rdma-shared-dev-plugin; write it as selectors.ifNames`})
	}
	s := p.Selectors
	return PoolConfig{Name: name, Mode: Shared, Max: p.RdmaHcaMax, Select: []Select{{
		Vendors: s.Vendors, Devices: s.DeviceIDs, Drivers: s.Drivers, IfNames: slices.Concat(s.IfNames, p.Devices), LinkTypes: s.LinkTypes,
	}}}, warnings, nil
}

// unknownSharedKeys returns a sentence for each key of the document that is not a key of the
// format.
func unknownSharedKeys(data []byte) []string {
	found := unknownKeys("", data, sharedFileKeys)
	for i, pool := range elements(field(data, "configList")) {
		prefix := fmt.Sprintf("configList[%d].", i)
		found = append(found, unknownKeys(prefix, pool, sharedPoolKeys)...)
		found = append(found, unknownKeys(prefix+"selectors.", field(pool, "selectors"), sharedSelKeys)...)
	}
	return found
}

// unknownKeys returns a sentence for each key of a JSON object that is not in known. The case of
// keys does not matter, as in encoding/json.
func unknownKeys(prefix string, object json.RawMessage, known []string) []string {
	var found []string
	for _, key := range slices.Sorted(maps.Keys(members(object))) {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			found = append(found, fmt.Sprintf("the key %q is unknown: %s", prefix+key, Suggestion(key, known)))
		}
	}
	return found
}

// members returns the members of a JSON object. If the value is not an object, it returns none.
func members(object json.RawMessage) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(object, &m) != nil {
		return nil
	}
	return m
}

// elements returns the elements of a JSON array. If the value is not an array, it returns none.
func elements(array json.RawMessage) []json.RawMessage {
	var list []json.RawMessage
	if json.Unmarshal(array, &list) != nil {
		return nil
	}
	return list
}

// field returns the member of a JSON object with this name. The case of the key does not matter.
func field(object json.RawMessage, name string) json.RawMessage {
	all := members(object)
	if exact, ok := all[name]; ok {
		return exact
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if strings.EqualFold(key, name) {
			return all[key]
		}
	}
	return nil
}

// decode decodes a document. Its errors do not contain names of Go types.
func decode(data []byte, into any, document string) error {
	err := json.Unmarshal(data, into)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong) && wrong.Field != "":
		return failure.New(failure.Decode, "%s: the value of %q is of the wrong type, %s", document, wrong.Field, wrong.Value).Cure("correct the value")
	}
	return failure.From(err, failure.Decode, "%s: it is not a JSON object of that format", document).Cure("correct the JSON")
}

// mistake returns an error about an object of a configuration.
func mistake(what, cure, format string, args ...any) error {
	return failure.From(fmt.Errorf(format, args...), failure.InvalidConfig, "%s", what).Cure("%s", cure)
}
