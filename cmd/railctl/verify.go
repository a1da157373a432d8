package main

import (
	"bytes"
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

	"github.com/rail-cni/rail-cni/pkg/netconf"
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
	format  doctorFormat
	cluster verifyCluster
}

func newVerify() *cobra.Command {
	v := &verifyFlags{format: doctorFormat(asTable)}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Measure the rails between nodes, and name those that are broken or slow",
		Long: `Measure each rail between each two nodes of a cluster, by a pod on each node that has
all rails of the networks (NetworkAttachmentDefinitions): the route, the neighbor's
answer, short packets and packets of the MTU, which may not be fragmented; their
losses and round trips. With --level 0 only the routes and neighbors; with 2 and 3
also RDMA, by perftest from the image of --rdma-image. Rails are
numbered from 0, in the order of the networks. Each finding names the rail of the
node that has the defect; if the paths do not tell which end of a path it is, it
names both, and a third node helps.

Rails that are isolated by --fabric, or by "fabric" in the nodes' file, must not reach
each other, which is tested too.

It runs anywhere with a kubeconfig, and not as root. The account needs the rights to
list pods, and to get network-attachment-definitions; in --namespace to create, list
and delete jobs, list pods and events, and create pods/attach. The pods are Jobs of
its own, which are gone when it ends. If it is killed they end by themselves: their
NICs return at once, or in half a minute if the connection hangs, and Kubernetes
deletes the rest. A rail that another pod uses is not measured.

With --netns network namespaces of this machine take the place of nodes. Rails are
then their interfaces net1, net2, … or those of --interfaces. It changes nothing in
the namespaces, and needs root.

The exit code is 0 if the rails are healthy, 1 if something is wrong, and 2 if it
could not be judged.`,
		Example: `  railctl verify
  railctl verify --namespace ml --network rail-0,rail-1 --nodes gpu-1,gpu-2 --html rails.html
  railctl verify --netns node-a,node-b,node-c --interfaces ens1f0,ens2f0 --fabric isolated`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := v.run(cmd)
			if exit := (exitCode{}); err != nil && !errors.As(err, &exit) {
				return exitCode{code: verify.ExitUnknown, err: err}
			}
			return err
		},
	}
	flags := cmd.Flags()
	v.cluster.add(flags)
	flags.StringSliceVar(&v.netns, "netns", nil, "instead of a cluster: network namespaces, as names of \"ip netns\" or as paths; two or more")
	flags.StringSliceVar(&v.Interfaces, "interfaces", nil, "with --netns: the rails of each namespace; else the interfaces net1, net2, …")
	flags.StringVar(&v.fabric, "fabric", "", "how rails reach each other: "+strings.Join(verify.Fabrics, ", ")+"; else the node file's \"fabric\"")
	flags.StringVar(&v.html, "html", "", "also write the result as a page to `FILE`")
	flags.IntVar(&v.level, "level", 1, "0: routes and neighbors; 1: also losses, round trips and packets of the MTU; 2: also messages by RDMA; 3: also its latency and bandwidth")
	flags.IntVar(&v.Count, "probes", 100, "short packets in each direction of a rail, 20 to 10000")
	flags.VarP(&v.format, "output", "o", strings.Join(doctorFormats, ", "))
	// These fail only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(doctorFormats, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("fabric", cobra.FixedCompletions(verify.Fabrics, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(newVerifyProbe(), newVerifyExec(), newVerifyCopy())
	return cmd
}

// newVerifyProbe returns the command that "railctl verify" runs in each namespace, and in each
// pod.
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
	cmd.Flags().DurationVar(&idle, "idle", 0, "end when no request has come for so long; 0 is never")
	return cmd
}

// newVerifyExec returns the command by which a prober runs programs of perftest.
func newVerifyExec() *cobra.Command {
	return &cobra.Command{
		Use:    "exec -- PROGRAM ARGUMENT …",
		Short:  "Run a program that finds this network namespace's RDMA devices",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return probe.Exec(args) },
	}
}

