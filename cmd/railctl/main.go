package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// version is set by the linker.
var version = "unknown"

// The process's first thread must never enter another namespace and stay there, because that would
// keep the namespace alive.
func init() { runtime.LockOSThread() }

func main() {
	program = nameOf(os.Args[0])
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// errReported is the error of a command that has already printed its errors.
var errReported = errors.New("said already")

// run runs railctl with its arguments. It returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	refuseUnknown(root)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	if !errors.Is(err, errReported) {
		fmt.Fprintf(forPeople{stderr}, "%s: %v\n", program, err)
	}
	if exit := exitCode(0); errors.As(err, &exit) {
		return int(exit)
	}
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		return exitUsage
	}
	if judging(cmd) {
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
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var stateDir string
	root.PersistentFlags().StringVar(&stateDir, "state-dir", nodefile.DefaultStateDir,
		`state directory of the plugins ("stateDir" in their configuration)`)
	_ = root.MarkPersistentFlagDirname("state-dir") // fails only for a flag that does not exist
	for _, of := range []func(*string) *cobra.Command{newShow, newNICs, newTopology, newPod, newEnv, newIbdev2netdev} {
		root.AddCommand(ofNode(of(&stateDir), nil))
	}
	root.AddCommand(newDoctor(&stateDir), newCheck(), newVerify(), newReport(&stateDir), newSupportBundle(&stateDir), newGC(&stateDir), newRails(&stateDir), newRDMA(), newIPAM(&stateDir), newGenerate(), newMigrate(&stateDir), newInstall(), newReady(), newUninstall(), newVersion())
	for _, command := range extra {
		root.AddCommand(command(root))
	}
	if program == pluginName {
		asPlugin(root)
	}
	return root
}

// requireRoot returns an error if the user is not root. It checks this early, because the kernel's
// errors about namespaces and files do not name the cure.
func requireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("this command needs root to read the node's state and network namespaces; run railctl as root on the node, or on another machine with --node if the command has this flag")
	}
	return nil
}

// reportErrors prints the errors of a command that could do only a part of its work. If there are
// any, it returns an error that makes railctl exit with 1.
func reportErrors(stderr io.Writer, errs []error) error {
	for _, err := range errs {
		fmt.Fprintf(forPeople{stderr}, "%s: %v\n", program, err)
	}
	if len(errs) > 0 {
		return errReported
	}
	return nil
}
