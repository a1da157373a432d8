package nodefile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// StateDirsFile is the name of the file that has the [StateDirs] of rail-agent. It is in the main
// state directory of rail-agent. Plugins read the file in [DefaultStateDir].
const StateDirsFile = "state-dirs.json"

// StateDirs lists the state directories that the rail-agent of the node keeps.
type StateDirs struct {
	// Kept has the directories that networks may use. rail-agent ends the attachments there
	// whose pods are gone.
	Kept []string `json:"kept"`
	// Former has the directories that networks may no longer use. Attachments in them can still
	// be checked and ended.
	Former []string `json:"former,omitempty"`
}

// Text returns the content of the file.
func (s StateDirs) Text() []byte {
	text, _ := json.MarshalIndent(s, "", "  ") // strings only
	return append(text, '\n')
}

// ReadStateDirs returns the list of the rail-agent whose main state directory is dir. It returns
// nil if there is no list.
func ReadStateDirs(dir string) (*StateDirs, error) {
	name := filepath.Join(dir, StateDirsFile)
	data, info, err := readFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	s := &StateDirs{}
	if err == nil {
		err = errors.Join(checkOwner(info), json.Unmarshal(data, s))
	}
	if err != nil {
		return nil, failure.From(err, failure.IO, "list of state directories %s", name).
			Cure("rail-agent writes it again within a minute; if the node has no rail-agent, remove the file")
	}
	return s, nil
}

// mainStateDir is the directory that has the list. Tests use another directory.
var mainStateDir = DefaultStateDir

// places has the names of the directories that attachments leave in a state directory. The last
// name is that of the store for the addresses of a cluster.
var places = []string{"attachments", "ipam", "ipam-kubernetes"}

// isInUse reports whether dir is or was used as a state directory.
func isInUse(dir string) bool {
	return slices.ContainsFunc(places, func(name string) bool {
		info, err := os.Lstat(filepath.Join(dir, name))
		return err == nil && info.IsDir()
	})
}

// RealStateDir returns the path with all symbolic links resolved. This is needed because /var/run
// is a symbolic link on most systems. If the path does not exist, RealStateDir resolves the part
// that exists.
func RealStateDir(name string) string {
	name = filepath.Clean(name)
	for dir, rest := name, ""; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
	return name
}

// IsBelow reports whether the path name is below dir. Both must be without symbolic links.
func IsBelow(name, dir string) bool { return strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/") }

// has reports whether one of dirs is the directory real. real must be without symbolic links.
func has(dirs []string, real string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return RealStateDir(dir) == real })
}

// checkStateDir returns an error if networks may not keep their state in the directory name, which
// is not the default directory. They may not if the node file does not permit the directory, or if
// the directory is inside another state directory, because its files would be among the files of
// rail-cni. On a node with rail-agent, networks may by default use the directories that rail-agent
// keeps.
func (n *File) checkStateDir(name string) error {
	if isNodeFile(name) || hasParent(name) {
		return n.closed(KeyStateDir, name)
	}
	list, err := ReadStateDirs(mainStateDir)
	if err != nil {
		return err
	}
	kept := []string{DefaultStateDir}
	if list != nil {
		kept = append(kept, list.Kept...)
	}
	real := RealStateDir(name)
	for _, dir := range kept {
		if resolved := RealStateDir(dir); real != resolved && IsBelow(real, resolved) {
			return failure.From(ErrClosed, failure.InvalidConfig, "%q: %q is in the state directory %s", KeyStateDir, name, dir).
				Cure("use a directory outside of that directory, or remove the key")
		}
	}
	switch {
	case n.ListsPaths():
		if !matchesPath(n.Paths, name) {
			return n.closed(KeyStateDir, name)
		}
	case list != nil:
		if !has(kept, real) {
			return failure.From(ErrClosed, failure.InvalidConfig, "%q: %q is not kept by this node's rail-agent", KeyStateDir, name).
				Cure("remove the key, add the directory to those of rail-agent (--state-dir, the chart's stateDirs), or add it to \"paths\" in %s", n.place())
		}
	case !matchesPath(defaultPaths[KeyStateDir], name):
		return n.closed(KeyStateDir, name)
	}
	return nil
}

// Ending returns the permissions for CHECK, DEL and GC. They may also use a state directory that
// ADD may no longer use, if an attachment may have been made in the directory while it was
// permitted. A directory in which other users may have written is never permitted, because records
// name programs that are run.
func (n *File) Ending() *File {
	if n == nil {
		return &File{ending: true}
	}
	ending := *n
	ending.ending = true
	return &ending
}

// wasOpen reports whether an attachment may have been made in the state directory.
func (n *File) wasOpen(name string) bool {
	if isNodeFile(name) || hasParent(name) || !isInUse(name) {
		return false
	}
	patterns := defaultPaths[KeyStateDir] // permitted before the node had a rail-agent
	if n.ListsPaths() {
		patterns = n.Paths
	}
	if matchesPath(patterns, name) {
		return true
	}
	list, err := ReadStateDirs(mainStateDir)
	return err == nil && list != nil && has(slices.Concat(list.Kept, list.Former), RealStateDir(name))
}
