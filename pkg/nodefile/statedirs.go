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

// StateDirsFile is the name of rail-agent's [StateDirs] in its main state
// directory. Plugins read that of [DefaultStateDir].
const StateDirsFile = "state-dirs.json"

// StateDirs are the state directories that the node's rail-agent keeps.
type StateDirs struct {
	// Kept are open to networks: what an attachment there leaves behind is ended.
	Kept []string `json:"kept"`
	// Former are no longer open. Attachments in them can be checked and ended.
	Former []string `json:"former,omitempty"`
}

// Text returns the content of the file.
func (s StateDirs) Text() []byte {
	text, _ := json.MarshalIndent(s, "", "  ") // strings only
	return append(text, '\n')
}

// ReadStateDirs reads the list of the agent whose main state directory is dir. It
// returns nil if there is none.
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
			Cure("rail-agent writes it again within a minute; without rail-agent, remove it")
	}
	return s, nil
}

// mainStateDir has the list. Tests have one of their own.
var mainStateDir = DefaultStateDir

// places are the names in a state directory of what an attachment leaves there.
// The last one is of the store of a cluster's addresses.
var places = []string{"attachments", "ipam", "ipam-kubernetes"}

// isInUse reports whether the directory was a state directory before.
func isInUse(dir string) bool {
	return slices.ContainsFunc(places, func(name string) bool {
		info, err := os.Lstat(filepath.Join(dir, name))
		return err == nil && info.IsDir()
	})
}

// RealStateDir returns the path without symbolic links, as /var/run is one on most
// systems. Of a path that does not exist the existing part is resolved.
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

// IsBelow reports whether the path is below dir. Both are without symbolic links.
func IsBelow(name, dir string) bool { return strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/") }

// has reports whether one of the directories is the one with this path, which is
// without symbolic links.
func has(dirs []string, real string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return RealStateDir(dir) == real })
}

// checkStateDir returns an error if networks may not have their state in the
// directory, which is not the default one: if the node file does not open it, or
// if it is in another state directory, where its files would be among those of
// rail-cni. On a node with rail-agent the ones that it keeps are open by default.
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
		if of := RealStateDir(dir); real != of && IsBelow(real, of) {
			return failure.From(ErrClosed, failure.InvalidConfig, "%q: %q is in the state directory %s", KeyStateDir, name, dir).
				Cure("name a directory beside it, or leave the key out")
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
				Cure("leave the key out, give rail-agent the directory (--state-dir, the chart's stateDirs), or add it to \"paths\" in %s", n.place())
		}
	case !matchesPath(defaultPaths[KeyStateDir], name):
		return n.closed(KeyStateDir, name)
	}
	return nil
}

// Ending returns the permissions of CHECK, DEL and GC. They may also use a state
// directory that ADD may not, if an attachment can have been made in it before it
// was closed. A directory that others can have written is never open: records name
// programs.
func (n *File) Ending() *File {
	if n == nil {
		return &File{ending: true}
	}
	ending := *n
	ending.ending = true
	return &ending
}

// wasOpen reports whether an attachment can have been made in the state directory.
func (n *File) wasOpen(name string) bool {
	if isNodeFile(name) || hasParent(name) || !isInUse(name) {
		return false
	}
	patterns := defaultPaths[KeyStateDir] // open before the node had a rail-agent
	if n.ListsPaths() {
		patterns = n.Paths
	}
	if matchesPath(patterns, name) {
		return true
	}
	list, err := ReadStateDirs(mainStateDir)
	return err == nil && list != nil && has(slices.Concat(list.Kept, list.Former), RealStateDir(name))
}
