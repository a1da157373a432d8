package rule

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// Read returns the value of the fact f, and whether the value was read. If it was not, Read notes
// in r that the fact name is missing. So the rule's status is unknown and not ok.
func Read[T any](r *Report, name string, f fact.Fact[T]) (value T, ok bool) {
	if !f.OK() {
		r.missing = append(r.missing, missing{fmt.Sprintf("%s (%s)", name, f.Why()), cmp.Or(f.Error, fact.NotCollected)})
		return value, false
	}
	return f.Value, true
}

// Report collects the findings of one rule.
type Report struct {
	objects  int // the number of objects that the rule has judged
	findings []Finding
	missing  []missing
	parts    []string    // the parts of the object that the rule judges now
	shared   map[any]any // what rules of one run make of the same facts, by key
}

// missing is a fact that could not be read.
type missing struct {
	text   string // the fact's name, source and error
	reason string // the error alone; several facts can have the same error
}

// Once returns what calculate returns. Of the rules that are judged together, only the first one that asks
// for the key calls it; the others get the same value. The key should be of a type of the caller's own.
func Once[T any](r *Report, key any, calculate func() T) T {
	if value, ok := r.share()[key].(T); ok {
		return value
	}
	value := calculate()
	r.share()[key] = value
	return value
}

// share returns what the rules of one run share.
func (r *Report) share() map[any]any {
	if r.shared == nil {
		r.shared = map[any]any{}
	}
	return r.shared
}

// Quiet returns a report that nobody reads, for what is not about the rule's own objects. It shares with r
// what [Once] returns.
func (r *Report) Quiet() *Report { return &Report{shared: r.share()} }

// Judged notes that the rule has judged one more object. A rule that has judged no object is
// skipped and never ok, because facts that name no object do not prove that anything is healthy.
func (r *Report) Judged() { r.objects++ }

// Lacks notes that the fact name could not be read, with the reason why.
func (r *Report) Lacks(name, why string) {
	r.missing = append(r.missing, missing{fmt.Sprintf("%s (%s)", name, why), why})
}

// maxFindings limits the number of findings of one rule, because the facts may come from an
// attacker.
const maxFindings = 1000

// Find adds a finding about the object. The evidence is a format with its arguments. It names facts
// and their values.
func (r *Report) Find(object, evidence string, args ...any) *Found {
	if len(r.findings) < maxFindings {
		r.findings = append(r.findings, Finding{Object: Clean(object), Evidence: Clean(fmt.Sprintf(evidence, args...)), Part: Clean(strings.Join(r.parts, " "))})
		return &Found{&r.findings[len(r.findings)-1]}
	}
	return &Found{&Finding{}}
}

// Within calls do. All findings that do reports are about this part of their object, for example
// about an interface of a pod.
func (r *Report) Within(part string, do func()) {
	r.parts = append(r.parts, part)
	defer func() { r.parts = r.parts[:len(r.parts)-1] }()
	do()
}

// Found is a finding that was reported.
type Found struct{ f *Finding }

// Part sets the part of the object that the finding is about. A rule needs Part if it can have
// findings about several parts of one object.
func (f *Found) Part(part string) *Found {
	f.f.Part = Clean(strings.TrimSpace(f.f.Part + " " + part))
	return f
}

// OnRail sets the rail that the finding is about. It is not needed if Object names the rail's NIC.
func (f *Found) OnRail(rail int) *Found {
	f.f.Rail = &rail
	return f
}

// Fix adds a command that solves the problem.
func (f *Found) Fix(command string, args ...any) { f.f.Fix = Clean(fmt.Sprintf(command, args...)) }
