package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
)

// commandsOf returns a command and all its subcommands.
func commandsOf(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		all = append(all, commandsOf(c)...)
	}
	return all
}

// wholeRoot returns the root command, including the commands that cobra adds.
func wholeRoot() *cobra.Command {
	root := newRoot()
	cli.RefuseUnknown(root)
	return root
}

// TestEachCommandHasTheOutputsOfTheTable compares the table of output formats with the flags of all
// commands.
func TestEachCommandHasTheOutputsOfTheTable(t *testing.T) {
	seen := map[string]bool{}
	for _, cmd := range commandsOf(wholeRoot()) {
		path := cmd.CommandPath()
		formats, listed := cli.Outputs[path]
		flag := cmd.Flags().Lookup("output")
		if listed != (flag != nil) {
			t.Errorf("%s: in the table %v, and has the flag %v", path, listed, flag != nil)
		}
		if flag == nil || !listed {
			continue
		}
		seen[path] = true
		if flag.Shorthand != "o" || flag.Usage != strings.Trim(strings.ReplaceAll(fmt.Sprint(formats), " ", ", "), "[]") || flag.DefValue != string(formats[0]) || flag.DefValue != string(cli.Table) {
			t.Errorf("%s: %+v", path, flag)
		}
		for _, f := range []cli.Format{cli.Table, cli.Wide, cli.JSON, cli.YAML, "xml", ""} {
			if err := flag.Value.Set(string(f)); (err == nil) != slices.Contains(formats, f) {
				t.Errorf("%s -o %s: %v, and the table has %v", path, f, err, formats)
			}
		}
		for _, needed := range []cli.Format{cli.JSON, cli.YAML} {
			if !slices.Contains(formats, needed) {
				t.Errorf("%s has no %s", path, needed)
			}
		}
	}
	for path := range cli.Outputs {
		if !seen[path] {
			t.Errorf("%s is in the table, and no command", path)
		}
	}
}

func TestWrongCommandsFailWithASuggestion(t *testing.T) {
	// Each command that has subcommands refuses a name that is not a subcommand.
	for _, cmd := range commandsOf(wholeRoot()) {
		if !cmd.HasSubCommands() {
			continue
		}
		args := append(strings.Fields(cmd.CommandPath())[1:], "nosuch")
		want := `unknown command "nosuch" for "` + cmd.CommandPath() + `"`
		if out, errOut, code := plainRun(args...); code != cli.ExitUsage || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q", args, code, out, errOut)
		}
	}
	for args, want := range map[string]string{
		"shwo":             "did you mean show?",
		"ipam shwo":        "did you mean show?",
		"rdma mdoe":        "did you mean mode?",
		"rails discovre":   "did you mean discover?",
		"generate nad":     "did you mean nads?",
		"migrate device":   "did you mean devices?",
		"completion bahs":  "did you mean bash?",
		"doctor clustr":    "did you mean cluster?",
		"help shwo":        "did you mean show?",
		"help ipam shwo":   "did you mean show?",
		"doctor --nosuch":  "unknown flag",
		"help nothinglike": `"railctl --help" lists the commands`,
	} {
		if _, errOut, code := plainRun(strings.Fields(args)...); code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, stderr %q, want %q", args, code, errOut, want)
		}
	}
	for _, args := range []string{"ipam", "help ipam", "help ipam show", "help", "", "rdma --help", "completion bash"} {
		if out, errOut, code := plainRun(strings.Fields(args)...); code != 0 || errOut != "" || out == "" {
			t.Errorf("%q: exit code %d, stderr %q", args, code, errOut)
		}
	}
}

func TestMissingArgumentsAreNamed(t *testing.T) {
	for args, want := range map[string]string{
		"pod": "name a pod: railctl pod NAMESPACE/NAME", "env": "name a pod: railctl env NAMESPACE/NAME",
		"doctor pod":   "name a pod: railctl doctor pod NAMESPACE/NAME",
		"ipam explain": "name a network or its file: railctl ipam explain NAMESPACE/NAD | FILE", "pod a/b c/d": "the command takes one argument (a pod), but there are 2",
	} {
		if _, errOut, code := plainRun(strings.Fields(args)...); code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, stderr %q", args, code, errOut)
		}
	}
}

func TestVersionOfTheProgram(t *testing.T) {
	if out, _, code := plainRun("--version"); code != 0 || !strings.Contains(out, "railctl version "+version) {
		t.Errorf("exit code %d: %s", code, out)
	}
	for f, want := range map[string]string{"json": `"version": "` + version + `"`, "yaml": "version: " + version} {
		if out, errOut, code := plainRun("version", "-o", f); code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d: %s %s", code, out, errOut)
		}
	}
}

