package contain

import (
	"fmt"
	"runtime/debug"
)

// PanicError is the error of a function that panicked.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine, as runtime/debug.Stack returns it
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Panics calls f and returns its error. If f panics, it returns a [*PanicError].
func Panics(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{p, debug.Stack()}
		}
	}()
	return f()
}
