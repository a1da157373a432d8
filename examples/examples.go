package examples

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// Files are the examples: the users' YAML, also that in try/ and job/, and the conflists
// in cnitool/.
//
//go:embed *.yaml *.json cnitool/*.conflist try/*.yaml job/*.yaml
var Files embed.FS

// networksAnnotation lists a pod's networks for Multus.
const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

// Network is a NetworkAttachmentDefinition.
type Network struct {
	// NAD is the name of the Kubernetes object, by which a pod asks for it.
	NAD string
	// Name is the name of the CNI network in Config. It may be another.
	Name string
	// Config is the CNI configuration, unchanged.
	Config []byte
}

// Pod is a pod that asks for networks.
type Pod struct {
	Name string
	// NADs are the networks in the order of the annotation: the first becomes
	// net1.
	NADs []string
}

// object is a Kubernetes object, with the fields used here.
type object struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name        string            `yaml:"name"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Spec struct {
		Config string `yaml:"config"`
	} `yaml:"spec"`
}

// Networks reads the NetworkAttachmentDefinitions of an example file.
func Networks(file string) ([]Network, error) {
	objects, err := read[object](file)
	if err != nil {
		return nil, err
	}
	var found []Network
	for _, o := range objects {
		if o.Kind != "NetworkAttachmentDefinition" {
			return nil, fmt.Errorf("%s: %s is a %q, not a NetworkAttachmentDefinition", file, o.Metadata.Name, o.Kind)
		}
		var conf struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal([]byte(o.Spec.Config), &conf); err != nil {
			return nil, fmt.Errorf("%s: config of %s: %w", file, o.Metadata.Name, err)
		}
		found = append(found, Network{NAD: o.Metadata.Name, Name: conf.Name, Config: []byte(o.Spec.Config)})
	}
	return found, nil
}

// Rendered returns the CNI configuration that network-operator renders of a resource of this kind.
func Rendered(kind string) (config string, err error) {
	const file = "network-operator-rendered.json"
	text, err := Files.ReadFile(file)
	if err != nil {
		return "", err
	}
	var forms map[string]struct{ Config json.RawMessage }
	if err := json.Unmarshal(text, &forms); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	if forms[kind].Config == nil {
		return "", fmt.Errorf("%s has no config of a %s", file, kind)
	}
	return string(forms[kind].Config), nil
}

// Pods reads the pods of an example file.
func Pods(file string) ([]Pod, error) {
	objects, err := read[object](file)
	if err != nil {
		return nil, err
	}
	var found []Pod
	for _, o := range objects {
		if o.Kind != "Pod" {
			return nil, fmt.Errorf("%s: %s is a %q, not a Pod", file, o.Metadata.Name, o.Kind)
		}
		var networks []struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal([]byte(o.Metadata.Annotations[networksAnnotation]), &networks); err != nil {
			return nil, fmt.Errorf("%s: annotation %s of %s: %w", file, networksAnnotation, o.Metadata.Name, err)
		}
		pod := Pod{Name: o.Metadata.Name}
		for _, n := range networks {
			pod.NADs = append(pod.NADs, n.Name)
		}
		found = append(found, pod)
	}
	return found, nil
}

// Objects reads all objects of an example file, whole.
func Objects(file string) ([]map[string]any, error) { return read[map[string]any](file) }

func read[T any](file string) ([]T, error) {
	data, err := Files.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []T
	for documents := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var o T
		err := documents.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, o)
	}
}
