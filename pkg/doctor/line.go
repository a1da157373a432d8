package doctor

import (
	"fmt"
	"io"
	"strings"
)

// WriteLine writes one line about the results, for programs that keep only the beginning of an
// output, as node-problem-detector does with the message of a condition. The rules that decide the
// exit code ([ExitCode], not strict) come first: those that fail, each with the evidence of its
// first finding.
func WriteLine(w io.Writer, results []Result) error {
	var failed []string
	for i := range results {
		r := &results[i]
		if r.Status != Status(Fail) || len(r.Findings) == 0 {
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
		line = fmt.Sprintf("no rule fails: %d ok, %d warn, %d unknown, %d skipped", n[OK], n[Status(Warn)], n[Unknown], n[Skipped])
		if ExitCode(results, false) == ExitUnknown {
			line = fmt.Sprintf("no rule could be checked: %d lack facts", n[Unknown])
		}
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
