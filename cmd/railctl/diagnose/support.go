package diagnose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/install"
	"github.com/rail-cni/rail-cni/pkg/page"
	"github.com/rail-cni/rail-cni/pkg/support"
)

// supportFlags are the flags of "railctl support-bundle".
type supportFlags struct {
	doctorFlags
	file    string
	nodes   []string
	agents  string // the namespace of the agents' pods
	local   bool
	since   time.Duration
	timeout time.Duration

	run func(args []string, stdout, stderr io.Writer) int // railctl itself
}

// NewSupportBundle returns the command "railctl support-bundle". run runs railctl with arguments, and
// returns the exit code.
func NewSupportBundle(stateDir *string, run func(args []string, stdout, stderr io.Writer) int) *cobra.Command {
	s := supportFlags{doctorFlags: doctorFlags{stateDir: stateDir}, run: run}
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write one file for support, without secrets: facts, findings, logs, networks, Events",
		Long: `Write a .tar.gz file with everything that a person needs to find a problem without
access to the cluster. The file README.txt in it lists the other files, what was
left out, and what could not be read.

With a kubeconfig, the bundle describes the cluster, and you need not be root. It
has the facts and findings of "railctl doctor cluster", the page of "railctl
report", the logs of rail-cni's pods, rail-cni's objects, the
NetworkAttachmentDefinitions, the nodes and Events. For each node it has the node
file and the output of "railctl show", "railctl nics" and "railctl version" in the
agent's pod. Without a kubeconfig, or with --local, the bundle describes only this
node. Then run the command as root.

Secrets, ConfigMaps and kubeconfigs are not read. In all files, private keys,
tokens and passwords are replaced. Values of environment variables are replaced if
the variable's name suggests a secret. Names and addresses are kept.

The account needs the same rights as for "railctl doctor cluster". It also needs
the rights to get pods/log and to list events, daemonsets and deployments. If
something could not be read, the bundle has the rest, and the exit code is 1.`,
		Example: `  kubectl rail support-bundle
  railctl support-bundle -o bundle.tar.gz --node gpu-7 --since 1h
  railctl support-bundle --local`,
		Args: cobra.NoArgs,
	}
	s.addKubeconfig(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&s.file, "file", "o", "", `write the bundle to FILE, "-" for stdout (default: rail-cni-support-TIME.tar.gz)`)
	flags.StringSliceVar(&s.nodes, "node", nil, "include only these nodes (default: all nodes with a rail-agent)")
	flags.StringVar(&s.agents, "agent-namespace", cli.DefaultAgentNamespace, "namespace of rail-agent's pods")
	flags.StringVarP(&s.Namespace, "namespace", "n", "", "namespace of the address pools (default: the namespace of the kubeconfig's context, or kube-system)")
	flags.BoolVar(&s.local, "local", false, "include only this node, and do not ask the cluster")
	flags.DurationVar(&s.since, "since", 24*time.Hour, "maximum age of logs and Events")
	flags.DurationVar(&s.timeout, "timeout", 5*time.Minute, "time limit of the whole bundle; what was not read in this time is missing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case s.local && len(s.nodes) > 0:
			return errors.New("--local and --node exclude each other")
		case s.since < time.Second || s.timeout < time.Second:
			return errors.New("--since and --timeout must be at least 1s")
		}
		ofCluster := !s.local && s.Named()
		if len(s.nodes) > 0 && !ofCluster {
			return errors.New("--node needs a cluster; name a kubeconfig with --kubeconfig or $KUBECONFIG")
		}
		return s.write(cmd, ofCluster)
	}
	return cmd
}

// write writes the bundle. If ofCluster is true, the bundle describes the cluster, otherwise only
// this node.
func (s *supportFlags) write(cmd *cobra.Command, ofCluster bool) error {
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), s.timeout, fmt.Errorf("the bundle was not complete within --timeout, %s", s.timeout))
	defer cancel()
	cmd.SetContext(ctx)
	taken := time.Now()
	name := "rail-cni-support-" + taken.UTC().Format("20060102-150405")
	var missing []string
	fill := func(out io.Writer) (err error) {
		b := support.New(out, name, fmt.Sprintf("Support bundle of rail-cni, by railctl %s.", cli.Version), taken)
		if ofCluster {
			s.addCluster(cmd, b)
		} else {
			s.addNode(cmd, b)
		}
		missing, err = b.Close()
		return err
	}
	if isStdout(s.file) {
		s.file = cli.Stdout
	}
	err := error(nil)
	switch {
	case s.file == cli.Stdout:
		err = fill(cmd.OutOrStdout())
	case s.file == "":
		s.file = name + ".tar.gz"
		err = fillFile(s.file, os.O_CREATE|os.O_EXCL, fill) // O_EXCL: in another user's directory, a link could trick root
	case isDevice(s.file):
		err = fillFile(s.file, os.O_TRUNC, fill)
	default:
		err = install.Write(s.file, bundleMode, func(file *os.File) error { return fill(file) })
	}
	if err != nil {
		return fmt.Errorf("the bundle %s is not complete: %w", s.file, err)
	}
	if s.file != cli.Stdout {
		fmt.Fprintf(cmd.OutOrStdout(), "%s is written; README.txt in it lists the contents\n", s.file)
	}
	return cli.ReportErrors(cmd.ErrOrStderr(), brief(missing))
}

