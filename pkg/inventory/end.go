package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/plans"
)

// Ending is the end of an attachment whose pod is gone, with the reason and the outcome. Its JSON
// form is the output of "railctl gc".
type Ending struct {
	Attachment
	Why     string `json:"why"`
	Outcome string `json:"outcome"`         // see the constants
	Error   string `json:"error,omitempty"` // why the attachment was not ended
}

// The outcomes.
const (
	Ended    = "ended"
	WouldEnd = "would be ended"
	Busy     = "busy"
	NotEnded = "not ended"
)

// EndStale ends the attachments whose pod is gone, in the ledger of a state directory. The ledger
// must exist. If dryRun is true, EndStale ends nothing, and only returns these attachments. It
// needs root, and the calling thread must be in the host netns. An IPAM plugin that is no longer in
// its recorded directory is searched in the CNI_PATH of the environment. left has an error for each
// record that could not be read or ended.
func EndStale(ctx context.Context, stateDir string, log *slog.Logger, dryRun bool) (endings []Ending, left []error, err error) {
	n, err := plans.Open(stateDir)
	if err != nil {
		return nil, nil, err
	}
	defer n.Close()
	n.Log, n.CNIPath = log, os.Getenv("CNI_PATH")
	endings, left = sweep(ctx, n, dryRun)
	return endings, left, nil
}

// sweep sweeps, and then finds the outcome for each attachment that was stale before. Not all of
// them have ended, because a sweep skips attachments that another process has locked, and keeps the
// record if an address cannot be freed yet.
func sweep(ctx context.Context, n *attachment.Node, dryRun bool) ([]Ending, []error) {
	stale, errs := n.Stale()
	endings := []Ending{}
	for _, r := range stale {
		endings = append(endings, Ending{Attachment: describe(r, stateOf(n.Ledger, r)), Why: why(n.Ledger, r), Outcome: WouldEnd})
	}
	if dryRun {
		return endings, errs
	}
	swept := n.Sweep(ctx)
	left, _ := n.Stale() // unreadable records were reported above
	failed := 0
	for i := range endings {
		e := &endings[i]
		key := stale[i].Key
		e.conclude(key, swept, left)
		if e.Outcome != Ended {
			failed++
		}
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d of %d attachments could not be ended", failed, len(endings)))
	}
	return endings, errs
}

// conclude sets the outcome of the end.
func (e *Ending) conclude(key ledger.Key, swept []attachment.Swept, left []*ledger.Record) {
	is := func(r *ledger.Record) bool { return r.Key == key }
	tried := slices.IndexFunc(swept, func(s attachment.Swept) bool { return is(s.Record) })
	still := slices.IndexFunc(left, is)
	switch {
	case tried >= 0 && swept[tried].Err != nil:
		e.Outcome, e.Error = NotEnded, swept[tried].Err.Error()
	case still < 0:
		e.Outcome = Ended
	case tried < 0:
		e.Outcome, e.Error = Busy, "another process works on it; try again"
	default:
		e.Phase = left[still].Phase
		e.Outcome, e.Error = NotEnded, "the NIC was returned, but the addresses could not be freed: "+missing(left[still])
	}
}

// missing returns the reason why the addresses of a returned NIC are not freed.
func missing(r *ledger.Record) string {
	if r.IPAM == nil {
		return "see the warnings"
	}
	return fmt.Sprintf("IPAM plugin %q is not in %s; install it, then run railctl gc again", r.IPAM.Type, r.IPAM.Path)
}

// why returns the reason why a sweep ends the attachment.
func why(l *ledger.Ledger, r *ledger.Record) string {
	switch {
	case !l.OfThisBoot(r):
		return "it is from an earlier boot"
	case r.Phase == ledger.Freeing:
		return "its addresses are still to be freed"
	}
	return fmt.Sprintf("its pod netns %s is gone", r.Netns.Path)
}
