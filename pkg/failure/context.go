package failure

import "fmt"

// Context returns err with what was tried in front of its text, "MTU of ens1: …", and nil for nil. It wraps err, so the
// kind of the error stays.
func Context(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
