package nodefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/safepath"
)

// DefaultStateDir is the directory of the plugins' records if the key
// "stateDir" is empty.
const DefaultStateDir = "/run/rail-cni"

// The keys of a configuration that name a path of the host.
const (
	KeyStateDir   = "stateDir" // of all plugins; the others are of whereabouts
	KeyKubeconfig = "kubeconfig"
	KeyFlatFile   = "configuration_path"
	KeyLogFile    = "log_file"
)

// ErrClosed is wrapped if the node file forbids a path that a configuration
// names.
var ErrClosed = errors.New("not open to networks on this node")

// confDirs are the directories of runtimes' CNI configurations, in which
// whereabouts' installer makes its own. Sources: whereabouts v0.9.4,
// script/lib.sh and pkg/config; OpenShift's multus and whereabouts DaemonSets;
// docs.k3s.io "Multus and IPAM plugins"; MicroK8s' addon multus. Their owner
// may be a system user other than root (Kubespray's is "kube").
var confDirs = []string{
	"/etc/cni/net.d", "/etc/kubernetes/cni/net.d", "/host/etc/cni/net.d",
	"/run/multus/cni/net.d", "/var/run/multus/cni/net.d",
	"/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/lib/rancher/rke2/agent/etc/cni/net.d",
	"/var/snap/microk8s/*/args/cni-network",
}

// defaultPaths are the patterns of the paths that are permitted without the key
// "paths", by the key that names them. No pod and no author of a network can
// write to any of them, with any user ID.
var defaultPaths = map[string][]string{
	KeyStateDir:   {"/run/rail-cni*", "/var/run/rail-cni*", "/var/lib/rail-cni*"},
	KeyKubeconfig: below(confDirs, "whereabouts*", "whereabouts.d/*"),
	KeyFlatFile:   below(confDirs, "whereabouts*", "whereabouts.d/*"),
	KeyLogFile:    {"/tmp/whereabouts*", "/var/log/whereabouts*", "/var/log/whereabouts/*"},
}

// credentialPaths are the patterns of the files that a kubeconfig permitted by
// default may name, beside those in its own directories: the certificates, keys
// and tokens of kubeadm, Kubespray, OpenShift, k3s, RKE2, MicroK8s, the kubelet
// and distributions.
var credentialPaths = []string{
	"/var/run/secrets/kubernetes.io/**", "/run/secrets/kubernetes.io/**",
	"/etc/kubernetes/**", "/var/lib/kubelet/pki/*", "/etc/ssl/**", "/etc/pki/**",
	"/var/lib/rancher/k3s/agent/*", "/var/lib/rancher/rke2/agent/*", "/var/snap/microk8s/*/certs/*",
}

func below(dirs []string, names ...string) []string {
	var all []string
	for _, dir := range dirs {
		for _, name := range names {
			all = append(all, dir+"/"+name)
		}
	}
	return all
}

// OpensPath reports whether a configuration may name the path under key: a
// pattern of "paths" must match it. Without that list the paths of rail-cni,
// whereabouts and its installers are permitted; of state directories, on a node
// with rail-agent, those that it keeps. "" and [DefaultStateDir] are always
// permitted. A directory in another state directory is never permitted, and the
// paths of node files are not: on a node without a node file, a state directory
// there would make every ADD fail.
func (n *File) OpensPath(key, name string) bool { return n.CheckPath(key, name) == nil }

// isNodeFile reports whether the path is that of a node file, or below it.
func isNodeFile(name string) bool {
	clean := filepath.Clean(name)
	return slices.ContainsFunc([]string{InstalledPath, DefaultPath}, func(file string) bool { return clean == file || IsBelow(clean, file) })
}

// hasParent reports whether the path has "..": after a symbolic link that leads to
// another directory than path.Clean's.
func hasParent(name string) bool { return slices.Contains(strings.Split(name, "/"), "..") }

// ListsPaths reports whether the node file has a list of paths, in place of the usual ones.
func (n *File) ListsPaths() bool { return n != nil && n.Paths != nil }

