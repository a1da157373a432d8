package keeper

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/agent"
	"github.com/rail-cni/rail-cni/pkg/doctor"
)

const (
	// inARow is the number of runs after which a change is told. A pod that begins or ends just
	// now has findings for a moment.
	inARow = 2
	// mostNotices bounds the notices of one run.
	mostNotices = 10
)

// watched is what is known of a rule.
type watched struct {
	scope    doctor.Scope
	unknown  int // runs in a row that lacked facts, which are missing
	missing  []string
	fails    bool                // its findings are failures, and no warnings
	findings map[string]*finding // by object
}

// finding is one of an object.
type finding struct {
	evidence string
	runs     int // in a row that had it, or had it no longer once it is told
	told     bool
}

// note notes the results of a run, and tells of what changed.
func (k *Keeper) note(results []doctor.Result) {
	var notices []agent.Notice
	changed := false
	for i := range results {
		r := &results[i]
		w := k.rules[r.ID]
		if w == nil {
			w = &watched{findings: map[string]*finding{}}
			k.rules[r.ID] = w
		}
		w.scope, w.missing = r.Scope, r.Missing
		if r.Status == doctor.Unknown {
			w.unknown++
			continue // it is not known to be over
		}
		w.unknown = 0
		if len(r.Findings) > 0 {
			w.fails = r.Status == doctor.Status(doctor.Fail)
		}
		before := w.told()
		fresh, over := w.update(r)
		changed = changed || len(fresh) > 0 || w.told() != before
		switch {
		case len(fresh) > 0:
			notices = append(notices, agent.Notice{Reason: "RailProblem", Summary: "doctor found a problem", Warning: true, Message: w.problem(r, fresh)})
		case over:
			notices = append(notices, agent.Notice{Reason: "RailProblemSolved", Summary: "problem that the doctor found is solved", Message: r.ID + ": solved. " + r.Expects})
		}
	}
	if changed {
		k.memorize()
	}
	for i, n := range notices {
		if i == mostNotices {
			k.tell(agent.Notice{
				Reason: "RailProblem", Summary: "doctor found a problem", Warning: true,
				Message: fmt.Sprintf("%d more rules of the doctor changed at the same time: see railctl doctor on the node, and the metric rail_doctor_rule", len(notices)-i),
			})
			break
		}
		k.tell(n)
	}
}

// update takes the findings of a run. It returns the objects that are to be told of, and whether
// the last of those that were told of has no finding any more.
func (w *watched) update(r *doctor.Result) (fresh []string, over bool) {
	now := map[string]string{}
	for _, f := range r.Findings {
		if _, ok := now[f.Object]; !ok {
			now[f.Object] = f.Evidence
		}
	}
	for object, evidence := range now {
		f := w.findings[object]
		if f == nil {
			f = &finding{}
			w.findings[object] = f
		}
		f.evidence = evidence
		switch {
		case f.told:
			f.runs = 0
		default:
			if f.runs++; f.runs >= inARow {
				f.told, f.runs = true, 0
				fresh = append(fresh, object)
			}
		}
	}
	before := w.told()
	for object, f := range w.findings {
		if _, ok := now[object]; ok {
			continue
		}
		if f.runs++; !f.told || f.runs >= inARow {
			delete(w.findings, object)
		}
	}
	slices.Sort(fresh)
	return fresh, before > 0 && w.told() == 0
}

// told returns the number of objects that were told of.
func (w *watched) told() int {
	n := 0
	for _, f := range w.findings {
		if f.told {
			n++
		}
	}
	return n
}

// problem returns the message about objects with a finding.
func (w *watched) problem(r *doctor.Result, objects []string) string {
	return fmt.Sprintf("%s: %s; %s", r.ID, w.evidence(objects), r.Cure)
}

// evidence returns what was found of the objects.
func (w *watched) evidence(objects []string) string {
	const most = 5
	var texts []string
	for i, object := range objects {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(objects)-most))
			break
		}
		text := w.findings[object].evidence
		if object != "" {
			text = object + ": " + text
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// failed returns the evidence of a rule of the node that fails, "" of another one. It counts
// only what was told.
func (w *watched) failed() string {
	if w.scope != doctor.NodeScope || !w.fails {
		return ""
	}
	objects := slices.DeleteFunc(slices.Sorted(maps.Keys(w.findings)), func(o string) bool { return !w.findings[o].told })
	return w.evidence(objects)
}
