package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/cell"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
	"github.com/rail-cni/rail-cni/pkg/page"
	"github.com/rail-cni/rail-cni/pkg/verify"
	"github.com/rail-cni/rail-cni/pkg/verify/probe"
)

// verifyFlags are the flags of "railctl verify".
type verifyFlags struct {
	netns  []string
	fabric string
	html   string
	level  int
	verify.Options
	format  *cli.Format
	cluster verifyCluster
}

// NewVerify returns the command "railctl verify".
func NewVerify() *cobra.Command {
	v := &verifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Measure the rails between nodes, and name rails that are broken or slow",
		Long: `Measure each rail between every two nodes of a cluster. The command makes a pod on
each node. The pod gets all rails from the rails' networks
(NetworkAttachmentDefinitions). Rails are numbered from 0, in the order of the
networks. For each path, the command tests the route and the neighbor. It measures
losses and round trips of short packets, and of packets as large as the MTU, which
may not be fragmented. --level 0 tests only routes and neighbors. The levels 2 and
3 also measure RDMA, with perftest from the image of --rdma-image.

Each finding names the node and the rail that have the defect. If the measured
paths do not show which end of a path has the defect, the finding names both ends.
In this case, run the command again with one more node to see which end it is.

If --fabric, or "fabric" in the node file, is "isolated", different rails must not
reach each other. The command then tests this as well.

The command runs on any machine with a kubeconfig and does not need root. The
account needs the rights to list pods, and to get and list
network-attachment-definitions. In the namespace of --namespace, it needs the
rights to create, list and delete jobs, to list pods and events, and to get and
create pods/attach. The pods belong to Jobs, which are deleted when railctl ends.
If railctl is killed, the pods end by themselves and Kubernetes deletes the Jobs.
The pods' NICs then return at once, or after half a minute if the connection hangs.
A rail that another pod uses is not measured.

With --netns, the command measures between network namespaces of this machine
instead of nodes. The rails are then the interfaces net1, net2, … or the interfaces
that --interfaces names. The command changes nothing in the network namespaces.
With --netns it needs root.

The exit code is 0 if the rails are healthy, 1 if there is a finding, and 2 if the
rails could not be evaluated.`,
		Example: `  railctl verify
  railctl verify --namespace ml --network rail-0,rail-1 --nodes gpu-1,gpu-2 --html rails.html
  railctl verify --netns node-a,node-b,node-c --interfaces ens1f0,ens2f0 --fabric isolated`,
		Args:        cobra.NoArgs,
		Annotations: cli.Judges,
		RunE:        func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	flags := cmd.Flags()
	v.cluster.add(cmd)
	flags.StringSliceVar(&v.netns, "netns", nil, "two or more network namespaces, instead of a cluster: names of \"ip netns\" or paths")
	flags.StringSliceVar(&v.Interfaces, "interfaces", nil, "with --netns: the interfaces of the rails in each network namespace (default: net1, net2, …)")
	flags.StringVar(&v.fabric, "fabric", "", "how rails reach each other: "+strings.Join(verify.Fabrics, ", ")+" (default: \"fabric\" of the node file)")
	flags.StringVar(&v.html, "html", "", "also write the result as a page to `FILE`")
	flags.IntVar(&v.level, "level", 1, "0: routes and neighbors; 1: also losses, round trips and packets of the MTU; 2: also messages by RDMA; 3: also latency and bandwidth of RDMA")
	flags.IntVar(&v.Count, "probes", 100, "short packets in each direction of a rail, 20 to 10000")
	v.format = cli.AddOutputFlag(cmd, "verify")
	// Fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("fabric", cobra.FixedCompletions(verify.Fabrics, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(newVerifyProbe(), newVerifyExec(), newVerifyCopy())
	return cmd
}

// newVerifyProbe returns the command that "railctl verify" runs in each network namespace or pod.
func newVerifyProbe() *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:    "probe",
		Short:  "Measure in this network namespace for railctl verify, by JSON lines on stdin and stdout",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return probe.Serve(contextOf(cmd), cmd.InOrStdin(), cmd.OutOrStdout(), idle)
		},
	}
	cmd.Flags().DurationVar(&idle, "idle", 0, "end after this time without a request; 0 means never")
	return cmd
}

// newVerifyExec returns the command with which a prober runs the programs of perftest.
func newVerifyExec() *cobra.Command {
	return &cobra.Command{
		Use:    "exec -- PROGRAM ARGUMENT …",
		Short:  "Run a program so that it finds the RDMA devices of this network namespace",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return probe.Exec(args) },
	}
}

// newVerifyCopy returns the command with which a pod copies this program into a container with
// another image.
func newVerifyCopy() *cobra.Command {
	return &cobra.Command{
		Use:    "copy FILE",
		Short:  "Copy this program",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			text, err := os.ReadFile(self)
			if err != nil {
				return err
			}
			return os.WriteFile(args[0], text, 0o755) //nolint:gosec // the other container runs the copy
		},
	}
}

