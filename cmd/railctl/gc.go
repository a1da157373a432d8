package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/attach"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// ending is one line of "railctl gc": an attachment, why it is to be ended,
// and what came of it.
type ending struct {
	attachment
	Why     string `json:"why"`
	Outcome string `json:"outcome"`         // see the constants
	Error   string `json:"error,omitempty"` // why it was not ended
}

// The outcomes.
const (
	ended    = "ended"
	wouldEnd = "would be ended"
	busy     = "busy"
	notEnded = "not ended"
)

func newGC(stateDir *string) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "End the attachments whose pod is gone: bring their NICs home, free their addresses",
		Long: `End the attachments of this host netns whose pod network namespace no longer
exists (the pod was killed without a CNI DEL, or the runtime lost it): the NIC
comes home as it was, the IPAM plugin frees the addresses, the record goes. So
are those ended whose addresses could not be freed earlier. Attachments of
living pods are never touched.

Every ADD does the same before it begins, so this is for a node on which no pod
starts, and for reading why something cannot be ended.

The exit code is 1 if something could not be ended; the reason is in the last
column. "busy" means that a plugin is just working on it.`,
		Example: `  railctl gc --dry-run
  railctl gc
  railctl gc -o json | jq -r '.[] | select(.outcome == "not ended") | .error'`,
		Args: cobra.NoArgs,
	}
	output := addOutputFlag(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be ended, and why")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return collect(cmd, *stateDir, output, dryRun)
	}
	return cmd
}

func collect(cmd *cobra.Command, stateDir string, output *format, dryRun bool) error {
	if err := requireRoot(); err != nil {
		return err
	}
	var endings []ending
	var errs []error
	if ledger.Exists(stateDir) {
		n, err := attach.Open(stateDir)
		if err != nil {
			return err
		}
		defer n.Close()
		n.Log = plainLog(cmd.ErrOrStderr())
		endings, errs = sweep(cmd.Context(), n, dryRun)
	}
	if err := printEndings(cmd, output, endings); err != nil {
		return err
	}
	return reportErrors(cmd.ErrOrStderr(), errs)
}

// plainLog logs for a person at a terminal: warnings, without the time.
func plainLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// sweep sweeps, and finds out what became of each attachment that was stale
// before. It looks afterwards: a sweep passes over what another process works
// on, and keeps the record of an address that cannot be freed yet.
func sweep(ctx context.Context, n *attach.Node, dryRun bool) ([]ending, []error) {
	stale, errs := n.Stale()
	endings := []ending{}
	for _, r := range stale {
		endings = append(endings, ending{attachment: describe(r, netnsState(n, r)), Why: why(n, r), Outcome: wouldEnd})
	}
	if dryRun {
		return endings, errs
	}
	if ctx == nil {
		ctx = context.Background()
	}
	swept := n.Sweep(ctx, ledger.Key{})
	left, _ := n.Stale() // what it cannot read was reported above
	failed := 0
	for i := range endings {
		e := &endings[i]
		key := stale[i].Key
		e.conclude(key, swept, left)
		if e.Outcome != ended {
			failed++
		}
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d of %d attachments could not be ended", failed, len(endings)))
	}
	return endings, errs
}

// conclude says what became of the attachment.
func (e *ending) conclude(key ledger.Key, swept []attach.Swept, left []*ledger.Record) {
	is := func(r *ledger.Record) bool { return r.Key == key }
	tried := slices.IndexFunc(swept, func(s attach.Swept) bool { return is(s.Record) })
	still := slices.IndexFunc(left, is)
	switch {
	case tried >= 0 && swept[tried].Err != nil:
		e.Outcome, e.Error = notEnded, swept[tried].Err.Error()
	case still < 0:
		e.Outcome = ended
	case tried < 0:
		e.Outcome, e.Error = busy, "another process works on it; try again"
	default:
		e.Phase = left[still].Phase
		e.Outcome, e.Error = notEnded, "the NIC is home, but the addresses could not be freed: "+missing(left[still])
	}
}

func missing(r *ledger.Record) string {
	if r.IPAM == nil {
		return "see the warnings"
	}
	return fmt.Sprintf("IPAM plugin %q is not in %s; install it, then run railctl gc again", r.IPAM.Type, r.IPAM.Path)
}

// why says why a sweep ends the attachment.
func why(n *attach.Node, r *ledger.Record) string {
	switch {
	case !n.Ledger.OfThisBoot(r):
		return "it is of an earlier boot"
	case r.Phase == ledger.Freeing:
		return "its addresses are still to be freed"
	}
	return fmt.Sprintf("its pod netns %s is gone", r.Netns.Path)
}

func printEndings(cmd *cobra.Command, output *format, endings []ending) error {
	if len(endings) == 0 && *output == asTable {
		fmt.Fprintln(cmd.OutOrStdout(), "nothing to end: every attachment has its pod")
		return nil
	}
	if endings == nil {
		endings = []ending{}
	}
	rows := [][]string{{"POD", "IFNAME", "PLUGIN", "NIC", "ADDRESSES", "WHY", "OUTCOME"}}
	for i := range endings {
		e := &endings[i]
		outcome := e.Outcome
		if e.Error != "" {
			outcome += ": " + strings.ReplaceAll(e.Error, "\n", "; ")
		}
		rows = append(rows, []string{e.who(), e.IfName, e.Plugin, e.NIC, strings.Join(e.Addresses, ","), e.Why, outcome})
	}
	return output.print(cmd.OutOrStdout(), endings, rows)
}
