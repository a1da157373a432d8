package main

import (
	"errors"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
	"github.com/rail-cni/rail-cni/cmd/railctl/diagnose"
	"github.com/rail-cni/rail-cni/cmd/railctl/pools"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// version is set by the linker.
var version = "unknown"

// The process's first thread must never enter another namespace and stay there, because that would
// keep the namespace alive.
func init() { runtime.LockOSThread() }

func main() {
	cli.Version, cli.Program = version, cli.ProgramName(os.Args[0])
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run runs railctl with its arguments. It returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cli.RefuseUnknown(root)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	if !errors.Is(err, cli.ErrReported) {
		cli.Note(stderr, "%v", err)
	}
	if exit := cli.ExitCode(0); errors.As(err, &exit) {
		return int(exit)
	}
	if usage := (*cli.UsageError)(nil); errors.As(err, &usage) {
		return cli.ExitUsage
	}
	if cli.Judging(cmd) {
		return doctor.ExitUnknown
	}
	return 1
}

// extra are commands that exist only in builds with certain tags.
var extra []func(root *cobra.Command) *cobra.Command

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "railctl",
		Short: "Inspect and clean up what rail-cni has lent on this node",
		Long: `railctl shows which pods of this node hold which NICs and RDMA devices, ends
attachments whose pod is gone, and sets the RDMA mode. Run it as root on the node,
in the host's network namespace. (A debug pod needs hostNetwork: true, and the
host's /run must be mounted.)`,
		Version:       cli.Version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var stateDir string
	root.PersistentFlags().StringVar(&stateDir, "state-dir", nodefile.DefaultStateDir,
		`state directory of the plugins ("stateDir" in their configuration)`)
	_ = root.MarkPersistentFlagDirname("state-dir") // fails only for a flag that does not exist
	for _, newCommand := range []func(*string) *cobra.Command{newShow, newNICs, newTopology, newPod, newEnv, newIbdev2netdev} {
		root.AddCommand(cli.WithNode(newCommand(&stateDir), nil))
	}
	root.AddCommand(diagnose.NewDoctor(&stateDir), diagnose.NewCheck(), diagnose.NewVerify(), diagnose.NewReport(&stateDir), diagnose.NewSupportBundle(&stateDir, run), newGC(&stateDir), newRails(&stateDir), newRDMA(), pools.NewIPAM(&stateDir), newGenerate(), newMigrate(&stateDir), newInstall(), newReady(), newUninstall(), newVersion())
	for _, command := range extra {
		root.AddCommand(command(root))
	}
	if cli.Program == cli.PluginName {
		cli.AsPlugin(root)
	}
	return root
}
