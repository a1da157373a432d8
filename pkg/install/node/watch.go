package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/notify"
)

// DefaultPlugins are the plugins that are installed by default. ipoib, sriov and ib-sriov are not among them, because
// NVIDIA's network operator and the SR-IOV network operator install plugins with these names. An upgrade of rail-cni
// must not replace those plugins.
var DefaultPlugins = []string{"host-device", "macvlan", "rdma", "whereabouts"}

// PluginNames are the names of all plugins. The names of installed plugins may have a prefix before
// these names.
var PluginNames = append(slices.Clone(DefaultPlugins), "ipoib", "sriov", "ib-sriov")

// PluginMode is the mode of an installed plugin.
const PluginMode fs.FileMode = 0o755

// watchEvery is the time between two comparisons if no change is noticed.
const watchEvery = 30 * time.Second

// settleTime is how long a directory must be unchanged before its files are compared, because an
// installer may still be writing files.
const settleTime = 300 * time.Millisecond

// Another installer may replace each restored plugin again. So a plugin is
// restored only maxRestores times in restoresPer.
const (
	maxRestores = 3
	restoresPer = time.Minute
)

// These are the problems that an installed plugin can have.
const (
	missing = "missing"
	foreign = "another program"
)

// errNoFile is the error if the path is a directory, a FIFO or a device.
var errNoFile = errors.New("not a regular file")

// Watcher checks that the plugins in the CNI directories are the same as the plugins in Own. It
// reports plugins that another program has replaced or removed. Without a Record, every directory
// must have every plugin.
type Watcher struct {
	Plugins
	Restore bool         // true to restore a plugin, false to report only
	Version string       // of the plugins
	Dirs    *notify.Dirs // the process's watcher of directories, which reports changes in the CNI directories

	reporter *component.Reporter
	names    []string // the plugins in Own that are to be installed

	mu       sync.Mutex
	found    []local.Binary
	restored uint64 // the number of restored plugins
	sums     map[string]sum
	tries    map[string]restores // by the path of the plugin
}

// restores counts the restorations of a plugin in the current time span.
type restores struct {
	since time.Time
	count int
}

// sum is the checksum of a file, with the state of the file at that time. If the state has changed,
// the file may have changed.
type sum struct {
	stat   [4]int64 // inode, size, mtime, ctime
	sha256 []byte
}

// Component returns the watcher as a component of the agent. It returns an error if Own has no
// plugins.
func (b *Watcher) Component(tell func(component.Notice)) (component.Component, error) {
	b.sums, b.tries = map[string]sum{}, map[string]restores{}
	b.reporter = component.NewReporter("plugins", b.Log, tell)
	c := component.Component{Name: "plugins", Reporter: b.reporter, Collect: b.collect, Status: func() map[string]any { return map[string]any{"binaries": b.states()} }}
	if len(b.BinDirs) == 0 {
		return c, nil
	}
	for _, name := range b.Names {
		if info, err := os.Stat(filepath.Join(b.Own, name)); err == nil && info.Mode().IsRegular() {
			b.names = append(b.names, name)
		}
	}
	if len(b.names) == 0 {
		return c, failure.New(failure.InvalidConfig, "%s has no plugins to compare with those in the CNI directories", b.Own).
			Cure("name the directory of the plugins with --own, or leave out --cni-bin")
	}
	c.Run = b.run
	return c, nil
}

// run compares the plugins at the start, after each change, and after watchEvery without a change.
func (b *Watcher) run(ctx context.Context) {
	changed := component.NewTrigger()
	dirs := b.Dirs.Subscribe(changed.Fire)
	defer dirs.Close()
	loop := component.Loop{Reporter: b.reporter, Trigger: changed, Settle: settleTime, Do: func(ctx context.Context) time.Time {
		for _, dir := range b.BinDirs {
			dirs.Watch(dir)
		}
		b.compare(ctx)
		return time.Now().Add(watchEvery)
	}}
	loop.Run(ctx)
}

// collect sends the watcher's metrics.
func (b *Watcher) collect(out component.Metrics) {
	b.mu.Lock()
	restored := b.restored
	b.mu.Unlock()
	out.Counter("rail_cni_plugins_restored_total", "Plugins that the agent put back into a CNI directory.", float64(restored))
	for _, f := range b.states() {
		out.Gauge("rail_cni_plugin_matches", "Whether the plugin in the CNI directory is the agent's.", component.Bool(f.State == ""), "path", f.Path)
	}
}

