package nodefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

const (
	// DefaultPath is the node administrator's file about what networks may
	// use.
	DefaultPath = "/etc/rail-cni/node.yaml"
	// InstalledPath is rail-agent's copy of the file in the manifests of
	// the cluster's administrator. It is used on nodes without the other.
	InstalledPath = "/var/lib/rail-cni/node.yaml"
	// PathEnv names another path. It is a variable of the runtime's
	// environment: no network configuration and no pod can set it.
	PathEnv = "RAIL_CNI_NODE_FILE"
)

// File has the administrator's permissions for authors of network
// configurations, and what the node's NICs are to the cluster. A list of nics,
// allow or paths permits what it names, an empty one nothing. Without the keys
// nics and allow everything is permitted; without the key paths see
// [File.OpensPath]. A nil *File means no file, and permits the same as
// a file without these keys.
type File struct {
	// NICs are the NICs that networks may use.
	NICs []NICPattern `yaml:"nics"`
	// Allow are the guardrails that configurations may override.
	Allow []string `yaml:"allow"`
	// Paths are the paths of the host that configurations may name.
	Paths []string `yaml:"paths"`
	// Rails are the rails of the NICs, nil without the key.
	Rails *resource.Rails `yaml:"rails"`
	// Resources are the pools of NICs for the kubelet, nil without the key. The
	// files that it names are not read: see [File.ReadResources].
	Resources *resource.Config `yaml:"resources"`
	// Fabric is how rails reach each other: "isolated" (not at all), "routed" or "flat"; ""
	// if unknown.
	Fabric string `yaml:"fabric"`
	// Node is the node's number, for ${node} in network configurations; nil without the key.
	Node *int `yaml:"node"`
	// Prefixes are the node's own prefixes of addresses, by rail.
	Prefixes []Prefix `yaml:"prefixes"`
	// Publish is which information about their rails pods get, nil for the defaults.
	Publish *Publish `yaml:"publish"`

	// Path is the path of the file, for messages.
	Path string `yaml:"-"`

	ending bool // see [File.Ending]
}

// maxNode is the largest number of a node.
const maxNode = 65535

var (
	nodeFileKeys = []string{"nics", "allow", "paths", "rails", "resources", "fabric", "node", "prefixes", "publish"}
	patternKeys  = []string{"name", "pci", "driver"}
)

// NICPattern selects NICs by patterns of [path.Match]. A NIC must match all
// patterns that are set.
type NICPattern struct {
	Name   string `yaml:"name"`   // name or altname of the netdev
	PCI    string `yaml:"pci"`    // PCI function at or above the NIC, "0000:3b:00.0"
	Driver string `yaml:"driver"` // driver of its device, "mlx5_core"
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (p *NICPattern) UnmarshalYAML(node *yaml.Node) error {
	if err := resource.CheckKeys(node, patternKeys...); err != nil {
		return fmt.Errorf("nics: %w", err)
	}
	type plain NICPattern
	return node.Decode((*plain)(p))
}

// Path returns the path of this node's file.
func Path() string {
	if p := os.Getenv(PathEnv); p != "" {
		return p
	}
	// A node's own file that exists but cannot be read permits nothing. The
	// other file counts only if this one is missing.
	if _, err := os.Lstat(DefaultPath); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(InstalledPath); err == nil {
			return InstalledPath
		}
	}
	return DefaultPath
}

// Read reads the file. It returns nil if there is none. A file that
// cannot be read, or has an unknown key, is an error: a partly understood list
// could permit what it was written to forbid. It never blocks.
func Read(name string) (*File, error) {
	data, info, err := readFile(name)
	return newFile(name, data, info, err)
}

// newFile returns the node file of which [readFile] has returned the rest.
func newFile(name string, data []byte, info fs.FileInfo, err error) (*File, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	n := &File{Path: name}
	if err == nil {
		err = errors.Join(checkOwner(info), n.parse(data))
	}
	if err != nil {
		return nil, failure.From(err, failure.InvalidConfig, "node file %s", name).
			Cure("correct it; without the file every NIC that no guardrail protects is open")
	}
	return n, nil
}

