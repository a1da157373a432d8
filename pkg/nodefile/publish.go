package nodefile

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/resource"
)

// These are the families of environment variables that pods may get.
const (
	EnvNCCL    = "nccl"
	EnvUCX     = "ucx"
	EnvNVSHMEM = "nvshmem"
	EnvVLLM    = "vllm"
)

// EnvFamilies lists all families of environment variables.
var EnvFamilies = []string{EnvNCCL, EnvUCX, EnvNVSHMEM, EnvVLLM}

// The values of the key "fabric".
const (
	FabricIsolated = "isolated" // a rail reaches only the same rail of other nodes
	FabricRouted   = "routed"   // rails reach each other through routers
	FabricFlat     = "flat"     // all rails are in one network
)

// The values of "devices" and "gidIndex" below "publish".
const (
	PublishLentDevices = "lent"
	PublishNoDevices   = "none"
	GIDIndexDynamic    = "dynamic"
	GIDIndexFixed      = "fixed"
)

// Publish defines which information a pod gets about the rails that it holds.
type Publish struct {
	// Env lists the families of environment variables: nccl, ucx, nvshmem, vllm. nil
	// means nccl, ucx and nvshmem; an empty list means none.
	Env []string `yaml:"env"`
	// Mount is true if the directory of files is mounted into containers. nil means true.
	Mount *bool `yaml:"mount"`
	// Memlock is true if containers may lock unlimited memory. nil means true.
	Memlock *bool `yaml:"memlock"`
	// Devices is "lent" or "none". With "lent", containers get the char devices of the RDMA
	// devices that the pod holds. An empty value means "lent".
	Devices string `yaml:"devices"`
	// Annotation is true if the pod gets the annotation rail-cni.io/rails.
	Annotation bool `yaml:"annotation"`
	// GIDIndex is "fixed" or "dynamic". With "fixed", NCCL_IB_GID_INDEX is set if the index is
	// equal on all rails. With "dynamic", NCCL chooses the index. An empty value means
	// "dynamic".
	GIDIndex string `yaml:"gidIndex"`
}

var publishKeys = []string{"env", "mount", "memlock", "devices", "annotation", "gidIndex"}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (p *Publish) UnmarshalYAML(node *yaml.Node) error {
	if err := resource.CheckKeys(node, publishKeys...); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if value := node.Content[i+1]; value.ShortTag() == "!!null" {
			return fmt.Errorf("publish: line %d: %q has no value; remove the key", value.Line, node.Content[i].Value)
		}
	}
	type plain Publish
	if err := node.Decode((*plain)(p)); err != nil {
		return err
	}
	for i, family := range p.Env {
		if err := publishValue(fmt.Sprintf("publish.env[%d]", i), family, EnvFamilies); err != nil {
			return err
		}
		if slices.Contains(p.Env[:i], family) {
			return fmt.Errorf("publish.env[%d]: %q is there twice", i, family)
		}
	}
	if p.Devices != "" {
		if err := publishValue("publish.devices", p.Devices, []string{PublishLentDevices, PublishNoDevices}); err != nil {
			return err
		}
	}
	if p.GIDIndex != "" {
		return publishValue("publish.gidIndex", p.GIDIndex, []string{GIDIndexDynamic, GIDIndexFixed})
	}
	return nil
}

// checkFabric returns an error if the key "fabric" has an invalid value.
func (n *File) checkFabric() error {
	if n.Fabric == "" {
		return nil
	}
	return publishValue("fabric", n.Fabric, []string{FabricIsolated, FabricRouted, FabricFlat})
}

// publishValue returns an error if value, the value of key, is not in values.
func publishValue(key, value string, values []string) error {
	if slices.Contains(values, value) {
		return nil
	}
	return fmt.Errorf("%s: %q is not one of %s", key, value, strings.Join(values, ", "))
}
