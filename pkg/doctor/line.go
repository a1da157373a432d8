package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// WriteLine writes one line about the results. It is for programs that keep only the beginning of
// an output: node-problem-detector does this with the message of a condition. The line lists the
// rules that fail, because they decide the exit code (see [ExitCode] without strict). Each failed
// rule has the evidence of its first finding. If no rule fails, the line has the number of rules
// with each status.
func WriteLine(w io.Writer, results []rule.Result) error {
	var failed []string
	for i := range results {
		r := &results[i]
		if r.Status != rule.Status(rule.Fail) || len(r.Findings) == 0 {
			continue
		}
		f := r.Findings[0]
		evidence := f.Evidence
		if f.Object != "" {
			evidence = f.Object + ": " + evidence
		}
		failed = append(failed, r.ID+": "+strings.Join(strings.Fields(evidence), " "))
	}
	line := strings.Join(failed, "; ")
	if len(failed) > 1 {
		line = fmt.Sprintf("%d rules fail. %s", len(failed), line)
	}
	if line == "" {
		n := count(results)
		line = fmt.Sprintf("no rule fails: %d ok, %d warn, %d unknown, %d skipped", n[rule.OK], n[rule.Status(rule.Warn)], n[rule.Unknown], n[rule.Skipped])
		if ExitCode(results, false) == ExitUnknown {
			line = fmt.Sprintf("no rule could be checked: %d lack facts", n[rule.Unknown])
		}
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
