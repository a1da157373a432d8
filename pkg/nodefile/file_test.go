package nodefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/failure"
)

func nodeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestNodeFileOpens(t *testing.T) {
	type ask struct {
		names       []string
		pci, driver string
		want        bool
	}
	for _, c := range []struct {
		name, text string
		asks       []ask
		uplink     bool // "uplink" may be overridden
		log        bool // /var/log/whereabouts.log may be named
	}{
		{"other keys only", "allow: [member]", []ask{{want: true}, {names: []string{"eth0"}, want: true}}, false, true},
		{"nothing", "nics: []\nallow: []\npaths: []", []ask{{names: []string{"eth0"}}, {pci: "0000:3b:00.0"}, {}}, false, false},
		{"names", "nics: [{name: ens*np0}]", []ask{
			{names: []string{"ens12np0"}, want: true},
			{names: []string{"eth0", "ens12np0"}, want: true},
			{names: []string{"ens12np1"}},
			{names: []string{"xens1np0"}},
			{pci: "0000:3b:00.0"},
		}, true, true},
		{"PCI", `nics: [{pci: "0000:3b:*"}]`, []ask{
			{pci: "0000:3b:00.1", want: true}, {pci: "0000:3c:00.1"}, {names: []string{"0000:3b:00.1"}},
		}, true, true},
		{"a driver", `nics: [{driver: mlx5_core}]`, []ask{{driver: "mlx5_core", want: true}, {driver: "mlx5_core.sf"}, {}}, true, true},
		{"one of several", "nics:\n- name: a\n- name: b\n", []ask{{names: []string{"b"}, want: true}, {names: []string{"c"}}}, true, true},
		{"all of one", "nics: [{name: ens*, driver: mlx5_core}]", []ask{
			{names: []string{"ens1"}, driver: "mlx5_core", want: true}, {names: []string{"ens1"}, driver: "ixgbe"}, {names: []string{"eth0"}, driver: "mlx5_core"},
		}, true, true},
		{"overrides and paths", `{"allow": ["uplink"], "paths": ["/var/log/*.log"]}`, nil, true, true},
		{"another path", `paths: ["/tmp/*"]`, nil, true, false},
		{"rails only", `rails: {auto: pciOrder}`, []ask{{want: true}, {names: []string{"eth0"}, want: true}}, true, true},
		{"resources only", `resources: {sharedConfigFile: /no/such/file}`, []ask{{want: true}, {names: []string{"eth0"}, want: true}}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Read(nodeFile(t, c.text))
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range c.asks {
				if got := f.OpensNIC(a.names, a.pci, a.driver); got != a.want {
					t.Errorf("%+v: %v", a, got)
				}
			}
			if got := f.OpensOverride("uplink"); got != c.uplink {
				t.Errorf("uplink: %v", got)
			}
			if got := f.OpensPath(KeyLogFile, "/var/log/whereabouts.log"); got != c.log {
				t.Errorf("log: %v", got)
			}
			for _, always := range []string{"", DefaultStateDir} {
				if !f.OpensPath(KeyStateDir, always) {
					t.Errorf("path %q is closed", always)
				}
			}
			for _, never := range []string{"/var/log/../log/whereabouts.log", "/var/log/a/b.log", "var/log/x.log"} {
				if f.OpensPath(KeyLogFile, never) {
					t.Errorf("path %q is open", never)
				}
			}
		})
	}
}

func TestWithoutNodeFileAllNICsAreOpenAndNoPathOfAnAuthor(t *testing.T) {
	f, err := Read(filepath.Join(t.TempDir(), "node.yaml"))
	if err != nil || f != nil {
		t.Fatal(f, err)
	}
	if !f.OpensNIC(nil, "", "") || !f.OpensOverride("uplink") {
		t.Error("something is closed")
	}
	if err := f.CheckPath(KeyStateDir, "/x"); failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), DefaultPath) {
		t.Error(err)
	}
}

