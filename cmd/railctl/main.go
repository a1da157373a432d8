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

// The process's first thread must never be parked in another namespace: that
// would keep the namespace alive.
func init() { runtime.LockOSThread() }

func main() {
	program = nameOf(os.Args[0])
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// errReported is returned by a command that has printed its errors itself.
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

// extra are commands that only a build with tags has.
var extra []func(root *cobra.Command) *cobra.Command

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "railctl",
		Short: "Inspect and clean up what rail-cni has lent on this node",
		Long: `railctl shows which pods of this node hold which NICs and RDMA devices, ends
attachments whose pod is gone, and sets the RDMA mode. Run it as root on the node,
in the host's network namespace. (In a debug pod: hostNetwork: true, and the host's
/run mounted.)`,
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var stateDir string
	root.PersistentFlags().StringVar(&stateDir, "state-dir", nodefile.DefaultStateDir,
		`state directory of the plugins, the "stateDir" of their configuration`)
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

// requireRoot returns an error with the cure, because the kernel's error about
// a namespace or a file does not name it.
func requireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("it needs root, to read the node's state and network namespaces; run railctl as root on the node, or from elsewhere with --node if the command has it")
	}
	return nil
}

// reportErrors prints errors that did not keep a command from doing the rest, and
// returns the error that makes it exit with 1.
func reportErrors(stderr io.Writer, errs []error) error {
	for _, err := range errs {
		fmt.Fprintf(forPeople{stderr}, "%s: %v\n", program, err)
	}
	if len(errs) > 0 {
		return errReported
	}
	return nil
}
