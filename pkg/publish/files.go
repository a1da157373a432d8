package publish

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/safepath"
)

// Containers mount the directory of a pod, even containers that run as other users. So nothing in
// it is secret, and only root may write.
const (
	openDir  = 0o755
	openFile = 0o644
)

// podsDir is the directory below the state directory that contains the directories of the pods.
const podsDir = "pods"

// dirName matches a valid name of a pod's directory: a UID, or a container ID.
var dirName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// nameOf returns the name of the directory for the record's pod. That is the pod's UID. If the
// runtime gave no UID that can be a file name, it is the container ID. If that cannot be a file
// name either, nameOf returns "".
func nameOf(r *ledger.Record) string {
	if r.Pod != nil && dirName.MatchString(r.Pod.UID) {
		return r.Pod.UID
	}
	if dirName.MatchString(r.ContainerID) {
		return r.ContainerID
	}
	return ""
}

// files is the directory that contains the directories of the pods.
type files struct {
	root *os.Root
	path string
}

// openFiles opens the directory that contains the directories of the pods. It makes the directory
// if it is missing.
func openFiles(stateDir string) (*files, error) {
	path := filepath.Join(stateDir, podsDir)
	if err := safepath.Check(stateDir); err != nil {
		return nil, failure.Wrap(err, failure.IO, "state directory %s: other users could forge rail information", stateDir)
	}
	if err := os.Mkdir(path, openDir); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, failure.Wrap(err, failure.IO, "directory of rail information")
	}
	if err := safepath.Check(path); err != nil {
		return nil, failure.Wrap(err, failure.IO, "%s: other users could forge rail information", path)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, failure.Wrap(err, failure.IO, "directory of rail information")
	}
	// The umask must not apply, because pods read the directory.
	return &files{root: root, path: path}, root.Chmod(".", openDir)
}

func (f *files) close() { _ = f.root.Close() }

// dir returns the path of a pod's directory.
func (f *files) dir(name string) string { return filepath.Join(f.path, name) }

// write replaces those files of a pod that differ. It replaces each file by a rename in the
// directory that containers have mounted. It replaces rails.json last: a reader that has seen the
// generation in rails.json finds the other files at least as new.
func (f *files) write(name string, r *railinfo.Rails, s railinfo.Settings, m railinfo.Machine) error {
	if err := f.root.Mkdir(name, openDir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := f.root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Chmod(".", openDir); err != nil {
		return err
	}
	for _, file := range []struct {
		name string
		data []byte
	}{{railinfo.NCCLFile, r.NCCLConf(s)}, {railinfo.EnvFile, r.EnvSh(s)}, {railinfo.TopoFile, r.TopoXML(m)}, {railinfo.RailsFile, r.JSON()}} {
		if err := replace(dir, file.name, file.data); err != nil {
			return err
		}
	}
	return nil
}

// replace writes data to the file if the file differs. If data is nil, replace removes the file.
func replace(dir *os.Root, name string, data []byte) error {
	if data == nil {
		if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if info, err := dir.Lstat(name); err == nil && info.Mode() == openFile {
		if have, err := dir.ReadFile(name); err == nil && bytes.Equal(have, data) {
			return nil
		}
	}
	temp := fmt.Sprintf(".%016x", rand.Uint64())
	err := dir.WriteFile(temp, data, openFile)
	if err == nil {
		err = dir.Chmod(temp, openFile)
	}
	if err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		_ = dir.Remove(temp)
	}
	return err
}

// maxFile bounds the size of a file that is read, in bytes.
const maxFile = 1 << 20

// read returns the document in the pod's directory, or nil if there is none that can be read.
func (f *files) read(name string) *railinfo.Rails {
	path := filepath.Join(name, railinfo.RailsFile)
	// A privileged pod may have replaced the file, for example by a FIFO.
	if info, err := f.root.Lstat(path); err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil
	}
	data, err := f.root.ReadFile(path)
	if err != nil {
		return nil
	}
	r := &railinfo.Rails{}
	if json.Unmarshal(data, r) != nil || r.Schema != railinfo.Schema {
		return nil
	}
	return r
}

// remove removes a pod's directory. A container that has mounted the directory still has it, but
// the directory is empty.
func (f *files) remove(name string) error { return f.root.RemoveAll(name) }

// names returns the names of the pods' directories. These are the directories that contain only
// files of a pod, and links, which nobody else needs. Any other directory does not belong to the
// publisher, and is not removed.
func (f *files) names() ([]string, error) {
	entries, err := fs.ReadDir(f.root.FS(), ".")
	var names []string
	for _, e := range entries {
		if e.Type() == fs.ModeSymlink || e.IsDir() && f.isOwn(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// isOwn reports whether the directory contains only files of a pod. A writer that was killed may
// have left it without rails.json.
func (f *files) isOwn(name string) bool {
	inside, err := fs.ReadDir(f.root.FS(), name)
	return err == nil && len(inside) > 0 && !slices.ContainsFunc(inside, func(e fs.DirEntry) bool {
		return !strings.HasPrefix(e.Name(), ".") && !slices.Contains([]string{railinfo.NCCLFile, railinfo.EnvFile, railinfo.TopoFile, railinfo.RailsFile}, e.Name())
	})
}

// clean removes what killed writers left in a pod's directory.
func (f *files) clean(name string) {
	inside, _ := fs.ReadDir(f.root.FS(), name) // there may be none
	for _, file := range inside {
		if strings.HasPrefix(file.Name(), ".") {
			_ = f.remove(filepath.Join(name, file.Name()))
		}
	}
}