// Parse returns an error if [Read] would refuse the text.
func Parse(text []byte) (*File, error) {
	n := &File{}
	return n, n.parse(text)
}

func checkOwner(info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("users other than the one who runs this program (uid %d) can write to it (mode %04o)", os.Geteuid(), info.Mode().Perm())
	}
	return nil
}

func (n *File) parse(data []byte) error {
	var keys map[string]yaml.Node
	if err := yaml.Unmarshal(data, &keys); err != nil {
		return err
	}
	// An editor that is saving leaves an empty file for an instant; and the
	// decoder treats a key without a value as missing.
	if len(keys) == 0 {
		return errors.New("it is empty")
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if err := checkKey(key, keys[key]); err != nil {
			return err
		}
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(n); err != nil {
		return err
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return errors.New("it has a second document")
	}
	return n.check()
}

// checkKey returns an error if the file may not have the key, or not with a value of
// this form.
func checkKey(key string, value yaml.Node) error {
	switch {
	case !slices.Contains(nodeFileKeys, key):
		return fmt.Errorf("line %d: field %s not found; %s", value.Line, key, resource.Suggestion(key, nodeFileKeys))
	case slices.Contains([]string{"rails", "resources", "fabric", "node", "publish"}, key):
		if value.ShortTag() == "!!null" {
			return fmt.Errorf("line %d: %q has no value; leave the key out", value.Line, key)
		}
		if key == "node" && value.ShortTag() != "!!int" { // the decoder cuts 1.5 to 1
			return fmt.Errorf("line %d: node: %q is not a number from 0 to %d", value.Line, value.Value, maxNode)
		}
	case value.Kind != yaml.SequenceNode:
		return fmt.Errorf("line %d: %q must be a list, [] if nothing is open", value.Line, key)
	}
	return nil
}

// check refuses patterns that are malformed or match nothing.
func (n *File) check() error {
	if err := n.checkFabric(); err != nil {
		return err
	}
	if n.Node != nil && (*n.Node < 0 || *n.Node > maxNode) {
		return fmt.Errorf("node: %d is not a number from 0 to %d", *n.Node, maxNode)
	}
	for i, p := range n.NICs {
		if p == (NICPattern{}) {
			return fmt.Errorf(`nics[%d] names no NIC: give "name", "pci" or "driver"`, i)
		}
		for _, pattern := range []string{p.Name, p.PCI, p.Driver} {
			if err := checkPattern(pattern); err != nil {
				return fmt.Errorf("nics[%d]: %w", i, err)
			}
		}
	}
	for i, p := range n.Paths {
		if !filepath.IsAbs(p) || p != filepath.Clean(p) {
			return fmt.Errorf("paths[%d]: %q is not an absolute path", i, p)
		}
		if err := checkPattern(p); err != nil {
			return fmt.Errorf("paths[%d]: %w", i, err)
		}
	}
	return checkPrefixes(n.Prefixes)
}

func checkPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("%q: %w", pattern, err)
	}
	return nil
}

// OpensNIC reports whether networks may use the NIC with these names, this PCI
// address and this driver; missing properties are empty.
func (n *File) OpensNIC(names []string, pci, driver string) bool {
	if n == nil || n.NICs == nil {
		return true
	}
	return slices.ContainsFunc(n.NICs, func(p NICPattern) bool {
		return fits(p.Name, names...) && fits(p.PCI, pci) && fits(p.Driver, driver)
	})
}

// fits reports whether one of the texts matches. An empty pattern matches all.
func fits(pattern string, texts ...string) bool {
	return pattern == "" || slices.ContainsFunc(texts, func(text string) bool {
		ok, err := path.Match(pattern, text)
		return ok && err == nil
	})
}

// OpensOverride reports whether networks may override the guardrail.
func (n *File) OpensOverride(key string) bool {
	return n == nil || n.Allow == nil || slices.Contains(n.Allow, key)
}
