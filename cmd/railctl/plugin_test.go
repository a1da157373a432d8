package main

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
)

// asKubectlPlugin lets the test run the program under its other name.
func asKubectlPlugin(t *testing.T) {
	t.Helper()
	cli.Program = cli.ProgramName("/usr/local/bin/kubectl-rail")
	t.Cleanup(func() { cli.Program = cli.ProgramName("/usr/local/bin/railctl") })
}

func TestPluginOfKubectlNamesItself(t *testing.T) {
	asKubectlPlugin(t)
	for _, c := range []struct {
		args  string
		want  string
		fails bool
	}{
		{"--help", "kubectl rail [command]", false},
		{"--help", "kubectl rail shows which pods", false},
		{"doctor cluster --help", "kubectl rail doctor cluster [flags]", false},
		{"doctor cluster --help", "  kubectl rail doctor cluster --only", false},
		{"doctor cluster --help", `that "kubectl rail doctor collect --cluster" has printed`, false},
		{"shwo", `kubectl rail: unknown command "shwo" for "kubectl rail"; did you mean show?`, true},
		{"show", `kubectl rail: kubectl rail show needs a node: name it with --node, or run railctl show on the node itself`, true},
		{"ipam show --kubeconfig /none", "kubectl rail: ", true},
		{"pod", "name a pod: kubectl rail pod NAMESPACE/NAME", true},
		{"__complete show -o ", "table\nwide\njson\nyaml\n", false},
		{"__complete doctor clu", "cluster", false},
	} {
		out, errOut, code := plainRun(strings.Split(c.args, " ")...)
		if c.fails != (code != 0) || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: exit code %d, %q is not in\n%s%s", c.args, code, c.want, out, errOut)
		}
	}
	// Each help names the program that is run.
	for _, cmd := range commandsOf(wholeRoot()) {
		args := append(strings.Fields(strings.TrimPrefix(cmd.CommandPath(), cli.PluginName)), "--help")
		if out, _, _ := plainRun(args...); strings.Contains(out, "railctl ") {
			t.Errorf("%s:\n%s", cmd.CommandPath(), out)
		}
	}
}
