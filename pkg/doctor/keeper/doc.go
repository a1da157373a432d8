// Package keeper judges the node by the doctor's rules at intervals, for rail-agent: by the
// fast rules every minute, and by the slow ones every five minutes. It reports changes, and
// can keep a condition of the Node. It changes nothing on the node.
//
// It runs concurrently with the keeper of NICs and does not disturb it: a panic ends only one run of the
// rules, and a source that hangs is not read again until it has answered.
package keeper
