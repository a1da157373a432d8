package failure

import "fmt"

// Context returns an error that wraps err. Its text begins with what was tried, for example "MTU of ens1: …". The kind
// of the error does not change. If err is nil, Context returns nil.
func Context(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
