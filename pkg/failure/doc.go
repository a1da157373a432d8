// Package failure makes errors for users: each names the object and what went wrong,
// has a [Kind], and says last what the user can do.
//
//	return failure.WithCure(failure.New(failure.NICLent, "%s is lent to %s", nic, holder),
//		"wait until that attachment ends")
//
// An error that adds nothing for the user is wrapped with %w, as everywhere in Go. CNI
// error codes are unknown here: package cnierr gives them at the edge, in a plugin's
// main.
package failure
