// Package rule judges facts by one rule after the other.
//
// A [Rule] is data: an ID, texts of the expectation, the consequence and the cure, and a pure
// function that reports findings. The function reads facts only with [Read], which notes the facts
// that are missing. If a rule has no findings, its status is ok only if it had all its facts. If a
// fact is missing, its status is unknown. A rule that judged no object has nothing to judge and is
// skipped.
//
// [Judge] does not fail or panic on any document that [fact.Decode] accepts: the result of a rule
// that panics names the panic.
package rule
