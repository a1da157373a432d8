package keeper

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// MainStateDir returns the state directory that has the list of all state directories. This is the
// default directory of the plugins, where they look for the list. If dirs does not contain the
// default directory, it is the first of dirs.
func MainStateDir(dirs []string) string {
	if slices.Contains(dirs, nodefile.DefaultStateDir) {
		return nodefile.DefaultStateDir
	}
	return dirs[0]
}

// KeptStateDirs returns the list of state directories for the plugins, and the directories to keep.
// The directories to keep are the named directories, and those directories of the previous list
// that still have records, because the attachments there must end too. A directory that is inside
// another one is kept, but networks cannot use it.
func KeptStateDirs(named []string, log *slog.Logger) (nodefile.StateDirs, []string) {
	var list nodefile.StateDirs
	keep := slices.Clone(named)
	for _, dir := range named {
		if outer := outerOf(dir, named); outer != "" {
			log.Warn("state directory is inside another one, so networks cannot use it", "stateDir", dir, "outer", outer)
			list.Former = append(list.Former, dir)
			continue
		}
		list.Kept = append(list.Kept, dir)
	}
	before, err := nodefile.ReadStateDirs(MainStateDir(named))
	if before == nil || err != nil {
		return list, keep // the caller writes a new list
	}
	for _, dir := range append(before.Kept, before.Former...) {
		if slices.Contains(list.Kept, dir) || slices.Contains(list.Former, dir) || !filepath.IsAbs(dir) {
			continue
		}
		switch has, err := hasRecords(dir); {
		case has:
			log.Warn("former state directory still has records, so it is kept until their attachments have ended", "stateDir", dir)
			keep = append(keep, dir)
		case err == nil:
			continue // no record is left
		}
		list.Former = append(list.Former, dir) // the directory may exist but not be visible here
	}
	return list, keep
}

// outerOf returns the directory in all that contains dir, or "" if none contains dir.
func outerOf(dir string, all []string) string {
	real := nodefile.RealStateDir(dir)
	i := slices.IndexFunc(all, func(dir string) bool { return nodefile.IsBelow(real, nodefile.RealStateDir(dir)) })
	if i < 0 {
		return ""
	}
	return all[i]
}

// hasRecords reports whether the state directory has a record. If the directory is missing,
// hasRecords returns an error, because the directory may exist but not be mounted here.
func hasRecords(dir string) (bool, error) {
	if _, err := os.Stat(dir); err != nil {
		return false, err
	}
	if !ledger.Exists(dir) {
		return false, nil
	}
	entries, err := os.ReadDir(filepath.Join(dir, "attachments"))
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".json") }), err
}

// keepFiles writes the files that the plugins read from the state directory, if they are missing,
// out of date or unreadable. It reports a file that was unreadable.
func (k *stateDir) keepFiles() {
	var errs []error
	first := k.lastScan().IsZero()
	if ip, err := k.node.Ledger.NodeIP(); k.options.NodeIP.IsValid() && (err != nil || ip != k.options.NodeIP) {
		if err != nil {
			k.Report(component.Notice{Reason: "NodeFileUnreadable", Summary: "file of the node IP was unreadable, and was written again", Message: err.Error(), Warning: true})
		}
		errs = append(errs, k.node.Ledger.PutNodeIP(k.options.NodeIP))
	}
	dir := k.node.Ledger.Dir()
	if len(k.options.StateDirs) > 0 && dir == MainStateDir(k.options.StateDirs) {
		list, err := nodefile.ReadStateDirs(dir)
		switch {
		case k.options.Uninstalling:
			errs = append(errs, RemoveStateDirs(dir))
		case err != nil || list == nil || !slices.Equal(list.Kept, k.options.List.Kept) || !slices.Equal(list.Former, k.options.List.Former):
			if err != nil && !first {
				k.Report(component.Notice{Reason: "NodeFileUnreadable", Summary: "list of state directories was unreadable, and was written again", Message: err.Error(), Warning: true})
			}
			errs = append(errs, putStateDirs(dir, k.options.List))
		}
	}
	k.OnceErr("files "+dir, errors.Join(errs...), component.Notice{Reason: "NodeFileNotWritten", Summary: "cannot write the files for the plugins", Warning: true})
}

// putStateDirs writes the list for the plugins.
func putStateDirs(dir string, list nodefile.StateDirs) error {
	d, err := statefile.OpenExisting(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Write(nodefile.StateDirsFile, list.Text())
}

// RemoveStateDirs removes the list of state directories. An agent that leaves the node calls it,
// because no directory is kept then.
func RemoveStateDirs(dir string) error {
	d, err := statefile.OpenExisting(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Remove(nodefile.StateDirsFile)
}
