// Package doctor judges a node, its pods, its cluster and its configurations by rules over
// facts.
//
// Facts are read once, by pkg/doctor/collect, and are a JSON document: "railctl doctor
// collect" prints it, and "railctl doctor --facts" judges it on another machine. So a support
// case and a test are the same thing. Each fact has its source, or the error that kept it
// from being read.
//
// A rule is data: an ID, a text of what it expects, the consequence and the cure, and a pure
// function that reports findings. It reads facts by [Read] only, which notes the ones that
// are missing: a rule without findings is ok only if it had all its facts, else its status is
// unknown. A rule that read no fact at all has nothing to judge and is skipped.
//
// The package imports neither the kernel nor Kubernetes. [Judge] does not fail and does not
// panic on any document that [ReadFacts] accepts: a panic of a rule is its error.
package doctor