func (b *Watcher) states() []local.Binary {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.found)
}

// compare compares each plugin in each directory, and reports changes.
func (b *Watcher) compare(ctx context.Context) {
	before := map[string]string{}
	for _, f := range b.states() {
		before[f.Path] = f.State
	}
	installed, err := b.installed()
	if err != nil {
		b.Log.Warn("cannot read the record of installed plugins", "err", err)
		return
	}
	var found []local.Binary
	for _, dir := range b.BinDirs {
		for _, name := range b.names {
			path := filepath.Join(dir, b.Prefix+name)
			if !installed(path) {
				continue
			}
			state := b.stateOf(path, name)
			if state != "" && b.Restore {
				state = b.restore(ctx, path, name, state)
			}
			found = append(found, local.Binary{Path: path, State: state})
			switch state {
			case before[path]:
			case "":
				b.reporter.Report(component.Notice{Reason: "PluginMatches", Summary: "plugin matches again", Message: path + " matches the agent's plugin again"})
			default:
				b.reporter.Report(component.Notice{
					Reason: "PluginReplaced", Summary: "plugin was replaced", Message: fmt.Sprintf("%s is not the plugin of rail-cni %s: %s", path, b.Version, state), Warning: true,
				})
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.found = found
}

// installed returns a function that reports whether there should be a plugin at a path. Without a
// record, there should be one at every path.
func (b *Watcher) installed() (func(path string) bool, error) {
	if b.Record == nil {
		return func(string) bool { return true }, nil
	}
	entries, err := b.Record.Entries()
	return func(path string) bool {
		return slices.ContainsFunc(entries, func(e *install.Entry) bool { return e.Path == path })
	}, err
}

// stateOf returns the problem of an installed plugin. It returns "" if there is none.
func (b *Watcher) stateOf(path, name string) string {
	want, err := b.sum(filepath.Join(b.Own, name))
	if err != nil {
		return "cannot be compared: " + err.Error()
	}
	have, err := b.sum(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing
	case errors.Is(err, errNoFile):
		return foreign
	case err != nil:
		return err.Error()
	case !bytes.Equal(have, want):
		return foreign
	}
	return ""
}

// sum returns the SHA-256 sum of a file. It reads the file only if the file has changed.
func (b *Watcher) sum(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // non-blocking, because opening a FIFO would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNoFile
	}
	stat := [4]int64{int64(st.Ino), st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
	if s, ok := b.sums[path]; ok && s.stat == stat {
		return s.sha256, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	b.sums[path] = sum{stat, h.Sum(nil)}
	return b.sums[path].sha256, nil
}

// restore atomically replaces the file at path by the agent's copy. It returns the remaining
// problem, or "".
func (b *Watcher) restore(ctx context.Context, path, name, wrong string) string {
	tries := b.tries[path]
	if time.Since(tries.since) > restoresPer {
		tries = restores{since: time.Now()}
	}
	if tries.count == maxRestores {
		return wrong + ", and something puts it there again and again"
	}
	tries.count++
	b.tries[path] = tries
	if err := b.put(ctx, filepath.Join(b.Own, name), path); err != nil {
		return fmt.Sprintf("%s, and cannot be restored: %v", wrong, err)
	}
	b.mu.Lock()
	b.restored++
	b.mu.Unlock()
	b.reporter.Report(component.Notice{
		Reason: "PluginRestored", Summary: "plugin was restored", Message: fmt.Sprintf("%s was %s, and is rail-cni's %s again", path, wrong, b.Version), Warning: true,
	})
	return b.stateOf(path, name)
}

// put installs a plugin in a CNI directory. With a record, it keeps the backup of the earlier file,
// and does not install a plugin whose path is no longer in the record.
func (b *Watcher) put(ctx context.Context, from, to string) error {
	if b.Record == nil {
		return install.Copy(from, to, PluginMode)
	}
	_, err := b.Record.PutBack(ctx, install.File{Path: to, Source: from, Mode: PluginMode})
	return err
}
