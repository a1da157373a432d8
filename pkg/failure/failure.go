package failure

import (
	"errors"
	"fmt"
)

// Kind is the kind of an error, for callers that distinguish errors. A Kind is an error itself, so
// errors.Is(err, NICLent) reports whether err's tree contains the kind NICLent.
type Kind string

// These are the kinds. Package cnierr has the CNI error code of each kind.
const (
	// Internal is the kind of every error that has no other kind.
	Internal Kind = "internal"
	// UnknownContainer means that the pod netns does not exist.
	UnknownContainer Kind = "unknown container"
	// InvalidEnv means that an environment variable of the call is invalid.
	InvalidEnv Kind = "invalid environment"
	// IO means that a file could not be read or written.
	IO Kind = "input or output"
	// Decode means that a document violates its format.
	Decode Kind = "decoding"
	// InvalidConfig means that a configuration is impossible.
	InvalidConfig Kind = "invalid configuration"
	// InvalidNetns means that the path of a netns is invalid.
	InvalidNetns Kind = "invalid netns"
	// TryAgain means that the same call may succeed later.
	TryAgain Kind = "try again later"
	// NotAvailable means that the plugin cannot serve an ADD now.
	NotAvailable Kind = "not available"
	// Limited means that the plugin cannot serve an ADD now, and attached pods may have no connection.
	Limited Kind = "limited connectivity"
	// NICNotFound means that no NIC of this node matches the selector.
	NICNotFound Kind = "no such NIC"
	// NICProtected means that a guardrail forbids lending the NIC.
	NICProtected Kind = "NIC protected"
	// NICLent means that another attachment holds the NIC.
	NICLent Kind = "NIC lent"
	// NameTaken means that the name that the interface must get exists already.
	NameTaken Kind = "name taken"
	// NotReturned means that a NIC could not be brought back to the host.
	NotReturned Kind = "NIC not returned"
	// IPAM means that the IPAM plugin failed, or no address is left.
	IPAM Kind = "no address"
	// BadRecord means that a state file is corrupt, or was written by a newer version.
	BadRecord Kind = "bad record"
	// Mismatch means that CHECK found that the attachment differs from what ADD made.
	Mismatch Kind = "mismatch"
	// Kernel means that the kernel refused a change of a link.
	Kernel Kind = "refused by the kernel"
)

// Error returns the name of the kind.
func (k Kind) Error() string { return string(k) }

// KindOf returns the outermost kind in err's tree. If there is none, it returns Internal.
func KindOf(err error) Kind {
	kind := Internal
	errors.As(err, &kind)
	return kind
}

// An Error is an error for a user. Its text is "<what>: <cause>; <cure>",
// without empty parts.
type Error struct {
	kind  Kind
	what  string // the object, and what failed
	cause error
	cure  string
}

// New returns an error without a cause. Its text names the object and what failed.
func New(kind Kind, format string, args ...any) *Error {
	return &Error{kind: kind, what: fmt.Sprintf(format, args...)}
}

// Wrap returns an error of this kind with the cause err. If err is nil, it returns nil. If format
// is empty, the text is the text of err.
func Wrap(err error, kind Kind, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{kind: kind, what: fmt.Sprintf(format, args...), cause: err}
}

// Cure returns a copy of e with the cure for the user. e itself does not change. The copy has the
// same kind as e.
func (e *Error) Cure(format string, args ...any) error {
	return WithCure(e, fmt.Sprintf(format, args...))
}

// From does the same as [Wrap] for an error that gets a cure.
func From(err error, kind Kind, format string, args ...any) Uncured {
	return Uncured{Wrap(err, kind, format, args...)}
}

// Uncured is the result of [From]. It still needs a cure. It is not an error itself, because an
// Uncured that was made from a nil error would not be nil as an error.
type Uncured struct{ err error }

// Cure returns the error with the cure for the user. If [From] got nil, Cure returns nil.
func (u Uncured) Cure(format string, args ...any) error {
	return WithCure(u.err, fmt.Sprintf(format, args...))
}

// WithCure returns an error that wraps err and has the cure for the user. It is for errors that
// another function made. The kind of the error does not change. If err is nil, WithCure returns
// nil.
func WithCure(err error, cure string) error {
	if err == nil {
		return nil
	}
	return &Error{cause: err, cure: cure}
}

// Because returns an error with the text of err that wraps both err and cause.
func Because(err, cause error) error { return &because{err, cause} }

type because struct{ err, cause error }

func (b *because) Error() string { return b.err.Error() }

func (b *because) Unwrap() []error { return []error{b.err, b.cause} }

// Reason returns the text of err, without the cure that was added last.
func Reason(err error) string {
	var e *Error
	if errors.As(err, &e) && e.cure != "" && e.cause != nil && e.what == "" {
		return e.cause.Error()
	}
	return err.Error()
}

func (e *Error) Error() string {
	s := e.what
	if e.cause != nil {
		if s != "" {
			s += ": "
		}
		s += e.cause.Error()
	}
	if e.cure != "" {
		s += "; " + e.cure
	}
	return s
}

// Unwrap returns the kind and the cause, if they are set.
func (e *Error) Unwrap() []error {
	var found []error
	if e.kind != "" {
		found = append(found, e.kind)
	}
	if e.cause != nil {
		found = append(found, e.cause)
	}
	return found
}
