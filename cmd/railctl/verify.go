package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/verify"
	"github.com/rail-cni/rail-cni/pkg/verify/probe"
)

// verifyFlags are the flags of "railctl verify".
type verifyFlags struct {
	netns  []string
	fabric string
	html   string
	verify.Options
	format doctorFormat
}

func newVerify() *cobra.Command {
	v := &verifyFlags{format: doctorFormat(asTable)}
	cmd := &cobra.Command{
		Use:   "verify --netns NETNS --netns NETNS …",
		Short: "Measure the rails between network namespaces, and name those that are broken or slow",
		Long: `Measure each rail between each two of the network namespaces, which take the place of
nodes: the route, the neighbor's answer, short packets and packets of the MTU, which
may not be fragmented; their losses and round trips. Rails are the interfaces net1,
net2, … or those of --interfaces, in this order, and are numbered from 0. Each
finding names the rail of the node that has the defect; if the paths do not tell
which end of a path it is, it names both, and a third namespace helps.

Rails that are isolated by --fabric, or by "fabric" in the node file, must not reach
each other, which is tested too.

It changes nothing in the namespaces. Its probers are processes that end with it,
also if it is killed. Run it as root.

The exit code is 0 if the rails are healthy, 1 if something is wrong, and 2 if it
could not be judged.`,
		Example: `  railctl verify --netns node-a --netns node-b
  railctl verify --netns node-a,node-b,node-c --interfaces ens1f0,ens2f0 --fabric isolated
  railctl verify --netns node-a,node-b --html rails.html -o json`,
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
	flags.StringSliceVar(&v.netns, "netns", nil, "network namespaces, as names of \"ip netns\" or as paths; two or more")
	flags.StringSliceVar(&v.Interfaces, "interfaces", nil, "the rails of each namespace; else the interfaces net1, net2, …")
	flags.StringVar(&v.fabric, "fabric", "", "how rails reach each other: "+strings.Join(verify.Fabrics, ", ")+"; else the node file's \"fabric\"")
	flags.StringVar(&v.html, "html", "", "also write the result as a page to `FILE`")
	flags.IntVar(&v.Count, "probes", 100, "short packets in each direction of a rail, 20 to 10000")
	flags.VarP(&v.format, "output", "o", strings.Join(doctorFormats, ", "))
	// These fail only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(doctorFormats, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("fabric", cobra.FixedCompletions(verify.Fabrics, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(newVerifyProbe())
	return cmd
}

// newVerifyProbe returns the command that "railctl verify" runs in each namespace.
func newVerifyProbe() *cobra.Command {
	return &cobra.Command{
		Use:    "probe",
		Short:  "Measure in this network namespace for railctl verify, by JSON lines on stdin and stdout",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return probe.Serve(contextOf(cmd), cmd.InOrStdin(), cmd.OutOrStdout())
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
	v.Version = version
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(contextOf(cmd))
	defer cancel()
	var nodes []verify.Node
	for _, ns := range v.netns {
		name, path := namespaceOf(ns)
		child, err := probe.Start(ctx, path, program, "verify", "probe")
		if err != nil {
			return err
		}
		defer child.Close()
		nodes = append(nodes, verify.Node{Name: name, Prober: child})
	}
	if bar := newProgress(cmd.ErrOrStderr(), "rounds"); bar != nil {
		v.Done = bar.round
		defer bar.clear()
	}
	result, err := verify.Run(ctx, nodes, v.Options)
	if err != nil {
		return err
	}
	return v.report(cmd.OutOrStdout(), result)
}

// check completes the flags, or refuses them.
func (v *verifyFlags) check() error {
	seen := map[string]bool{}
	for _, ns := range v.netns {
		name, _ := namespaceOf(ns)
		if seen[name] {
			return fmt.Errorf("--netns has %s twice", printable(name))
		}
		seen[name] = true
	}
	switch {
	case len(v.netns) < 2:
		return errors.New("a rail has two ends; name two namespaces or more by --netns")
	case v.Count < 20 || v.Count > 10_000:
		return fmt.Errorf("--probes is %d; it is 20 to 10000", v.Count)
	case v.fabric != "" && !slices.Contains(verify.Fabrics, v.fabric):
		return fmt.Errorf("--fabric is %q; it is one of %s", v.fabric, strings.Join(verify.Fabrics, ", "))
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

// round shows how many rounds are measured.
func (p *progress) round(done, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, "\rrounds: %d of %d measured", done, all)
}