// matchesPath reports whether one of the patterns matches the path, as
// [path.Match] does: "*" matches no "/". A pattern that ends in "/**" matches
// everything below.
func matchesPath(patterns []string, name string) bool {
	if hasParent(name) {
		return false
	}
	name = filepath.Clean(name)
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		dir, deep := strings.CutSuffix(pattern, "/**")
		if !deep {
			return fits(pattern, name)
		}
		parts, depth := strings.Split(name, "/"), strings.Count(dir, "/")+1
		if len(parts) <= depth || name == "/" {
			return false
		}
		ok, err := path.Match(dir, strings.Join(parts[:depth], "/"))
		return ok && err == nil
	})
}

// CheckPath returns an error that wraps [ErrClosed] if the configuration may
// not name the path under key. A list of state directories that cannot be read is
// an error too. See [File.OpensPath].
func (n *File) CheckPath(key, name string) error {
	patterns := defaultPaths[key]
	if n.ListsPaths() {
		patterns = n.Paths
	}
	switch {
	case name == "" || name == DefaultStateDir:
		return nil
	case key == KeyStateDir:
		err := n.checkStateDir(name)
		if err != nil && n != nil && n.ending && n.wasOpen(name) {
			return nil
		}
		return err
	case isNodeFile(name) || !matchesPath(patterns, name):
		return n.closed(key, name)
	}
	return nil
}

// closed returns the error for a path that is not open.
func (n *File) closed(key, name string) error {
	return failure.From(ErrClosed, failure.InvalidConfig, "%q: %q", key, name).
		Cure(`leave the key out, or add the path to "paths" in %s`, n.place())
}

// place returns the path of the node file, which may not exist yet.
func (n *File) place() string {
	if n == nil || n.Path == "" {
		return Path()
	}
	return n.Path
}

// VetKubeconfig returns an error that wraps [ErrClosed] if networks may not use
// the kubeconfig. vet, unless nil, must be called with the files that the
// kubeconfig names: its author decides which server gets the content of a token
// file.
//
// A kubeconfig that a flat file names is the administrator's, and may name any
// file. So may one that "paths" permits, if only root can have written it. One
// that is permitted by default may name files in its own directories and in the
// usual directories of credentials.
func (n *File) VetKubeconfig(name string, flat FlatFiles) (vet func(files []string) error, err error) {
	if name == "" {
		return nil, nil // a pod's service account
	}
	err = n.CheckPath(KeyKubeconfig, name)
	if err == nil && n.ListsPaths() && !matchesPath(defaultPaths[KeyKubeconfig], name) {
		err = roots(name)
	}
	if err != nil {
		if flat.name(name) {
			return nil, nil
		}
		return nil, err
	}
	if n.ListsPaths() {
		return nil, nil
	}
	return func(files []string) error {
		open := slices.Concat(defaultPaths[KeyKubeconfig], credentialPaths)
		closed := slices.IndexFunc(files, func(file string) bool { return !matchesPath(open, file) })
		if closed < 0 || flat.name(name) {
			return nil
		}
		return failure.From(ErrClosed, failure.InvalidConfig, "kubeconfig %s: the file %s", name, files[closed]).
			Cure(`name the kubeconfig in whereabouts' flat file, or add its path to "paths" in %s`, n.place())
	}, nil
}

// roots returns an error if a user other than root can have written the file at
// the path, or if it is not a regular file. A missing file is not an error.
func roots(name string) error {
	err := safepath.Check(name)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(name); err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("it is not a regular file but %s", info.Mode().Type())
		}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return failure.Wrap(fmt.Errorf("%w: %w", ErrClosed, err), failure.InvalidConfig, "kubeconfig %s", name)
}

// FlatFiles is a set of flat files of whereabouts.
type FlatFiles struct {
	Paths []string
	// Names reports whether the file names the kubeconfig. A file that is missing or cannot be
	// read names none.
	Names func(file, kubeconfig string) bool
}

// name reports whether one of the flat files names the kubeconfig. A flat file
// that a network named is the administrator's only if only root can have
// written it: "paths" may permit directories of logs.
func (f FlatFiles) name(kubeconfig string) bool {
	return slices.ContainsFunc(f.Paths, func(file string) bool {
		return (matchesPath(defaultPaths[KeyFlatFile], file) || roots(file) == nil) && f.Names(file, kubeconfig)
	})
}