// bundleMode is the mode of a bundle's file.
const bundleMode = 0o600

// fillFile opens a file with the flags for os.OpenFile, and calls fill to write its content.
func fillFile(path string, flags int, fill func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY|flags, bundleMode)
	if err != nil {
		return err
	}
	return errors.Join(fill(file), file.Close())
}

// isStdout reports whether the path leads to the same file as this process's stdout. For example,
// /dev/stdout does.
func isStdout(path string) bool {
	info, err := os.Stat(path)
	out, outErr := os.Stdout.Stat()
	return err == nil && outErr == nil && os.SameFile(info, out)
}

// isDevice reports whether the path must be written to and must not be replaced by a new file. This
// is so for a device, for a pipe, and for the target of one of the system's links, such as
// /dev/stderr.
func isDevice(path string) bool {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return true
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	below := func(parent string) bool { return strings.HasPrefix(dir+"/", parent) }
	return err == nil && (below("/proc/") || below("/dev/") && !below("/dev/shm/"))
}

// brief returns errors for the missing parts, but only as many as fit on a terminal.
func brief(missing []string) (errs []error) {
	const few = 10
	for i, m := range missing {
		if i == few {
			return append(errs, fmt.Errorf("and %d more are missing: see README.txt in the bundle", len(missing)-few))
		}
		errs = append(errs, fmt.Errorf("not in the bundle: %s", m))
	}
	return errs
}

// addCluster adds the files about the cluster and its nodes to the bundle.
func (s *supportFlags) addCluster(cmd *cobra.Command, b *support.Bundle) {
	client, err := s.Open(cli.UserAgent())
	if err != nil {
		b.Missing("the cluster", err)
		return
	}
	f, err := s.readCluster(cmd, s.agents, s.nodes...)
	if err != nil {
		b.Missing("facts.json", err)
	} else {
		addFindings(b, f, judgeCluster(doctor.Rules(), f))
	}
	b.AddCluster(cmd.Context(), support.ClusterOptions{Client: client, Namespace: s.agents, Nodes: s.nodes, Since: s.since})
}

// addNode adds the files about this node to the bundle.
func (s *supportFlags) addNode(cmd *cobra.Command, b *support.Bundle) {
	one := s.doctorFlags
	one.alone = s.local
	f, err := one.read(cmd)
	if err != nil {
		b.Missing("facts.json", err)
	} else {
		addFindings(b, f, rule.Judge(rule.Select(doctor.Rules(), rule.NodeScope, rule.PodScope, rule.ConfigScope), f))
	}
	for _, what := range support.Printed {
		var out, errOut bytes.Buffer
		code := s.run(append(append([]string{}, what.Args...), "--state-dir", *s.stateDir), &out, &errOut)
		path := "node/" + what.File
		if code != 0 {
			b.Missing(path, errors.New(strings.TrimSpace(errOut.String())))
		}
		if out.Len() > 0 {
			if err := b.AddText(path, what.About, out.Bytes()); err != nil {
				b.Missing(path, err)
			}
		}
	}
	b.AddPodLogs(support.PodLogs, s.agents)
}

// addFindings adds the facts, the findings, a page about them, and the node files that the facts
// contain.
func addFindings(b *support.Bundle, f *fact.Facts, results []rule.Result) {
	b.AddJSON("facts.json", "the facts, for railctl doctor --facts or railctl doctor cluster --facts", f)
	var text, document bytes.Buffer
	if err := errors.Join(
		doctor.WriteText(&text, results, doctor.TextOptions{Verbose: true, Notes: doctor.NewDocument(f, results).Notes}),
		doctor.NewDocument(f, results).WriteJSON(&document),
	); err != nil {
		b.Missing("findings.txt", err)
	}
	b.Add("findings.txt", "the report of railctl doctor about the facts", text.Bytes())
	if err := b.AddText("findings.json", "the same report as -o json prints it", document.Bytes()); err != nil {
		b.Missing("findings.json", err)
	}
	nodes := []*fact.Facts{f}
	if f.Cluster != nil {
		nodes = f.Cluster.Nodes
		for name, why := range f.Cluster.Silent.Value {
			b.Missing("the facts of "+name, errors.New(why))
		}
	}
	if len(nodes) > 0 {
		html, err := page.Report(nodes, results, nil, cli.Version)
		if err != nil {
			b.Missing("report.html", err)
		} else {
			b.Add("report.html", "the report as a page", html)
		}
	}
	for _, n := range nodes {
		if n == nil || n.Configs == nil {
			continue
		}
		dir := "node/"
		if f.Cluster != nil {
			dir = "nodes/" + n.Node + "/"
		}
		for i, c := range n.Configs.Files.Value {
			if c.Kind == fact.NodeFile {
				b.Add(dir+"node.yaml", "the node file", []byte(c.Text))
			} else {
				b.Add(fmt.Sprintf("%sconfig-%d.json", dir, i), "the "+string(c.Kind)+" that the node file names", []byte(c.Text))
			}
		}
	}
}