// contextOf returns the command's context. In a test the command has no context, so contextOf
// returns the background context.
func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

func (v *verifyFlags) run(cmd *cobra.Command) error {
	if err := v.check(); err != nil {
		return err
	}
	if len(v.netns) > 0 {
		for _, name := range []string{"kubeconfig", "namespace", "network", "nodes", "selector", "image", "rdma-image", "start-timeout", "timeout", "agent-namespace"} {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s applies only to a cluster; leave out either --%[1]s or --netns", name)
			}
		}
	}
	v.Version, v.Brief, v.RDMA = cli.Version, v.level == 0, max(v.level-1, 0)
	ctx, stop := signal.NotifyContext(contextOf(cmd), unix.SIGINT, unix.SIGTERM)
	defer stop()
	var result *verify.Result
	var err error
	if len(v.netns) > 0 {
		result, err = v.inNamespaces(ctx, cmd)
	} else {
		result, err = v.inCluster(ctx, cmd)
	}
	if err != nil && (result == nil || len(result.Findings) == 0) {
		return err
	}
	if err != nil { // the results so far are still reported
		cli.Note(cmd.ErrOrStderr(), "%s", cell.Printable(err.Error()))
	}
	return v.report(cmd.OutOrStdout(), result)
}

// check returns an error if the values of the flags are not valid or do not fit together.
func (v *verifyFlags) check() error {
	switch {
	case v.Count < 20 || v.Count > 10_000:
		return fmt.Errorf("--probes is %d; it must be 20 to 10000", v.Count)
	case v.level < 0 || v.level > 3:
		return fmt.Errorf("--level is %d; it must be 0 to 3", v.level)
	case v.fabric != "" && !slices.Contains(verify.Fabrics, v.fabric):
		return fmt.Errorf("--fabric is %q; it must be one of %s", v.fabric, strings.Join(verify.Fabrics, ", "))
	case len(v.netns) > 0:
		return v.checkNamespaces()
	case len(v.Interfaces) > 0:
		return errors.New("--interfaces applies only to --netns; for a cluster, name the rails' networks with --network")
	}
	return v.cluster.check(v.level)
}

// checkNamespaces checks the flags of a run with --netns, and sets defaults.
func (v *verifyFlags) checkNamespaces() error {
	seen := map[string]bool{}
	for _, ns := range v.netns {
		name, _ := namespaceOf(ns)
		if seen[name] {
			return fmt.Errorf("--netns has %s twice", cell.Printable(name))
		}
		seen[name] = true
	}
	if len(v.netns) < 2 {
		return errors.New("a rail has two ends; name at least two namespaces with --netns")
	}
	if v.Fabric = v.fabric; v.Fabric == "" {
		file, err := nodefile.Read(nodefile.Path())
		if err != nil {
			return fmt.Errorf("%w; or name the fabric with --fabric", err)
		}
		if file != nil {
			v.Fabric = file.Fabric
		}
	}
	return cli.RequireRoot()
}

// inNamespaces measures between network namespaces of this machine.
func (v *verifyFlags) inNamespaces(ctx context.Context, cmd *cobra.Command) (*verify.Result, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var nodes []verify.Node
	for _, ns := range v.netns {
		name, path := namespaceOf(ns)
		child, err := probe.Start(ctx, path, program, "verify", "probe")
		if err != nil {
			return nil, err
		}
		defer child.Close()
		nodes = append(nodes, verify.Node{Name: name, Prober: child})
	}
	return v.measure(ctx, cmd, nodes)
}

// measure runs the probers, and shows the progress.
func (v *verifyFlags) measure(ctx context.Context, cmd *cobra.Command, nodes []verify.Node) (*verify.Result, error) {
	bar := cli.NewProgress(cmd.ErrOrStderr())
	v.Done = bar.Show("rounds: %d of %d measured")
	defer bar.Clear()
	return verify.Run(ctx, nodes, v.Options)
}

// namespaceOf returns the name and the path of the network namespace ns, which is a name of "ip
// netns" or a path.
func namespaceOf(ns string) (name, path string) {
	const dir = "/run/netns"
	if !strings.Contains(ns, "/") {
		return ns, filepath.Join(dir, ns)
	}
	if path = filepath.Clean(ns); filepath.Dir(path) == dir {
		return filepath.Base(path), path
	}
	return path, path
}

// report prints the result. It returns an error that carries the exit code.
func (v *verifyFlags) report(out io.Writer, result *verify.Result) error {
	if err := cli.WriteAs(*v.format, out, result.WriteJSON, result.WriteText); err != nil {
		return err
	}
	if v.html != "" {
		text, err := page.Measured(result)
		if err != nil {
			return err
		}
		if err := os.WriteFile(v.html, text, 0o644); err != nil {
			return err
		}
	}
	if code := result.ExitCode(); code != verify.ExitHealthy {
		return cli.ExitCode(code)
	}
	return nil
}
