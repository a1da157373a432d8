package netconf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

const (
	// DefaultNodeFile is where the node's administrator says what networks may
	// use.
	DefaultNodeFile = "/etc/rail-cni/node.yaml"
	// InstalledNodeFile is where rail-agent writes the file that the cluster's
	// administrator has in the manifests. It holds on nodes without the other.
	InstalledNodeFile = "/var/lib/rail-cni/node.yaml"
	// NodeFileEnv names another place. It is the runtime's environment: no
	// network configuration and no pod can set it.
	NodeFileEnv = "RAIL_CNI_NODE_FILE"
)

// NodeFile is what the administrator of a node opens to those who write network
// configurations. A list opens what it names, an empty one nothing. Without the
// keys nics and allow all is open; without the key paths see [NodeFile.OpensPath].
// A nil *NodeFile means no file, and opens what a file without keys does.
type NodeFile struct {
	// NICs are the NICs that host-device may lend and macvlan may lie on.
	NICs []NICPattern `yaml:"nics"`
	// Allow are the guardrails that configurations may override.
	Allow []string `yaml:"allow"`
	// Paths are the paths of the host that configurations may name.
	Paths []string `yaml:"paths"`

	// Path is where the file lies, for messages.
	Path string `yaml:"-"`
}

// NICPattern names NICs by patterns of [path.Match]. A NIC must match all that
// are given.
type NICPattern struct {
	Name   string `yaml:"name"`   // name or altname of the netdev
	PCI    string `yaml:"pci"`    // PCI function at or above the NIC, "0000:3b:00.0"
	Driver string `yaml:"driver"` // driver of its device, "mlx5_core"
}

// NodeFilePath returns the path of this node's file.
func NodeFilePath() string {
	if p := os.Getenv(NodeFileEnv); p != "" {
		return p
	}
	// A file of the node that exists but cannot be read closes all. The other
	// file holds only if this one is missing.
	if _, err := os.Lstat(DefaultNodeFile); errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(InstalledNodeFile); err == nil {
			return InstalledNodeFile
		}
	}
	return DefaultNodeFile
}

// ReadNodeFile reads the file, which is nil when there is none. Whatever else
// keeps it from being read and understood to the last key is an error: half an
// understood list could open what it was written to close. It never blocks.
func ReadNodeFile(name string) (*NodeFile, error) {
	data, info, err := readFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	n := &NodeFile{Path: name}
	if err == nil {
		err = errors.Join(checkOwner(info), n.parse(data))
	}
	if err != nil {
		return nil, failure.WithCure(failure.Wrap(err, failure.InvalidConfig, "node file %s", name),
			"correct it; without the file every NIC that no guardrail protects is open")
	}
	return n, nil
}

// ParseNodeFile fails if [ReadNodeFile] would not accept the text.
func ParseNodeFile(text []byte) (*NodeFile, error) {
	n := &NodeFile{}
	return n, n.parse(text)
}

func checkOwner(info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others than its administrator may write to it (mode %04o)", info.Mode().Perm())
	}
	return nil
}

func (n *NodeFile) parse(data []byte) error {
	var keys map[string]yaml.Node
	if err := yaml.Unmarshal(data, &keys); err != nil {
		return err
	}
	// An editor that is just saving leaves an empty file for an instant; and
	// the decoder takes a key without a value for a missing one.
	if len(keys) == 0 {
		return errors.New("it is empty")
	}
	for key, value := range keys {
		if value.Kind != yaml.SequenceNode {
			return fmt.Errorf("line %d: %q must be a list, [] if nothing is open", value.Line, key)
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

// check refuses patterns that match nothing or cannot be understood.
func (n *NodeFile) check() error {
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
	return nil
}

func checkPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return fmt.Errorf("%q: %w", pattern, err)
	}
	return nil
}

// OpensNIC reports whether networks may use the NIC with these names, at this PCI
// address, with this driver; what it does not have is empty.
func (n *NodeFile) OpensNIC(names []string, pci, driver string) bool {
	if n == nil || n.NICs == nil {
		return true
	}
	return slices.ContainsFunc(n.NICs, func(p NICPattern) bool {
		return fits(p.Name, names...) && fits(p.PCI, pci) && fits(p.Driver, driver)
	})
}

// fits reports whether one of the texts matches. No pattern fits all.
func fits(pattern string, texts ...string) bool {
	return pattern == "" || slices.ContainsFunc(texts, func(text string) bool {
		ok, err := path.Match(pattern, text)
		return ok && err == nil
	})
}

// OpensOverride reports whether networks may override the guardrail.
func (n *NodeFile) OpensOverride(key string) bool {
	return n == nil || n.Allow == nil || slices.Contains(n.Allow, key)
}
