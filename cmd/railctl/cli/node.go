package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rail-cni/rail-cni/cmd/internal/cluster"
	"github.com/rail-cni/rail-cni/pkg/agent/remote"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// DefaultAgentNamespace is the namespace of rail-agent's pods in the manifests.
const DefaultAgentNamespace = "kube-system"

// nodeFlags are the flags of a command about one node. With these flags the command can run in the
// pod of rail-agent on another node.
type nodeFlags struct {
	*cluster.Flags
	node, agents string
}

// WithNode adds the flag --node to a command about one node. If the user sets the flag, the command's
// RunE runs the same railctl command in the agent's pod on that node. f has the command's flags
// about the cluster, or is nil if the command has none.
func WithNode(cmd *cobra.Command, f *cluster.Flags) *cobra.Command {
	if f == nil {
		f = &cluster.Flags{WithoutPlugins: true}
		AddClusterFlags(cmd, f)
	}
	n := &nodeFlags{Flags: f}
	cmd.Flags().StringVar(&n.node, "node", "", "run the command in rail-agent's pod on this node of the cluster, through the API server")
	cmd.Flags().StringVar(&n.agents, "agent-namespace", DefaultAgentNamespace, "with --node: namespace of rail-agent's pods")
	local := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case n.node != "":
			return n.run(cmd, args)
		case Program == PluginName && !cmd.Flags().Changed("facts"):
			return fmt.Errorf("%s needs a node: name it with --node, or run %s on the node itself",
				cmd.CommandPath(), "railctl"+strings.TrimPrefix(cmd.CommandPath(), PluginName))
		}
		return local(cmd, args)
	}
	return cmd
}

// These flags are not passed on to the node. flagsHere say how to reach the node. fileFlags name
// files on this machine. They are allowed only if the file is stdout.
var (
	flagsHere = []string{"node", "agent-namespace", "kubeconfig", "context", "cluster", "request-timeout"}
	fileFlags = []string{"facts", "svg"}
)

// run runs the command on the node.
func (n *nodeFlags) run(cmd *cobra.Command, args []string) error {
	command, err := commandLine(cmd, args)
	if err != nil {
		return err
	}
	client, err := n.Open(UserAgent())
	if err != nil {
		return err
	}
	pods, err := remote.Pods(cmd.Context(), client, n.agents)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pods, func(p remote.Pod) bool { return p.Node == n.node })
	if i < 0 {
		var names []string
		for _, p := range pods {
			names = append(names, p.Node)
		}
		return fmt.Errorf("node %s has no pod of rail-agent in the namespace %s; these have one: %s",
			cell.Printable(n.node), cell.Printable(n.agents), cell.Printable(strings.Join(names, ", ")))
	}
	out, errOut := &passed{to: cmd.OutOrStdout()}, &passed{to: Escaper(cmd.ErrOrStderr())}
	if _, ok := terminal(out.to); ok {
		out.to = Escaper(out.to)
	}
	err = pods[i].Railctl(cmd.Context(), client, command, out, errOut)
	err = errors.Join(err, out.end(), errOut.end())
	if exit := (*kube.ExitError)(nil); errors.As(err, &exit) {
		if exit.Code >= exitNotRun || !out.any && !errOut.any {
			Note(cmd.ErrOrStderr(), "%v", err)
		}
		return ExitCode(exit.Code) // the program on the node has printed the reason
	}
	return err
}

// exitNotRun is the smallest exit code that means that the runtime could not run the program, or
// that a signal ended the program.
const exitNotRun = 126

// passed passes on the output of a program on the node. It never splits a character.
type passed struct {
	to   io.Writer
	any  bool   // true if the program has printed something
	rest []byte // the beginning of a character that is not complete yet
}

// Write writes p. If p ends in the middle of a character, Write keeps the beginning of this
// character for the next call.
func (w *passed) Write(p []byte) (int, error) {
	w.any = w.any || len(p) > 0
	text := append(w.rest, p...)
	whole := len(text)
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				whole = i
			}
			break
		}
	}
	w.rest = slices.Clone(text[whole:])
	_, err := w.to.Write(text[:whole])
	return len(p), err
}

// end writes the rest, if the output ended in the middle of a character.
func (w *passed) end() error {
	_, err := w.to.Write(w.rest)
	w.rest = nil
	return err
}

// commandLine returns the arguments with which railctl runs the same command on the node.
func commandLine(cmd *cobra.Command, args []string) (line []string, err error) {
	for c := cmd; c.HasParent(); c = c.Parent() {
		line = slices.Insert(line, 0, c.Name())
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch values, isList := f.Value.(pflag.SliceValue); {
		case slices.Contains(flagsHere, f.Name):
		case slices.Contains(fileFlags, f.Name) && (f.Name != "svg" || f.Value.String() != Stdout):
			err = fmt.Errorf("--node and --%s FILE exclude each other, because the file would be on the node", f.Name)
		case isList:
			for _, v := range values.GetSlice() {
				line = append(line, "--"+f.Name+"="+v)
			}
		default:
			line = append(line, "--"+f.Name+"="+f.Value.String())
		}
	})
	if cmd.Flags().Changed("svg") && len(args) > 0 && err == nil {
		err = errors.New("--node and --svg FILE exclude each other, because the file would be on the node; write it to stdout with --svg=-")
	}
	if len(args) > 0 {
		line = append(append(line, "--"), args...)
	}
	return line, err
}
