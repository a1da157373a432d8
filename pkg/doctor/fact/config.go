package fact

// Configs has the configurations that plugins read. Each configuration has the text that its author
// wrote.
type Configs struct {
	// Files are the node file and the configurations of device plugins that the node file names.
	Files Fact[[]Config] `json:"files"`
	// NADs are the NetworkAttachmentDefinitions of the cluster. On a machine without a cluster this
	// fact is not read.
	NADs Fact[[]Config] `json:"nads"`
	// Networks are the prefixes that a range of addresses must not overlap. The key names the user
	// of the prefixes: "pods", "services" or "nodes". If a key is missing, its prefixes are not
	// known.
	Networks Fact[map[string][]string] `json:"networks"`
	// Requests has, for each pod ("namespace/name"), the annotation key that the pod uses to ask
	// for networks. If a pod does not have the right key, Requests has the pod's keys that resemble
	// it. Pods without any such key and pods that have ended are left out.
	Requests Fact[map[string][]string] `json:"requests"`
}

// ConfigKind is the kind of a configuration.
type ConfigKind string

// These are the kinds of configurations.
const (
	NADConfig    ConfigKind = "NetworkAttachmentDefinition" // Text is spec.config
	NodeFile     ConfigKind = "node file"
	SharedConfig ConfigKind = "k8s-rdma-shared-dev-plugin"
	SRIOVConfig  ConfigKind = "sriov-network-device-plugin"
)

// Config is a configuration.
type Config struct {
	Kind   ConfigKind `json:"kind"`
	Name   string     `json:"name"`             // "namespace/name" for a NAD, otherwise the path of the file
	Source string     `json:"source,omitempty"` // the file, and the document in it
	Text   string     `json:"text"`
	// Resource is the value of the annotation k8s.v1.cni.cncf.io/resourceName of a NAD.
	Resource string `json:"resource,omitempty"`
}

// Object returns the object of findings about the configuration.
func (c *Config) Object() string {
	if c.Kind == NADConfig {
		return "NAD " + c.Name
	}
	return string(c.Kind) + " " + c.Name
}

// NetworksKey is the annotation that a pod uses to ask Multus for networks.
const NetworksKey = "k8s.v1.cni.cncf.io/networks"
