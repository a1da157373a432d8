// Package subject has what rules judge: the NICs of a node, those of them that are for pods, their
// ports, the pods, attachments, networks and nodes of facts.
//
// Functions with a [rule.Report] note the facts that are missing. What several rules of one run
// need, such as the parsed networks, is made once.
package subject