// newVerifyCopy returns the command by which a pod brings this program into another image.
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
			return os.WriteFile(args[0], text, 0o755) //nolint:gosec // the other container runs it
		},
	}
}

// contextOf returns the command's context, which is nil in a test.
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
	v.Version, v.Brief, v.RDMA = version, v.level == 0, max(v.level-1, 0)
	ctx, stop := signal.NotifyContext(contextOf(cmd), unix.SIGINT, unix.SIGTERM)
	defer stop()
	var result *verify.Result
	var err error
	if len(v.netns) > 0 {
		result, err = v.inNamespaces(ctx, cmd)
	} else {
		result, err = v.inCluster(ctx, cmd)
	}
	if err != nil {
		return err
	}
	return v.report(cmd.OutOrStdout(), result)
}

// check refuses flags that do not fit.
func (v *verifyFlags) check() error {
	switch {
	case v.Count < 20 || v.Count > 10_000:
		return fmt.Errorf("--probes is %d; it is 20 to 10000", v.Count)
	case v.level < 0 || v.level > 3:
		return fmt.Errorf("--level is %d; it is 0 to 3", v.level)
	case v.fabric != "" && !slices.Contains(verify.Fabrics, v.fabric):
		return fmt.Errorf("--fabric is %q; it is one of %s", v.fabric, strings.Join(verify.Fabrics, ", "))
	case len(v.netns) > 0:
		return v.checkNamespaces()
	case len(v.Interfaces) > 0:
		return errors.New("--interfaces is for --netns; in a cluster name the rails' networks by --network")
	}
	return v.cluster.check(v.level)
}

// checkNamespaces completes the flags of the form with --netns, or refuses them.
func (v *verifyFlags) checkNamespaces() error {
	seen := map[string]bool{}
	for _, ns := range v.netns {
		name, _ := namespaceOf(ns)
		if seen[name] {
			return fmt.Errorf("--netns has %s twice", printable(name))
		}
		seen[name] = true
	}
	if len(v.netns) < 2 {
		return errors.New("a rail has two ends; name two namespaces or more by --netns")
	}
	if v.Fabric = v.fabric; v.Fabric == "" {
		file, err := netconf.ReadNodeFile(netconf.NodeFilePath())
		if err != nil {
			return fmt.Errorf("%w; or name it by --fabric", err)
		}
		if file != nil {
			v.Fabric = file.Fabric
		}
	}
	return requireRoot()
}

// inNamespaces measures between namespaces of this machine.
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

// measure runs the probers, with a progress bar.
func (v *verifyFlags) measure(ctx context.Context, cmd *cobra.Command, nodes []verify.Node) (*verify.Result, error) {
	if bar := newProgress(cmd.ErrOrStderr(), "rounds"); bar != nil {
		v.Done = bar.round
		defer bar.clear()
	}
	return verify.Run(ctx, nodes, v.Options)
}

// namespaceOf returns the name and the path of a namespace.
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

// report prints the result, and returns the error that has its exit code.
func (v *verifyFlags) report(out io.Writer, result *verify.Result) error {
	if v.html != "" {
		var page bytes.Buffer
		if err := result.WriteHTML(&page); err != nil {
			return err
		}
		if err := os.WriteFile(v.html, page.Bytes(), 0o644); err != nil {
			return err
		}
	}
	write := result.WriteText
	if v.format == doctorFormat(asJSON) {
		write = result.WriteJSON
	}
	if err := write(out); err != nil {
		return err
	}
	if code := result.ExitCode(); code != verify.ExitHealthy {
		return exitCode{code: code}
	}
	return nil
}

// running shows how many pods run.
func (p *progress) running(now, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, "\rpods: %d of %d run", now, all)
}

// round shows how many rounds are measured.
func (p *progress) round(done, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, "\rrounds: %d of %d measured", done, all)
}
