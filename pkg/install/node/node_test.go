package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/install/node"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// lab is a node with a CNI directory that has a plugin of another project, and with plugins to
// install into this directory.
type lab struct {
	t       *testing.T
	plugins node.Plugins
	bin     string
	before  string // tree of bin

	mu     sync.Mutex
	users  []string
	told   []string
	ending bool // the other installer was stopped
}

func newLab(t *testing.T) *lab {
	t.Helper()
	t.Setenv(nodefile.PathEnv, filepath.Join(t.TempDir(), "node.yaml"))
	l := &lab{t: t, bin: t.TempDir()}
	own := t.TempDir()
	for _, name := range node.PluginNames {
		l.write(filepath.Join(own, name), "ours: "+name)
	}
	l.write(filepath.Join(l.bin, "macvlan"), "theirs")
	l.before = testnet.Tree(t, l.bin)
	l.plugins = node.Plugins{
		BinDirs: []string{l.bin}, Own: own, Names: node.PluginNames, Record: install.Open(filepath.Join(t.TempDir(), "record")),
		Log: slog.New(slog.DiscardHandler),
	}
	return l
}

func (l *lab) write(path, text string) {
	l.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) inUse() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.users
}

func (l *lab) use(users ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users = users
}

func (l *lab) put() {
	l.t.Helper()
	if err := l.plugins.Put(l.t.Context(), l.inUse); err != nil {
		l.t.Fatal(err)
	}
}

// has fails the test if these plugins are not installed, or are not rail-cni's.
func (l *lab) has(names ...string) {
	l.t.Helper()
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(l.bin, name))
		if err != nil || string(text) != "ours: "+strings.TrimPrefix(name, l.plugins.Prefix) {
			l.t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

func (l *lab) isAsBefore() {
	l.t.Helper()
	if now := testnet.Tree(l.t, l.bin); now != l.before {
		l.t.Errorf("it was\n%sand is\n%s", l.before, now)
	}
	if entries, err := l.plugins.Record.Entries(); len(entries) > 0 || err != nil {
		l.t.Errorf("the record has %d entries, %v", len(entries), err)
	}
}

// uninstall runs an uninstaller until the test ends.
func (l *lab) uninstall(change func(*node.Uninstaller)) *node.Uninstaller {
	l.t.Helper()
	u := &node.Uninstaller{Plugins: l.plugins, InUse: l.inUse, Stop: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ending = true
	}, Notify: func(n component.Notice) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.told = append(l.told, n.Reason+": "+n.Message)
	}}
	if change != nil {
		change(u)
	}
	if err := u.Ready(); err == nil {
		l.t.Error("it is ready before it has looked")
	}
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.Run(ctx)
	}()
	l.t.Cleanup(func() {
		cancel()
		<-ended
	})
	return u
}

func (l *lab) await(what string, done func() bool) {
	l.t.Helper()
	for began := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			l.t.Fatalf("still waiting for %s after a minute", what)
		}
	}
}

// said returns the last notice.
func (l *lab) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.told) == 0 {
		return ""
	}
	return l.told[len(l.told)-1]
}

func (l *lab) stopped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending
}

func TestPluginsThatAreNotWantedAnyMoreStayWhileTheyAreInUse(t *testing.T) {
	l := newLab(t)
	l.put()
	l.has(node.PluginNames...)
	l.plugins.Prefix, l.plugins.Names = "rail-", []string{"macvlan"}
	l.use("pod default/web-0 has ens1 as net1")
	l.put()
	l.has("rail-macvlan")
	l.plugins.Prefix = ""
	l.has(node.PluginNames...)
	l.plugins.Prefix = "rail-"
	l.use()
	l.put()
	if now := testnet.Tree(t, l.bin); !strings.HasPrefix(now, l.before+"/rail-macvlan ") || strings.Count(now, "\n") != 2 {
		t.Errorf("there are\n%s", now)
	}
	if err := node.Remove(l.plugins.Record, l.plugins.Log); err != nil {
		t.Error(err)
	}
	l.isAsBefore()
}

func TestUninstallWaitsForTheLastUser(t *testing.T) {
	l := newLab(t)
	l.put()
	l.use("pod default/web-0 has ens1 as net1")
	u := l.uninstall(nil)
	l.await("the reason", func() bool { return strings.HasPrefix(l.said(), "NotUninstalled: ") })
	if err := u.Ready(); err == nil || !strings.Contains(err.Error(), "ens1 as net1") || !strings.Contains(l.said(), "ens1 as net1") {
		t.Errorf("it says %q, and is not ready because of %v", l.said(), err)
	}
	l.has(node.PluginNames...)
	if l.stopped() {
		t.Error("what else installs was stopped")
	}
	l.use()
	l.await("the end", func() bool { return strings.HasPrefix(l.said(), "Uninstalled: ") })
	if err := u.Ready(); err != nil || !l.stopped() {
		t.Errorf("%v, stopped: %v", err, l.stopped())
	}
	l.isAsBefore()
}

