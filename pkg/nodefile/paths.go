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

// DefaultStateDir is the directory in which the plugins keep their records if the key "stateDir" is
// empty.
const DefaultStateDir = "/run/rail-cni"

// StateDir returns the state directory for the value of the key "stateDir" in a network. The value may be empty.
func StateDir(configured string) (string, error) {
	if configured == "" {
		return DefaultStateDir, nil
	}
	if !filepath.IsAbs(configured) {
		return "", failure.New(failure.InvalidConfig, `"stateDir": %q is not an absolute path`, configured).
			Cure("give an absolute path, the same in every network of the node")
	}
	return filepath.Clean(configured), nil
}

// These are the keys of a configuration that name a path of the host.
const (
	KeyStateDir   = "stateDir" // all plugins have this key; only whereabouts has the other keys
	KeyKubeconfig = "kubeconfig"
	KeyFlatFile   = "configuration_path"
	KeyLogFile    = "log_file"
)

// ErrClosed is wrapped by the error that the node file forbids a path which a configuration names.
var ErrClosed = errors.New("not open to networks on this node")

// confDirs lists the directories in which runtimes keep CNI configurations. The installer of
// whereabouts makes its own directory in them. Sources: whereabouts v0.9.4, script/lib.sh and
// pkg/config; OpenShift's multus and whereabouts DaemonSets; docs.k3s.io "Multus and IPAM plugins";
// MicroK8s' addon multus. The owner of these directories may be a system user other than root (in
// Kubespray it is "kube").
var confDirs = []string{
	"/etc/cni/net.d", "/etc/kubernetes/cni/net.d", "/host/etc/cni/net.d",
	"/run/multus/cni/net.d", "/var/run/multus/cni/net.d",
	"/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/lib/rancher/rke2/agent/etc/cni/net.d",
	"/var/snap/microk8s/*/args/cni-network",
}

// defaultPaths has the patterns of the paths that are permitted if the key "paths" is missing. They
// are listed by the key of a configuration that may name them. Neither a pod nor the author of a
// network can write to any of these paths, whatever the user ID is.
var defaultPaths = map[string][]string{
	KeyStateDir:   {"/run/rail-cni*", "/var/run/rail-cni*", "/var/lib/rail-cni*"},
	KeyKubeconfig: below(confDirs, "whereabouts*", "whereabouts.d/*"),
	KeyFlatFile:   below(confDirs, "whereabouts*", "whereabouts.d/*"),
	KeyLogFile:    {"/tmp/whereabouts*", "/var/log/whereabouts*", "/var/log/whereabouts/*"},
}

// credentialPaths has the patterns of the files that a kubeconfig which is permitted by default may
// name, in addition to the files in its own directories. They are the certificates, keys and tokens
// of kubeadm, Kubespray, OpenShift, k3s, RKE2, MicroK8s, the kubelet and distributions.
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

// OpensPath reports whether a configuration may name the path name under key. If the node file has
// the list "paths", one of its patterns must match the path. Without that list the paths of
// rail-cni, of whereabouts and of its installers are permitted. On a node with rail-agent, of the
// state directories only those that rail-agent keeps are permitted then.
//
// "" and [DefaultStateDir] are always permitted. A directory inside another state directory is
// never permitted. The paths of node files are never permitted either, because on a node without a
// node file a state directory there would make every ADD fail.
func (n *File) OpensPath(key, name string) bool { return n.CheckPath(key, name) == nil }

// isNodeFile reports whether the path is the path of a node file, or below such a path.
func isNodeFile(name string) bool {
	clean := filepath.Clean(name)
	return slices.ContainsFunc([]string{InstalledPath, DefaultPath}, func(file string) bool { return clean == file || IsBelow(clean, file) })
}

// hasParent reports whether the path contains "..". Such a path is not safe, because after a
// symbolic link ".." leads to another directory than path.Clean assumes.
func hasParent(name string) bool { return slices.Contains(strings.Split(name, "/"), "..") }

// ListsPaths reports whether the node file has a list of paths, which replaces the usual paths.
func (n *File) ListsPaths() bool { return n != nil && n.Paths != nil }

// matchesPath reports whether one of the patterns matches the path. Patterns are those of
// [path.Match], so "*" does not match "/". In addition, a pattern that ends in "/**" matches
// everything below that directory.
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

// CheckPath returns an error that wraps [ErrClosed] if the configuration may not name the path
// under key. It also returns an error if the list of state directories cannot be read. See
// [File.OpensPath].
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

// closed returns the error for a path that is not permitted.
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

// VetKubeconfig returns an error that wraps [ErrClosed] if networks may not use the kubeconfig. If
// vet is not nil, the caller must call vet with the files that the kubeconfig names. This check is
// needed because the author of a kubeconfig decides which server gets the content of a token file.
//
// Which files a kubeconfig may name depends on the kubeconfig. If a flat file names the kubeconfig,
// it belongs to the administrator and may name any file. If "paths" permits the kubeconfig and only
// root can have written it, it may name any file too. A kubeconfig that is permitted by default may
// name files in its own directories and in the usual directories of credentials.
func (n *File) VetKubeconfig(name string, flat FlatFiles) (vet func(files []string) error, err error) {
	if name == "" {
		return nil, nil // without a kubeconfig, the service account of a pod is used
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

// roots returns an error if a user other than root can have written the file at the path, or if the
// file is not a regular file. A missing file is not an error.
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
	// Names reports whether the file names the kubeconfig. It returns false for a file that is
	// missing or cannot be read.
	Names func(file, kubeconfig string) bool
}

// name reports whether one of the flat files names the kubeconfig. A flat file that a network named
// counts as the administrator's only if nobody but root can have written it, because "paths" may
// permit directories of logs.
func (f FlatFiles) name(kubeconfig string) bool {
	return slices.ContainsFunc(f.Paths, func(file string) bool {
		return (matchesPath(defaultPaths[KeyFlatFile], file) || roots(file) == nil) && f.Names(file, kubeconfig)
	})
}
