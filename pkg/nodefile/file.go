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
	// DefaultPath is the path of the node file that the administrator of the
	// node writes.
	DefaultPath = "/etc/rail-cni/node.yaml"
	// InstalledPath is the path of rail-agent's copy of the node file from the
	// manifests of the cluster's administrator. It is used on nodes on which the
	// file at DefaultPath is missing.
	InstalledPath = "/var/lib/rail-cni/node.yaml"
	// PathEnv is the environment variable that names another path. It is set in
	// the environment of the runtime: neither a network configuration nor a pod
	// can set it.
	PathEnv = "RAIL_CNI_NODE_FILE"
)

// File is the content of the node file: the administrator's permissions for the authors of network
// configurations, and what the NICs of the node are used for in the cluster. Each of the lists
// nics, allow and paths permits what it names. An empty list permits nothing. If the key nics or
// allow is missing, all NICs or all guardrails are permitted. For a missing key paths see
// [File.OpensPath]. A nil *File means that there is no node file. It permits the same as a file
// without these keys.
type File struct {
	// NICs selects the NICs that networks may use.
	NICs []NICPattern `yaml:"nics"`
	// Allow has the guardrails that configurations may override.
	Allow []string `yaml:"allow"`
	// Paths has the paths of the host that configurations may name.
	Paths []string `yaml:"paths"`
	// Rails defines the rails of the NICs. It is nil if the key is missing.
	Rails *resource.Rails `yaml:"rails"`
	// Resources has the pools of NICs for the kubelet. It is nil if the key is missing. The
	// files that it names are not read: see [File.ReadResources].
	Resources *resource.Config `yaml:"resources"`
	// Fabric is how rails reach each other: "isolated" (not at all), "routed" or "flat". It is
	// "" if that is unknown.
	Fabric string `yaml:"fabric"`
	// Node is the node's number, for ${node} in network configurations. It is nil if the key is
	// missing.
	Node *int `yaml:"node"`
	// Prefixes has the address prefixes that belong to this node only, by rail.
	Prefixes []Prefix `yaml:"prefixes"`
	// Publish defines which information pods get about their rails. It is nil for the defaults.
	Publish *Publish `yaml:"publish"`

	// Path is the path of the file, for messages.
	Path string `yaml:"-"`

	ending bool // see [File.Ending]
}

// maxNode is the largest number that a node may have.
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
	// If the file of the node's administrator exists but cannot be read, nothing is permitted.
	// The file at InstalledPath counts only if the file at DefaultPath is missing.
	if _, err := os.Lstat(DefaultPath); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(InstalledPath); err == nil {
			return InstalledPath
		}
	}
	return DefaultPath
}

// Read reads the node file at the path name. It returns nil if there is no such file. It returns an
// error if the file cannot be read or has an unknown key, because a list that is only partly
// understood could permit what the administrator meant to forbid. Read never blocks.
func Read(name string) (*File, error) {
	data, info, err := readFile(name)
	return newFile(name, data, info, err)
}

// newFile returns the node file at the path name. data, info and err are the results of [readFile].
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
			Cure("correct the file; without the file networks may use every NIC that no guardrail protects")
	}
	return n, nil
}

// Parse returns the node file with this text, or an error if [Read] would refuse the text.
func Parse(text []byte) (*File, error) {
	n := &File{}
	return n, n.parse(text)
}

func checkOwner(info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("users other than the one who runs this program (uid %d) can write to the file (mode %04o)", os.Geteuid(), info.Mode().Perm())
	}
	return nil
}

func (n *File) parse(data []byte) error {
	var keys map[string]yaml.Node
	if err := yaml.Unmarshal(data, &keys); err != nil {
		return err
	}
	// These checks are needed because an editor that is saving leaves an empty file for an
	// instant, and because the decoder treats a key without a value as missing.
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

// checkKey returns an error if the file may not have the key, or if the value of the key may not
// have this form.
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

// check returns an error if a pattern is malformed or can match nothing.
func (n *File) check() error {
	if err := n.checkFabric(); err != nil {
		return err
	}
	if n.Node != nil && (*n.Node < 0 || *n.Node > maxNode) {
		return fmt.Errorf("node: %d is not a number from 0 to %d", *n.Node, maxNode)
	}
	for i, p := range n.NICs {
		if p == (NICPattern{}) {
			return fmt.Errorf(`nics[%d] names no NIC: set "name", "pci" or "driver"`, i)
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

// OpensNIC reports whether networks may use the NIC with these names, this PCI address and this
// driver. A property that the NIC does not have is empty.
func (n *File) OpensNIC(names []string, pci, driver string) bool {
	if n == nil || n.NICs == nil {
		return true
	}
	return slices.ContainsFunc(n.NICs, func(p NICPattern) bool {
		return fits(p.Name, names...) && fits(p.PCI, pci) && fits(p.Driver, driver)
	})
}

// fits reports whether one of the texts matches the pattern. An empty pattern always matches.
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
