package rule

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/contain"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// Judge judges the facts by the rules. It returns one result for each rule, in the order of the
// rules.
func Judge(rules []Rule, f *fact.Facts) []Result {
	results := make([]Result, 0, len(rules))
	once := map[any]any{}
	for i := range rules {
		results = append(results, judge(&rules[i], f, once))
	}
	return results
}

func judge(rule *Rule, f *fact.Facts, once map[any]any) (result Result) {
	result = Result{ID: rule.ID, Scope: rule.Scope, Node: Clean(f.Node), Expects: rule.Expects}
	report := &Report{shared: once}
	err := contain.Panics(func() error { rule.Check(f, report); return nil })
	if p := (*contain.PanicError)(nil); errors.As(err, &p) {
		result.Status = Unknown
		result.Missing = []string{Clean(fmt.Sprintf("the rule panicked: %v; please report this defect: %s", p.Value, firstFrames(p.Stack)))}
		result.reasons = result.Missing
		return result
	}
	result.Findings = report.findings
	slices.SortFunc(report.missing, func(a, b missing) int { return cmp.Or(cmp.Compare(a.text, b.text), cmp.Compare(a.reason, b.reason)) })
	for _, m := range slices.Compact(report.missing) {
		result.Missing, result.reasons = append(result.Missing, Clean(m.text)), append(result.reasons, Clean(m.reason))
	}
	switch {
	case len(result.Findings) > 0:
		result.Status = Status(rule.Severity)
		result.Consequence, result.Cure = rule.Consequence, linked(rule.Cure, f.Version)
	case len(result.Missing) > 0:
		result.Status = Unknown
	case report.objects == 0:
		result.Status = Skipped
	default:
		result.Status = OK
	}
	return result
}

var (
	pageName = regexp.MustCompile(`\bdocs/[a-z/-]+\.md\b`)
	release  = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$`)
)

// linked returns text with a web address in place of each file name of a page of this project,
// because a node has no copy of the pages. If version is a release, the addresses lead to the pages
// of that release.
func linked(text, version string) string {
	ref := "main"
	if release.MatchString(version) {
		ref = version
	}
	return pageName.ReplaceAllString(text, "https://github.com/rail-cni/rail-cni/blob/"+ref+"/$0")
}

// firstFrames returns the lines of a stack that name files of the doctor.
func firstFrames(stack []byte) string {
	var frames []string
	for line := range strings.Lines(string(stack)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "/pkg/doctor/") && strings.Contains(line, ".go:") && len(frames) < 3 {
			frames = append(frames, line)
		}
	}
	return strings.Join(frames, ", ")
}