// A partly understood file could permit what it was written to forbid.
func TestNodeFileWithMistakesIsAnError(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", "empty"},
		"a comment":         {"# nics: []\n", "empty"},
		"no YAML":           {"nics: [", "yaml"},
		"an alias":          {"nics: [{name: *np0}]", "unknown anchor"},
		"a scalar":          {"open", "cannot unmarshal"},
		"a key's typo":      {"nic: []", `field nic not found; did you mean "nics"?`},
		"a removed key":     {"prefixesFrom: [nv-ipam]", `line 1: field prefixesFrom not found; did you mean "prefixes"?`},
		"a pattern's typo":  {"nics: [{names: x}]", `field names not found; did you mean "name"?`},
		"a merged typo":     {"nics: [{<<: {names: x}}]", "field names not found"},
		"no value":          {"rails:", `"rails" has no value`},
		"no mapping":        {"resources: []", "expected a mapping with the keys pools"},
		"a rail's typo":     {"rails: [{id: 0, pcie: x}]", `field pcie not found; did you mean "pci"?`},
		"a pool's typo":     {"resources: {pools: [{nam: x}]}", `field nam not found; did you mean "name"?`},
		"a large node":      {"node: 70000", "node: 70000 is not a number from 0 to 65535"},
		"a negative node":   {"node: -1", "node: -1 is not a number"},
		"a node's name":     {"node: worker-3", `node: "worker-3" is not a number`},
		"half a node":       {"node: 1.5", `node: "1.5" is not a number`},
		"no node":           {"node:", `"node" has no value`},
		"no list":           {"nics: all", `"nics" must be a list`},
		"a value forgotten": {"allow: [uplink]\nnics:\n", `line 2: "nics" must be a list`},
		"null":              {"paths: ~", `"paths" must be a list`},
		"twice":             {"nics: []\nnics: [{name: x}]", "already defined"},
		"two documents":     {"nics: []\n---\nnics: [{name: x}]", "second document"},
		"an empty pattern":  {"nics: [{}]", "nics[0] names no NIC"},
		"an empty name":     {`nics: [{name: ""}]`, "nics[0] names no NIC"},
		"a bad pattern":     {`nics: [{name: a, driver: "[x"}]`, "syntax error in pattern"},
		"a relative path":   {"paths: [log/*]", "not an absolute path"},
		"a climbing path":   {"paths: [/var/log/../*]", "not an absolute path"},
		"a bad path":        {`paths: ["/var/[log"]`, "syntax error in pattern"},
		"a number":          {"nics: [{name: {a: b}}]", "cannot unmarshal"},
		"large":             {"nics: []\n" + strings.Repeat("#\n", maxFile/2), "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			path := nodeFile(t, c.text)
			f, err := Read(path)
			if f != nil || failure.KindOf(err) != failure.InvalidConfig {
				t.Fatalf("%+v, %v", f, err)
			}
			for _, want := range []string{c.want, path, "correct the file"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %v", want, err)
				}
			}
		})
	}
}

func TestNumbersOfNodes(t *testing.T) {
	for _, number := range []int{0, maxNode} { // the first and the last
		n, err := Parse(fmt.Appendf(nil, "node: %d", number))
		if err != nil || n.Node == nil || *n.Node != number {
			t.Errorf("%d: %+v, %v", number, n, err)
		}
	}
}

func TestNodeFileThatIsNoneOfTheAdministrators(t *testing.T) {
	for name, plant := range map[string]func(path string) error{
		"a directory":       func(p string) error { return os.Mkdir(p, 0o755) },
		"a FIFO":            func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"a link to nothing": func(p string) error { return os.Symlink(p, p) },
		"writable by all": func(p string) error {
			return os.Chmod(nodeFileAt(t, p), 0o666)
		},
		"another user's": func(p string) error {
			return os.Chown(nodeFileAt(t, p), 65534, 65534)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's" {
				need.Root(t)
			}
			path := filepath.Join(t.TempDir(), "node.yaml")
			if err := plant(path); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := Read(path)
				done <- err
			}()
			select {
			case err := <-done:
				if failure.KindOf(err) != failure.InvalidConfig {
					t.Errorf("error %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("it blocks")
			}
		})
	}
}

func nodeFileAt(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte("nics: [{name: \"*\"}]"), 0o600); err != nil {
		t.Error(err)
	}
	return path
}

// FuzzNodeFile looks for accepted files that permit what they do not name.
func FuzzNodeFile(f *testing.F) {
	for _, seed := range []string{
		"nics: [{name: ens*np0}, {pci: \"0000:3b:*\"}, {driver: mlx5_core}]\nallow: []\npaths: [/var/log/*]\n",
		"nics: []", "nics:", "nics: *a", "a: &a [*a]", "nics: &x [{name: a}]\nallow: *x", "<<: {nics: []}", "{\"nics\": [{}]}", "---\n...\n", "? nics\n: []",
		"nics: [!!null ~]", "nics: !!seq []", "paths: [\"/\\0\"]", "rails: [{id: 0, name: a}]\nresources: {pools: [{name: a/b, mode: perRail, select: {rails: all}}]}", "rails: &r {<<: *r}\nresources: *r", "nics: [{name: '[a-'}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n := &File{}
		if n.parse(data) != nil {
			return
		}
		if n.NICs == nil && n.Allow == nil && n.Paths == nil && n.Rails == nil && n.Resources == nil {
			t.Errorf("%q is taken and says nothing", data)
		}
		// Only "*" may match a NIC without name, device and driver.
		if n.NICs != nil && n.OpensNIC(nil, "", "") && !strings.Contains(string(data), "*") {
			t.Errorf("%q opens a NIC that has nothing to match", data)
		}
	})
}

// The code must accept the page's example, with every key.
func TestNodeFileOfThePageIsTaken(t *testing.T) {
	page := docs.Page(t, "docs/reference/node-file.md")
	_, block, _ := strings.Cut(page, "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	n := &File{}
	if err := n.parse([]byte(block)); err != nil {
		t.Fatalf("%v:\n%s", err, block)
	}
	if len(n.NICs) == 0 || n.Allow == nil || len(n.Paths) == 0 {
		t.Errorf("a key is missing: %+v", n)
	}
	for _, key := range []string{"rails", "resources"} {
		_, block, _ := strings.Cut(page, "```yaml\n"+key+":")
		block, _, _ = strings.Cut(block, "```")
		n := &File{}
		if err := n.parse([]byte(key + ":" + block)); err != nil {
			t.Errorf("%s: %v:\n%s", key, err, block)
		}
	}
	for _, place := range []string{DefaultPath, InstalledPath, PathEnv} {
		if !strings.Contains(page, place) {
			t.Errorf("the place %s is not named", place)
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