// TestPluginsAreBackForAPodThatCameAtTheLastMoment: a pod comes after the check before the removal
// and before the check after the removal.
func TestPluginsAreBackForAPodThatCameAtTheLastMoment(t *testing.T) {
	l := newLab(t)
	l.put()
	gone := false
	u := l.uninstall(func(u *node.Uninstaller) {
		u.InUse = func() []string {
			if _, err := os.Stat(filepath.Join(l.bin, "rdma")); errors.Is(err, fs.ErrNotExist) && !gone {
				gone = true
				l.use("pod default/late has ens1 as net1")
			}
			return l.inUse()
		}
	})
	l.await("the plugins to be back", func() bool { return strings.Contains(l.said(), "default/late") })
	l.has(node.PluginNames...)
	if u.Ready() == nil || l.stopped() {
		t.Errorf("ready: %v, stopped: %v", u.Ready(), l.stopped())
	}
	l.use()
	l.await("the end", func() bool { return strings.HasPrefix(l.said(), "Uninstalled: ") })
	l.isAsBefore()
}

func TestForcedUninstallWaitsForNobody(t *testing.T) {
	l := newLab(t)
	l.put()
	l.use("pod default/web-0 has ens1 as net1")
	l.uninstall(func(u *node.Uninstaller) { u.Force = true })
	l.await("the end", func() bool { return strings.HasPrefix(l.said(), "Uninstalled: ") })
	l.isAsBefore()
}

func TestWhatCannotBeReadCountsAsAUser(t *testing.T) {
	state := t.TempDir()
	attachments := filepath.Join(state, "attachments")
	if users := node.Users([]string{state}); len(users) > 0 {
		t.Errorf("users of nothing: %q", users)
	}
	if err := os.Mkdir(attachments, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(attachments, "x@net1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if users := node.Users([]string{state}); len(users) != 1 || !strings.Contains(users[0], "x@net1.json") {
		t.Errorf("users: %q", users)
	}
}

func TestAddressesThatWaitCountAsUsers(t *testing.T) {
	state := t.TempDir()
	dir := netconf.JournalDir(state)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		text := fmt.Appendf(nil, `{"kubeconfig":"/none","pool":{"Prefix":"10.0.0.0/24"},"owner":{"ContainerID":"c%d","IfName":"net1"}}`, i)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("e%d.free", i)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if users := node.Users([]string{state}); len(users) != 1 || !strings.HasPrefix(users[0], "2 addresses") {
		t.Errorf("users: %q", users)
	}
}

// TestRailctlIsInstalledForPeople: railctl on the node is for people, and no pod needs it. So it is
// removed even while plugins must stay.
func TestRailctlIsInstalledForPeople(t *testing.T) {
	l := newLab(t)
	dir, tool := t.TempDir(), filepath.Join(t.TempDir(), "railctl")
	l.write(tool, "our railctl")
	path := filepath.Join(dir, "railctl")
	has := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(path); string(text) != want || (want == "") != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("railctl is %q, not %q: %v", text, want, err)
		}
	}
	l.plugins.Tool, l.plugins.ToolDir = tool, dir
	l.put()
	has("our railctl")
	l.use("pod default/web-0 has ens1 as net1")
	l.plugins.ToolDir = ""
	l.put()
	has("")
	l.has(node.PluginNames...)

	l.write(path, "another's")
	l.plugins.ToolDir = dir
	l.put()
	has("another's")

	// A package replaces the installed railctl by a program of the same module.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l.put()
	has("our railctl")
	self, err := os.Executable()
	if err == nil {
		err = install.Copy(self, path, 0o755)
	}
	packaged, readErr := os.ReadFile(path)
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	isPackaged := func() bool {
		text, err := os.ReadFile(path)
		return err == nil && bytes.Equal(text, packaged)
	}
	if l.put(); !isPackaged() {
		t.Error("the package's railctl is replaced")
	}
	if err := node.Remove(l.plugins.Record, l.plugins.Log); err != nil || !isPackaged() {
		t.Errorf("the package's railctl is removed, %v", err)
	}
	l.isAsBefore()
}
