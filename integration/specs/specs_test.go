package specs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

const reference = "github.com/containernetworking/plugins"

// suite is a suite of the reference.
type suite struct {
	plugin string
	specs  int // fewer would be left out silently
	// own are the tests of functions of the plugin's code, which a program does not have.
	own []string
	// deliberate are the specs that fail with ours.
	deliberate map[string]difference
}

// difference is why a spec fails with ours.
type difference struct {
	reason string
	want   string // the text that the spec wants and does not get
}

var (
	cause = difference{
		"The text of an error. The spec wants exactly one sentence about four keys; ours has these words, and the cause and the cure besides.",
		`specify either "device", "hwaddr", "kernelpath" or "pciBusID"`,
	}
	dpdk = difference{
		"The text of an error. Both refuse the key for a function under a userspace driver; ours names the device and the cure.",
		"not supported for dpdk-bound devices",
	}
)

var suites = []suite{
	{"host-device", 47, []string{"host-network-state.go", "host-network-state_test.go"}, map[string]difference{
		"base functionality [0.3.0] fails an invalid config":                          cause,
		"base functionality [0.3.1] fails an invalid config":                          cause,
		"base functionality [0.4.0] fails an invalid config":                          cause,
		"base functionality [1.0.0] fails an invalid config":                          cause,
		"host-device l3Config returns an error when l3 copy is enabled for dpdk mode": dpdk,
	}},
	{"macvlan", 168, nil, nil},
}

// TestReferenceSpecsPassOnOurPrograms runs each suite with our program. With FULL=yes also with
// the reference's, which must pass all: a spec that fails there shows a fault of the adapter.
func TestReferenceSpecsPassOnOurPrograms(t *testing.T) {
	t.Parallel()
	need.Root(t)
	for _, s := range suites {
		t.Run(s.plugin, func(t *testing.T) {
			t.Parallel()
			program := s.build(t)
			s.judge(t, s.run(t, program, filepath.Join(testnet.Bin(t), s.plugin)), s.deliberate)
			if need.Full() {
				s.judge(t, s.run(t, program, filepath.Join(testnet.Peers(t), s.plugin)), nil)
			}
		})
	}
}

// judge fails unless exactly the expected specs failed.
func (s suite) judge(t *testing.T, failed map[string]string, expected map[string]difference) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		if d, ok := expected[name]; !ok || !strings.Contains(failed[name], d.want) {
			t.Errorf("%s\n%s", name, failed[name])
		}
	}
	for name := range expected {
		if failed[name] == "" {
			t.Errorf("%s passes, and is listed as a difference", name)
		}
	}
}

// build builds the suite from a copy of the reference, with the adapter in place of the plugin's
// code.
func (s suite) build(t *testing.T) (program string) {
	t.Helper()
	module, err := filepath.Abs("../peers/specs")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source := filepath.Join(copied(t, module, dir, reference), "plugins", "main", s.plugin)
	adapter, err := os.ReadFile(filepath.Join("testdata", s.plugin+".go.txt"))
	errs := []error{err, os.WriteFile(filepath.Join(source, s.plugin+".go"), adapter, 0o600)}
	for _, file := range s.own {
		errs = append(errs, os.Remove(filepath.Join(source, file)))
	}
	if kind := dummy(t); kind != "dummy" {
		errs = append(errs, withKind(filepath.Join(copied(t, module, dir, "github.com/vishvananda/netlink"), "link.go"), kind))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, s.plugin+".test")
	// With -trimpath, go's cache keeps what it compiles although each run has a directory of its own.
	command(t, module, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-modfile", filepath.Join(dir, "go.mod"), "-o", program, reference+"/plugins/main/"+s.plugin)
	return program
}

// copied copies a module that the one in from requires, and lets the go.mod in to, which it makes
// at first, take the copy.
func copied(t *testing.T, from, to, module string) (dir string) {
	t.Helper()
	mod := filepath.Join(to, "go.mod")
	if _, err := os.Stat(mod); err != nil {
		for _, file := range []string{"go.mod", "go.sum"} {
			text, err := os.ReadFile(filepath.Join(from, file))
			if err == nil {
				err = os.WriteFile(filepath.Join(to, file), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	command(t, from, "go", "mod", "download", module)
	source := strings.TrimSpace(command(t, from, "go", "list", "-m", "-f", "{{.Dir}}", module))
	dir = filepath.Join(to, filepath.Base(module))
	if err := copyFiles(dir, source); err != nil {
		t.Fatal(err)
	}
	command(t, to, "go", "mod", "edit", "-replace", module+"="+dir, mod)
	return dir
}

// copyFiles copies a tree of the module cache, so that its files can be written.
func copyFiles(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rest), 0o700)
		}
		data, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(filepath.Join(to, rest), data, 0o600))
	})
}

// dummy returns the kind of links that the specs make their NICs of: the kernel may lack the
// module dummy, and ifb is the most similar kind.
func dummy(t *testing.T) string {
	t.Helper()
	if err := exec.Command("unshare", "--net", "ip", "link", "add", "probe", "type", "dummy").Run(); err != nil {
		return "ifb"
	}
	return "dummy"
}

// withKind changes the kind of the library's type Dummy in its file.
func withKind(path, kind string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const function = `func (dummy *Dummy) Type() string {
	return "dummy"`
	if strings.Count(string(text), function) != 1 {
		return fmt.Errorf("%s has no function Type of Dummy as it was", path)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), function, strings.Replace(function, `"dummy"`, `"`+kind+`"`, 1), 1)), 0o600)
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}

// inside runs a suite in namespaces of its own: network, processes, and mounts with a /run of its
// own, in which network namespaces and our records are.
const inside = `umask 0
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/cni && mount -t tmpfs tmpfs /var/lib/cni
ip link set lo up
exec "$1" -test.timeout 10m -ginkgo.no-color -ginkgo.seed 1 -ginkgo.json-report "$2"`

// run runs the suite with a plugin, and returns what failed, by the names of the specs.
func (s suite) run(t *testing.T, program, plugin string) (failed map[string]string) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
		"sh", "-c", inside, "-", program, report)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "CNI_UNDER_TEST="+plugin, "PATH="+testnet.Peers(t)+":"+os.Getenv("PATH"))
	out, runErr := cmd.CombinedOutput() // it also fails for the specs that differ on purpose
	data, err := os.ReadFile(report)
	var reports []struct {
		SpecReports []struct {
			State                   string
			LeafNodeType            string
			ContainerHierarchyTexts []string
			LeafNodeText            string
			Failure                 struct{ Message string }
		}
	}
	if err == nil {
		err = json.Unmarshal(data, &reports)
	}
	if err != nil {
		t.Fatalf("no report: %v, %v\n%s", err, runErr, out)
	}
	failed, specs := map[string]string{}, 0
	for _, r := range reports {
		for _, spec := range r.SpecReports {
			if spec.LeafNodeType != "It" {
				continue
			}
			specs++
			if spec.State != "passed" {
				failed[strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")] = spec.State + ": " + spec.Failure.Message
			}
		}
	}
	if specs != s.specs {
		t.Errorf("%d specs ran, not %d", specs, s.specs)
	}
	t.Logf("%s: %d of %d specs pass", plugin, specs-len(failed), specs)
	return failed
}
