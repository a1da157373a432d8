// Package keeper judges the node by the doctor's rules at intervals. rail-agent uses it. It judges
// the fast rules every minute and the slow rules every five minutes. It reports changes, and it can
// keep a condition of the Node up to date. It changes nothing on the node itself.
//
// This keeper runs concurrently with the keeper of NICs and does not disturb it. A panic ends only one run of the
// rules. A source that hangs is not read again until it has answered.
package keeper
