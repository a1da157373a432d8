package testnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/integration/need"
)

// began is the directory in which this process began: for a test that of its package.
var began, _ = os.Getwd()

// root returns the top of the checkout, which has the package's directory, or "" outside of
// one. A binary does not know its sources' place: make builds with -trimpath.
func root() string {
	for dir := began; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(text, []byte("module github.com/rail-cni/rail-cni\n")) {
			return dir
		}
	}
	return ""
}

var buildOnce = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("RAIL_CNI_BIN"); dir != "" {
		return dir, stale(dir)
	}
	// One place in the checkout: a directory of this process would stay after its end, with
	// 100 MB, and go build has little to do where it finds its last programs. flock(1), because
	// go test runs packages side by side.
	dir := filepath.Join(root(), "bin", "tests")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("flock", dir, "go", "build", "-o", dir+"/", "./plugins/...", "./cmd/...")
	cmd.Dir, cmd.Env = root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
})

// stale returns an error if the binaries of "make build" are older than a
// source file, so that the edit would go untested. go build updates their times
// even if nothing changed. Directories that a test made itself are not checked,
// nor is the rig, which has no sources. Sources with a time in the future, as
// after the clock was set back, are ignored.
func stale(dir string) error {
	if os.Getenv(need.Variable) == "quick" {
		return nil // make check has just built them, and keeps their times for go's cache
	}
	const asked = "RAIL_CNI_BIN_ASKED" // set by a test that runs itself again, perhaps for hours
	if os.Getenv(asked) == dir {
		return nil
	}
	defer os.Setenv(asked, dir)
	binInfo, err := os.Stat(filepath.Join(root(), "bin"))
	if dirInfo, dirErr := os.Stat(dir); err != nil || dirErr != nil || !os.SameFile(binInfo, dirInfo) {
		return nil
	}
	built, err := os.Stat(filepath.Join(dir, "host-device"))
	if err != nil {
		return fmt.Errorf("run make build: %w", err)
	}
	for _, part := range []string{"go.mod", "cmd", "plugins", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root(), part), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || filepath.Ext(path) != ".go" && d.Name() != "go.mod" {
				return err
			}
			source, err := d.Info()
			if err == nil && source.ModTime().After(built.ModTime()) && !source.ModTime().After(time.Now()) {
				err = fmt.Errorf("run make build: %s is newer than the binaries in %s", path, dir)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Bin returns the directory with the project's own binaries: RAIL_CNI_BIN, as
// `make test` sets it, or bin/tests in the checkout, which it builds them into.
func Bin(t testing.TB) string {
	t.Helper()
	dir, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Peers returns the directory with the binaries of other projects' plugins.
func Peers(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("RAIL_CNI_PEERS")
	if dir == "" {
		dir = filepath.Join(root(), "bin", "peers")
	}
	need.NoError(t, need.Built(filepath.Join(dir, "host-device"), "peers"))
	return dir
}

// Tool returns the path of a tool that a make target builds into bin/tools.
func Tool(t testing.TB, name, target string) string {
	t.Helper()
	path := filepath.Join(root(), "bin", "tools", name)
	need.NoError(t, need.Built(path, target))
	return path
}

// Call is one call of a plugin, as a runtime makes it.
type Call struct {
	Plugin      string // name of a binary in Path's first directory, or an absolute path
	Verb        string // CNI_COMMAND
	ContainerID string
	IfName      string
	Netns       string // CNI_NETNS
	Args        string // CNI_ARGS
	Path        string // CNI_PATH; "" = the project's binaries, then the peers'
	Config      string // stdin
	// OfThread has the plugin inherit what the calling thread has, such as a filter of system calls. It
	// is started by ip(8).
	OfThread bool
}

// Run runs the plugin in the namespace n, which is its host netns, and returns
// its output. If the plugin fails the error is the one that it printed.
func (n *Netns) Run(c Call) (stdout []byte, err error) {
	n.t.Helper()
	stdout, stderr, err := n.RunSaying(c)
	if stderr != "" {
		n.t.Logf("%s %s wrote: %s", c.Plugin, c.Verb, stderr)
	}
	return stdout, err
}

// RunSaying is Run, and also returns what the plugin wrote to stderr.
func (n *Netns) RunSaying(c Call) (stdout []byte, stderr string, err error) {
	n.t.Helper()
	if c.Path == "" {
		c.Path = Bin(n.t) + ":" + Peers(n.t)
	}
	binary := c.Plugin
	if !filepath.IsAbs(binary) {
		binary = filepath.Join(strings.Split(c.Path, ":")[0], c.Plugin)
	}
	cmd, start := exec.Command(binary), n.Start
	if c.OfThread {
		cmd, start = exec.Command("ip", "netns", "exec", n.Name, binary), (*exec.Cmd).Start
	}
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+c.Verb, "CNI_CONTAINERID="+c.ContainerID, "CNI_IFNAME="+c.IfName,
		"CNI_NETNS="+c.Netns, "CNI_ARGS="+c.Args, "CNI_PATH="+c.Path)
	cmd.Stdin = strings.NewReader(c.Config)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	runErr := start(cmd)
	if runErr == nil {
		runErr = cmd.Wait()
	}
	if runErr == nil {
		return out.Bytes(), errOut.String(), nil
	}
	printed := &types.Error{}
	if json.Unmarshal(out.Bytes(), printed) == nil && printed.Code != 0 {
		return out.Bytes(), errOut.String(), printed
	}
	return out.Bytes(), errOut.String(), errors.Join(runErr, fmt.Errorf("%s%s", out.Bytes(), errOut.Bytes()))
}

// MustRun is Run for a call that must succeed.
func (n *Netns) MustRun(c Call) []byte {
	n.t.Helper()
	out, err := n.Run(c)
	if err != nil {
		n.t.Fatalf("%s %s: %v", c.Plugin, c.Verb, err)
	}
	return out
}

// With returns the call with another verb.
func (c Call) With(verb string) Call {
	c.Verb = verb
	return c
}