// kubeconfigOf writes a kubeconfig with one context. The server of the context is at the port.
func kubeconfigOf(t *testing.T, path, name string, port int, rest string) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: %[1]s, cluster: {server: "http://127.0.0.1:%[2]d"}}]
contexts: [{name: %[1]s, context: {cluster: %[1]s, user: %[1]s}}]
users: [{name: %[1]s, user: {}}]
%[3]s
`, name, port, rest)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// closedPort returns a port of loopback on which nobody listens, and which nobody else gets until
// the test ends.
func closedPort(t *testing.T) int {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(s) })
	if err := unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	in, ok := at.(*unix.SockaddrInet4)
	if !ok {
		t.Fatalf("%T", at)
	}
	return in.Port
}

// portOf returns the port of a TCP listener.
func portOf(l net.Listener) int { return int(netip.MustParseAddrPort(l.Addr().String()).Port()) }

// TestClusterIsFoundAsKubectlDoes looks at the server in the error to see which kubeconfig, context
// and cluster were used.
func TestClusterIsFoundAsKubectlDoes(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("KUBECONFIG", "")
	port := closedPort(t)
	kubeconfigOf(t, filepath.Join(home, ".kube/config"), "home", port, "current-context: home")
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	kubeconfigOf(t, one, "one", port, "")
	kubeconfigOf(t, two, "two", port, "current-context: two")
	both := strings.Join([]string{filepath.Join(dir, "none"), one, two}, string(os.PathListSeparator))
	for _, c := range []struct {
		name, env string
		args      []string
		want      string
	}{
		{"the home directory", "", nil, "kubeconfig " + filepath.Join(home, ".kube/config")},
		{"$KUBECONFIG, merged", both, nil, "kubeconfig " + one + ", " + two},
		{"--kubeconfig before $KUBECONFIG", both, []string{"--kubeconfig", two}, "kubeconfig " + two + " is right"},
		{"--context of the other file", both, []string{"--context", "one"}, "nothing listens there"},
		{"a context that is missing", both, []string{"--context", "three"}, `no context "three"; the contexts are "one", "two"`},
		{"a cluster that is missing", both, []string{"--cluster", "three"}, `no cluster "three"; the clusters are "one", "two"`},
		{"a file without a current context", "", []string{"--kubeconfig", one}, "no current-context"},
		{"its context by name", "", []string{"--kubeconfig", one, "--context", "one"}, "nothing listens there"},
		{"a wrong path", "", []string{"--kubeconfig", "/none/kubeconfig"}, "/none/kubeconfig: "},
		{"a wrong $KUBECONFIG", "/none/kubeconfig", nil, "name a file that exists with --kubeconfig or $KUBECONFIG"},
	} {
		t.Setenv("KUBECONFIG", c.env)
		_, errOut, code := plainRun(append([]string{"ipam", "show"}, c.args...)...)
		if code != 1 || !strings.Contains(errOut, c.want) || strings.Contains(errOut, "whereabouts' installer") {
			t.Errorf("%s: exit code %d, stderr %q, want %q", c.name, code, errOut, c.want)
		}
	}
}

func TestDeadServerIsGivenUp(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("KUBECONFIG", "")
	refused := filepath.Join(dir, "refused")
	kubeconfigOf(t, refused, "a", closedPort(t), "current-context: a")
	for _, args := range [][]string{{"ipam", "show"}, {"ipam", "check"}, {"doctor", "cluster"}, {"verify"}, {"uninstall"}} {
		began := time.Now()
		_, errOut, code := plainRun(append(args, "--kubeconfig", refused)...)
		if code == 0 || !strings.Contains(errOut, "connection refused") || !strings.Contains(errOut, "3 times in") {
			t.Errorf("%v: exit code %d, stderr %q", args, code, errOut)
		}
		if took := time.Since(began); took > 30*time.Second { // it takes a tenth of a second
			t.Errorf("%v took %v", args, took)
		}
	}

	// This server accepts the connection but never answers.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	silent := filepath.Join(dir, "silent")
	kubeconfigOf(t, silent, "a", portOf(l), "current-context: a")
	_, errOut, code := plainRun("ipam", "show", "--kubeconfig", silent, "--request-timeout", "600ms")
	waiting := fmt.Sprintf("railctl: waiting for http://%s, which does not answer\n", l.Addr())
	if code != 1 || strings.Count(errOut, waiting) != 1 || !strings.Contains(errOut, "no answer within 600ms") || !strings.Contains(errOut, "3 times in") {
		t.Errorf("exit code %d, stderr %q", code, errOut)
	}
}

func TestCheckTakesFilesAndDirectories(t *testing.T) {
	dir := t.TempDir()
	const bridge = `{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "tuning"}]}`
	for name, text := range map[string]string{
		"nads/roce.yaml": goodNAD, "nads/pods.yaml": "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Service\n", "nads/notes.txt": "a: [",
		"nads/more/bridge.conflist": bridge,
		"typo.json":                 `{"cniVersion": "1.0.0", "name": "a", "type": "host-devices", "ipam": {"type": "whereabout"}}`, "empty/none.md": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		args  []string
		code  int
		wants []string
	}{
		{[]string{at("nads/roce.yaml")}, 0, []string{" ok\n"}},
		{[]string{"-f", at("nads/roce.yaml"), at("nads/pods.yaml")}, 0, []string{
			"not checked: 1 file(s) without a configuration (" + at("nads/pods.yaml") + ")", "not checked: 2 object(s) of other kinds (Pod, Service)",
		}},
		{[]string{at("nads")}, 0, []string{"not checked: 2 plugins of others (bridge, tuning)", "not checked: 1 IPAM plugin of others (host-local)", "not checked: 2 object(s) of other kinds (Pod, Service)"}},
		{[]string{at("typo.json")}, 0, []string{"CNI-TYPE", `did you mean "host-device"?`, `did you mean "whereabouts"?`}},
		{[]string{at("typo.json"), "--strict"}, 1, []string{"CNI-TYPE"}},
		{[]string{at("typo.json"), "-o", "yaml"}, 0, []string{"notes:\n", "id: CNI-TYPE"}},
		{[]string{at("nads/pods.yaml")}, 2, []string{"nothing to check"}},
		{[]string{at("empty")}, 2, []string{"no file that ends in .yaml, .yml, .json, .conf, .conflist"}},
		{[]string{at("none")}, 2, []string{"no such file"}},
		{nil, 2, []string{"name the files to check: railctl check FILE..."}},
	} {
		out, errOut, code := plainRun(append([]string{"check"}, c.args...)...)
		if code != c.code {
			t.Errorf("%v: exit code %d: %s%s", c.args, code, out, errOut)
		}
		contains(t, fmt.Sprint(c.args), out+errOut, c.wants...)
	}
}
