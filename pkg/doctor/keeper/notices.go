package keeper

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

const (
	// inARow is the number of consecutive runs that must show a change before it is reported. One
	// run is not enough, because a pod that is starting or ending has findings for a moment.
	inARow = 2
	// maxNotices is the maximum number of notices in one run.
	maxNotices = 10
)

// watched is what is known about a rule.
type watched struct {
	scope    rule.Scope
	unknown  int // the number of consecutive runs in which facts were missing
	missing  []string
	fails    bool                // true if the findings are failures, false if they are warnings
	findings map[string]*finding // by key
}

// finding is a finding about one object or about a part of it.
type finding struct {
	text     string // object and evidence
	runs     int    // consecutive runs that had the finding; once it is reported, runs that no longer had it
	reported bool
}

// note stores the results of a run, and reports what has changed since earlier runs.
func (k *Keeper) note(results []rule.Result) {
	var notices []component.Notice
	changed := false
	for i := range results {
		r := &results[i]
		w := k.rules[r.ID]
		if w == nil {
			w = &watched{findings: map[string]*finding{}}
			k.rules[r.ID] = w
		}
		w.scope, w.missing = r.Scope, r.Missing
		if r.Status == rule.Unknown {
			w.unknown++
			continue // it is not known whether the problem is over
		}
		w.unknown = 0
		if len(r.Findings) > 0 {
			w.fails = r.Status == rule.Status(rule.Fail)
		}
		before := w.reported()
		fresh, over := w.update(r)
		changed = changed || len(fresh) > 0 || w.reported() != before
		switch {
		case len(fresh) > 0:
			notices = append(notices, component.Notice{Reason: "RailProblem", Summary: "doctor found a problem", Warning: true, Message: w.problem(r, fresh)})
		case over:
			notices = append(notices, component.Notice{Reason: "RailProblemSolved", Summary: "problem that the doctor found is solved", Message: r.ID + ": solved. " + r.Expects})
		}
	}
	if changed {
		k.memorize()
	}
	for i, n := range notices {
		if i == maxNotices {
			k.reporter.Report(component.Notice{
				Reason: "RailProblem", Summary: "doctor found a problem", Warning: true,
				Message: fmt.Sprintf("%d more rules of the doctor changed at the same time: see railctl doctor on the node, and the metric rail_doctor_rule", len(notices)-i),
			})
			break
		}
		k.reporter.Report(n)
	}
}

// keyOf returns a key that distinguishes the finding from the rule's other findings. The evidence
// is not part of the key, because numbers in the evidence change.
func keyOf(f *rule.Finding) string {
	if f.Part == "" {
		return f.Object
	}
	return f.Object + "|" + f.Part
}

// textOf returns the text about a finding for notices.
func textOf(f *rule.Finding) string {
	if f.Object == "" {
		return f.Evidence
	}
	return f.Object + ": " + f.Evidence
}

// update stores the findings of a run. fresh are the keys of the findings that must now be
// reported. over reports whether there were reported findings and all of them have ended.
func (w *watched) update(r *rule.Result) (fresh []string, over bool) {
	now := map[string]string{}
	for i := range r.Findings {
		key := keyOf(&r.Findings[i])
		if _, ok := now[key]; !ok {
			now[key] = textOf(&r.Findings[i])
		}
	}
	for key, text := range now {
		f := w.findings[key]
		if f == nil {
			f = &finding{}
			w.findings[key] = f
		}
		f.text = text
		switch {
		case f.reported:
			f.runs = 0
		default:
			if f.runs++; f.runs >= inARow {
				f.reported, f.runs = true, 0
				fresh = append(fresh, key)
			}
		}
	}
	before := w.reported()
	for key, f := range w.findings {
		if _, ok := now[key]; ok {
			continue
		}
		if f.runs++; !f.reported || f.runs >= inARow {
			delete(w.findings, key)
		}
	}
	slices.Sort(fresh)
	return fresh, before > 0 && w.reported() == 0
}

// reported returns the number of findings that were reported.
func (w *watched) reported() int {
	n := 0
	for _, f := range w.findings {
		if f.reported {
			n++
		}
	}
	return n
}

// problem returns the message that reports the findings with these keys.
func (w *watched) problem(r *rule.Result, keys []string) string {
	return fmt.Sprintf("%s: %s; %s", r.ID, w.evidence(keys), r.Cure)
}

// evidence returns the texts of the findings with these keys.
func (w *watched) evidence(keys []string) string {
	const maxTexts = 5
	var texts []string
	for i, key := range keys {
		if i == maxTexts {
			texts = append(texts, fmt.Sprintf("and %d more", len(keys)-maxTexts))
			break
		}
		texts = append(texts, w.findings[key].text)
	}
	return strings.Join(texts, "; ")
}

// failed returns the evidence of the rule's reported findings, if it is a rule about the node and
// it fails. Otherwise failed returns "".
func (w *watched) failed() string {
	if w.scope != rule.NodeScope || !w.fails {
		return ""
	}
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(w.findings)), func(key string) bool { return !w.findings[key].reported })
	return w.evidence(keys)
}
