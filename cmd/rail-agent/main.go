package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// agent is what all commands share.
type agent struct {
	stateDir string
	verbose  bool
	log      *slog.Logger
}

// run is rail-agent with its arguments, until ctx ends. It gives the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	a := &agent{}
	root := &cobra.Command{
		Use:           "rail-agent",
		Short:         "Keep a node of rail-cni in order",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRun: func(*cobra.Command, []string) {
			level := slog.LevelInfo
			if a.verbose {
				level = slog.LevelDebug
			}
			a.log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
		},
	}
	root.PersistentFlags().StringVar(&a.stateDir, "state-dir", netconf.DefaultStateDir,
		`state directory of the plugins, the "stateDir" of their configuration`)
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "log also what changes nothing")
	root.AddCommand(newIPAM(a))
	root.SetArgs(args)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(stderr, "rail-agent: %v\n", err)
		return 1
	}
	return 0
}
