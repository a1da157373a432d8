package node

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/credential"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

const (
	// maxTries is the maximum number of tries to back up a plugin that another installer is still
	// writing.
	maxTries = 10

	nodeFileMode = fs.FileMode(0o644)
)

// toolName is the name of the program that is installed in ToolDir.
const toolName = "railctl"

// Plugins are the plugins of a node, and the node file that they read.
type Plugins struct {
	BinDirs  []string // the directories in which the plugins are installed
	Own      string   // the directory from which the plugins are copied
	Names    []string
	Prefix   string // the prefix of the names of the installed plugins
	NodeFile string // the text of the node file, "" for none
	Tool     string // the path of the railctl to install; needed with ToolDir
	ToolDir  string // the directory in which railctl is installed for people, "" for none; a railctl that is already there is not replaced
	Record   *install.Node
	Log      *slog.Logger
}

// Put installs the node file, the plugins and railctl. If inUse returns no users, Put also removes
// installed plugins that are no longer wanted, for example plugins with another prefix.
func (p *Plugins) Put(ctx context.Context, inUse func() []string) error {
	if err := p.putNodeFile(ctx); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, dir := range p.BinDirs {
		for _, name := range p.Names {
			path := filepath.Join(dir, p.Prefix+name)
			wanted[path] = true
			if _, err := p.putProgram(ctx, install.File{Path: path, Source: filepath.Join(p.Own, name)}); err != nil {
				return err
			}
		}
	}
	if p.ToolDir != "" {
		path := filepath.Join(p.ToolDir, toolName)
		wanted[path] = true
		outcome, err := p.putProgram(ctx, install.File{Path: path, Source: p.Tool, Yield: true, Shared: true})
		if err != nil {
			return err
		}
		if outcome == install.Yielded {
			p.Log.Warn("railctl was not installed, because a package or a person put one there", "path", path)
		}
	}
	return p.removeOthers(wanted, inUse)
}

// putProgram installs a plugin or railctl. While another installer is writing the file at the path,
// it tries again.
func (p *Plugins) putProgram(ctx context.Context, file install.File) (outcome install.Outcome, err error) {
	file.Mode = PluginMode
	outcome, err = p.Record.Put(ctx, file)
	for tries := 0; failure.KindOf(err) == failure.TryAgain && tries < maxTries; tries++ {
		outcome, err = p.Record.Put(ctx, file)
	}
	if err == nil {
		p.Log.Info("program was checked", "path", file.Path, "outcome", outcome)
	}
	return outcome, err
}

// removeOthers removes installed plugins that are no longer wanted.
func (p *Plugins) removeOthers(wanted map[string]bool, inUse func() []string) error {
	entries, err := p.Record.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if wanted[e.Path] || !isPlugin(e.Path) {
			continue
		}
		if users := inUse(); len(users) > 0 && filepath.Base(e.Path) != toolName { // no pod needs railctl
			p.Log.Info("plugin is no longer wanted, but stays while pods may need it", "path", e.Path, "users", users)
			continue
		}
		outcome, err := p.Record.Remove(e.Path)
		if err != nil {
			return err
		}
		p.Log.Info("plugin is no longer wanted", "path", e.Path, "outcome", outcome)
	}
	return nil
}

// putNodeFile writes the node file. If there is no text for it, putNodeFile removes the node file
// that it wrote earlier. A node file that rail-agent did not write stays. Call putNodeFile before
// the plugins are installed, because the plugins read the file.
func (p *Plugins) putNodeFile(ctx context.Context) error {
	if hidden() {
		p.Log.Warn("node file is used by the plugins, but is not mounted into the agent's pod", "path", nodefile.DefaultPath)
	}
	path := cmp.Or(os.Getenv(nodefile.PathEnv), nodefile.InstalledPath)
	if p.NodeFile == "" {
		outcome, err := p.Record.Remove(path)
		if outcome != "" {
			p.Log.Info("node file was checked", "path", path, "outcome", outcome)
		}
		return err
	}
	outcome, err := p.Record.Put(ctx, install.File{Path: path, Content: []byte(p.NodeFile + "\n"), Mode: nodeFileMode, Yield: true})
	if err != nil {
		return err
	}
	p.Log.Info("node file was checked", "path", path, "outcome", outcome)
	if holds := nodefile.Path(); holds != path {
		p.Log.Warn("node's own node file overrides --node-file", "path", holds)
	}
	return nil
}

// hidden reports whether the node has its own node file, but the agent does not see it because the
// agent's pod lacks the volume.
func hidden() bool {
	_, err := os.Lstat(nodefile.DefaultPath)
	_, hostErr := os.Lstat("/proc/1/root" + nodefile.DefaultPath)
	return os.Getenv(nodefile.PathEnv) == "" && errors.Is(err, fs.ErrNotExist) && hostErr == nil
}

// isPlugin reports whether a path in the record is a plugin and not a file that plugins read.
func isPlugin(path string) bool {
	return filepath.Base(filepath.Dir(path)) != credential.Dir && filepath.Ext(path) != filepath.Ext(nodefile.InstalledPath)
}

// Remove removes all files of the record and restores the earlier files.
func Remove(record *install.Node, log *slog.Logger) error {
	return remove(record, log, func(string) bool { return true })
}

// remove removes the installed files for which chosen returns true. It begins with the file that
// was installed last, so that a directory is removed after its files.
func remove(record *install.Node, log *slog.Logger, chosen func(path string) bool) error {
	entries, err := record.Entries()
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range slices.Backward(entries) {
		if !chosen(e.Path) {
			continue
		}
		outcome, err := record.Remove(e.Path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		log.Info("file was uninstalled", "path", e.Path, "outcome", outcome)
	}
	return errors.Join(errs...)
}
