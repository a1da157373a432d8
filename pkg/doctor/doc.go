// Package doctor judges a node, its pods, its cluster and its configurations. It applies rules to
// facts.
//
// The package pkg/doctor/collect reads the facts once. The facts form a JSON document: "railctl
// doctor collect" prints the document, and "railctl doctor --facts" judges it on any machine. So
// the facts of a support case can be used in a test. Each fact names its source. A fact that could
// not be read has the error instead of a value.
//
// A rule is data: an ID, texts for the expectation, the consequence and the cure, and a pure
// function that reports findings. The function reads facts only with [Read], which notes the facts
// that are missing. If a rule has no findings, its status is ok only if it had all its facts. If a
// fact is missing, its status is unknown. A rule that had no object to judge is skipped.
//
// The package calls neither the kernel nor Kubernetes. [Judge] does not fail or panic on any
// document that [ReadFacts] accepts. If a rule panics, its result describes the panic.
package doctor
