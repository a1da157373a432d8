// Package failure makes errors for users. Each error names the object and the failure, has a
// [Kind], and ends with the cure.
//
//	return failure.New(failure.NICLent, "%s is lent to %s", nic, holder).
//		Cure("wait until that attachment ends")
//	return failure.From(err, failure.IO, "state of %s", nic).Cure("free some space")
//
// An error that adds nothing for the user is wrapped with %w, as everywhere in Go. This package
// does not know the CNI error codes. Package cnierr adds them in the main function of a plugin.
package failure
