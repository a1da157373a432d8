package agent

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

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Plugins are the names of the plugins' programs. Installed ones may have a
// prefix.
var Plugins = []string{"host-device", "macvlan", "rdma", "whereabouts"}

// PluginMode is the mode of an installed plugin.
const PluginMode fs.FileMode = 0o755

// settleTime is how long a directory must be unchanged before its files are
// compared: an installer may be writing.
const settleTime = 300 * time.Millisecond

// Another installer may replace each restored plugin again. So a plugin is
// restored only mostRestores times in restoresPer.
const (
	mostRestores = 3
	restoresPer  = time.Minute
)

// The problems of an installed plugin.
const (
	missing = "missing"
	foreign = "another program"
)

// errNoFile: the path has a directory, a FIFO or a device.
var errNoFile = errors.New("not a regular file")

// binary is an installed plugin.
type binary struct {
	Path  string `json:"path"`
	State string `json:"state,omitempty"` // the problem, "" if it is ours
}

// binaries checks that the plugins in the CNI directories are the agent's.
type binaries struct {
	*agent
	watcher *notify.Dirs
	names   []string // of the plugins in Own that are to be installed

	mu    sync.Mutex
	found []binary
	sums  map[string]sum
	tries map[string]restores // by path
}

// restores counts the restorations of a plugin in the current time span.
type restores struct {
	since time.Time
	count int
}

// sum is a file's checksum, with the file's state by which a change is noticed.
type sum struct {
	stat   [4]int64 // inode, size, mtime, ctime
	sha256 []byte
}

func newBinaries(a *agent) (*binaries, error) {
	b := &binaries{agent: a, sums: map[string]sum{}, tries: map[string]restores{}}
	if len(a.BinDirs) == 0 {
		return b, nil
	}
	for _, name := range a.Plugins {
		if info, err := os.Stat(filepath.Join(a.Own, name)); err == nil && info.Mode().IsRegular() {
			b.names = append(b.names, name)
		}
	}
	if len(b.names) == 0 {
		return nil, failure.WithCure(failure.New(failure.InvalidConfig, "%s has no plugins to compare with those in the CNI directories", a.Own),
			"name their directory by --own, or omit --cni-bin")
	}
	b.watcher = notify.NewDirs(a.Log)
	return b, nil
}

// run compares at the start, after changes, and every so often.
func (b *binaries) run(ctx context.Context) {
	if b.watcher == nil {
		return
	}
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { b.watcher.Run(ctx, func() { nudge(changed) }) })
	for ctx.Err() == nil {
		for _, dir := range b.BinDirs {
			b.watcher.Watch(dir)
		}
		b.compare(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(slow):
		case <-changed:
			_ = wait.For(ctx, settleTime)
			select {
			case <-changed:
			default:
			}
		}
	}
}

func (b *binaries) states() []binary {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.found)
}

// compare checks each plugin in each directory, and reports changes.
func (b *binaries) compare(ctx context.Context) {
	before := map[string]string{}
	for _, f := range b.states() {
		before[f.Path] = f.State
	}
	installed, err := b.installed()
	if err != nil {
		b.Log.Warn("record of installed plugins is unreadable", "err", err)
		return
	}
	var found []binary
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
			found = append(found, binary{path, state})
			switch state {
			case before[path]:
			case "":
				b.tell(b.Log, Notice{"PluginOurs", "plugin is ours again", path + " is ours again", false})
			default:
				b.tell(b.Log, Notice{"PluginReplaced", "plugin was replaced", fmt.Sprintf("%s is not the plugin of rail-cni %s: %s", path, b.Version, state), true})
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.found = found
}

// installed returns a function that reports whether a path should have a
// plugin. Without a record each should.
func (b *binaries) installed() (func(path string) bool, error) {
	if b.Record == nil {
		return func(string) bool { return true }, nil
	}
	entries, err := b.Record.Entries()
	return func(path string) bool {
		return slices.ContainsFunc(entries, func(e *install.Entry) bool { return e.Path == path })
	}, err
}

// stateOf returns what is wrong with an installed plugin.
func (b *binaries) stateOf(path, name string) string {
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

// sum returns the SHA-256 of a file. It reads the file only if that has
// changed.
func (b *binaries) sum(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would block
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

// restore atomically replaces path with the agent's copy and returns the
// remaining error, or "".
func (b *binaries) restore(ctx context.Context, path, name, wrong string) string {
	tries := b.tries[path]
	if time.Since(tries.since) > restoresPer {
		tries = restores{since: time.Now()}
	}
	if tries.count == mostRestores {
		return wrong + ", and something puts it there again and again"
	}
	tries.count++
	b.tries[path] = tries
	if err := b.put(ctx, filepath.Join(b.Own, name), path); err != nil {
		return fmt.Sprintf("%s, and cannot be restored: %v", wrong, err)
	}
	b.stats.count(&b.stats.restored)
	b.tell(b.Log, Notice{"PluginRestored", "plugin restored", fmt.Sprintf("%s was %s, and is rail-cni's %s again", path, wrong, b.Version), true})
	return b.stateOf(path, name)
}

// put installs a plugin in a CNI directory. With a record it keeps the backup
// of another's file, and does not install a removed path again.
func (b *binaries) put(ctx context.Context, from, to string) error {
	if b.Record == nil {
		return install.Copy(from, to, PluginMode)
	}
	_, err := b.Record.PutBack(ctx, install.File{Path: to, Source: from, Mode: PluginMode})
	return err
}
