// Package doctor judges a node, its pods, its cluster and its configurations by rules over
// facts.
//
// Facts are read once, by pkg/doctor/collect, and are a JSON document: "railctl doctor
// collect" prints it, and "railctl doctor --facts" judges it on another machine. So the
// facts of a support case can become a test. Each fact has its source; a fact that could not
// be read has the error.
//
// A rule is data: an ID, texts of the expectation, the consequence and the cure, and a pure
// function that reports findings. It reads facts only by [Read], which notes the facts that
// are missing. A rule without findings is ok only if it had all its facts, else its status is
// unknown. A rule that read no fact at all has nothing to judge and is skipped.
//
// The package uses neither the kernel nor Kubernetes. [Judge] does not fail or panic on any
// document that [ReadFacts] accepts: the result of a rule that panics names the panic.
package doctor
