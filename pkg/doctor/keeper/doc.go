// Package keeper judges the node by the doctor's rules again and again, for rail-agent: the fast
// rules each minute, and the slow ones each five. It tells of what changed, and keeps a condition
// of the Node if that is wanted. It changes nothing on the node.
//
// It is beside the keeper of NICs: a panic ends one run of the rules, and a source that hangs
// is not read again until it answers.
package keeper
