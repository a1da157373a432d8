package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// version is set by the linker.
var version = "unknown"

// userAgent returns the name of the agent in the logs of servers.
func userAgent() string { return "rail-agent/" + version }

// The process's first thread must never enter another namespace and stay there, because that would
// keep the namespace alive.
func init() { runtime.LockOSThread() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// agentFlags are the flags of all commands.
type agentFlags struct {
	stateDirs []string
	verbose   bool
	level     string
	format    string
	log       *slog.Logger
}

// run runs rail-agent with these arguments until ctx ends. It returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	root := newRoot(stderr)
	root.SetArgs(args)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(stderr, "rail-agent: %v\n", err)
		return 1
	}
	return 0
}

// newRoot returns the root command of rail-agent. The commands log to stderr.
func newRoot(stderr io.Writer) *cobra.Command {
	a := &agentFlags{}
	root := &cobra.Command{
		Use:           "rail-agent",
		Short:         "Run rail-cni's agent on a node",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			var err error
			a.log, err = a.newLog(stderr)
			return err
		},
	}
	root.PersistentFlags().StringArrayVar(&a.stateDirs, "state-dir", []string{nodefile.DefaultStateDir},
		`state directory of the plugins ("stateDir" in their configuration); for run it may be given several times`)
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "also log debug messages; the same as --log-level=debug")
	root.PersistentFlags().StringVar(&a.level, "log-level", "info", "lowest level that is logged: debug, info, warn or error")
	root.PersistentFlags().StringVar(&a.format, "log-format", "text", "format of the log on stderr: text (key=value), or json (one object on each line)")
	root.AddCommand(newRun(a), newProbe(a), newFacts(a), newReadFacts(), newIPAM(a), newUninstall(a), newVersion())
	return root
}

// newLog returns the logger that the flags describe.
func (a *agentFlags) newLog(stderr io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.level)); err != nil {
		return nil, fmt.Errorf("--log-level is %q; it must be debug, info, warn or error", a.level)
	}
	if a.verbose {
		level = slog.LevelDebug
	}
	options := &slog.HandlerOptions{Level: level}
	switch a.format {
	case "text":
		return slog.New(slog.NewTextHandler(stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(stderr, options)), nil
	}
	return nil, fmt.Errorf("--log-format is %q; it must be text or json", a.format)
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "rail-agent (rail-cni) %s\n%s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
