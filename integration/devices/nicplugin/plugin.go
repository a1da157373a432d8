package nicplugin

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/process"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/deviceplugin"
)

// Plugin is a device plugin for a test.
type Plugin struct {
	// State is what the process sees of the NICs after [Plugin.Show].
	State State

	t    testing.TB
	dir  string
	env  []string
	proc *process.Process // nil if it does not run
}

// New makes a device plugin that is not started yet, for a kubelet with this directory on
// a node with this root directory. file is [NodeFile] or [SharedFile], text its text. The
// process, if there is one then, ends with the test.
func New(t testing.TB, kubeletDir, root, file, text string) *Plugin {
	t.Helper()
	p := &Plugin{t: t, dir: t.TempDir(), State: State{Lent: map[int]deviceplugin.Lent{}, Down: map[int]bool{}}}
	p.env = []string{dirEnv + "=" + p.dir, kubeletEnv + "=" + kubeletDir, rootEnv + "=" + root}
	p.must(WriteSysfs(filepath.Join(p.dir, sysDir)))
	p.must(os.WriteFile(filepath.Join(p.dir, file), []byte(text), 0o600))
	for _, dir := range []string{devInfoDir, cdiDir} {
		p.must(os.Mkdir(filepath.Join(p.dir, dir), 0o755))
	}
	p.Show()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the device plugin's log:\n%s\nits notices: %+v\nits files: %v", process.Tail(p.log(), 60), p.Notices(), p.Files())
		}
	})
	return p
}

func (p *Plugin) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *Plugin) log() string { return filepath.Join(p.dir, "log") }

// Show shows the State to the process.
func (p *Plugin) Show() {
	p.t.Helper()
	text, err := json.Marshal(p.State)
	p.must(err)
	name := filepath.Join(p.dir, stateFile)
	p.must(os.WriteFile(name+".new", text, 0o600))
	p.must(os.Rename(name+".new", name))
}

// Command returns the arguments and the variables of the process, for a test that starts
// it in its own way.
func (p *Plugin) Command() (args, env []string) { return []string{"/proc/self/exe"}, p.env }

// Start starts the process.
func (p *Plugin) Start() {
	p.t.Helper()
	args, env := p.Command()
	var err error
	p.proc, err = process.Start(process.Spec{Name: "device plugin", Log: p.log(), Args: args, Env: env})
	p.must(err)
}

// Kill kills the process (SIGKILL), if it runs.
func (p *Plugin) Kill() {
	if p.proc != nil {
		p.proc.Kill()
		p.proc = nil
	}
}

// AwaitEnd waits until the process has ended by itself.
func (p *Plugin) AwaitEnd() {
	<-p.proc.Gone()
	p.proc = nil
}

// Pid returns the process ID of the process, which must run.
func (p *Plugin) Pid() int { return p.proc.Pid() }

// Notices returns what the processes have told so far.
func (p *Plugin) Notices() (list []component.Notice) {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, noticesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var n component.Notice
		if json.Unmarshal([]byte(line), &n) == nil { // the last line may not be complete
			list = append(list, n)
		}
	}
	return list
}

// Files returns the names of all device information files and CDI specifications, also of
// temporary ones, below devinfo/ and cdi/.
func (p *Plugin) Files() (list []string) {
	p.t.Helper()
	for _, dir := range []string{devInfoDir, cdiDir} {
		entries, err := os.ReadDir(filepath.Join(p.dir, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, dir+"/"+e.Name())
		}
	}
	slices.Sort(list)
	return list
}

// Age makes the files of [Plugin.Files], and temporary ones beside them, an hour older: the
// device plugin keeps what it has just written.
func (p *Plugin) Age() {
	p.t.Helper()
	for _, name := range p.Files() {
		then := time.Now().Add(-time.Hour)
		if err := os.Chtimes(filepath.Join(p.dir, name), then, then); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.t.Fatal(err)
		}
	}
}

// RSS returns the process' resident memory in KiB.
func (p *Plugin) RSS() int {
	p.t.Helper()
	usage, err := p.proc.Usage()
	p.must(err)
	return usage.RSS
}
