package failure

import (
	"errors"
	"fmt"
)

// Kind is the kind of an error, for callers that distinguish errors. It is an
// error itself, so that errors.Is(err, NICLent) reports whether a NICLent is in
// err's tree.
type Kind string

// The kinds. Package cnierr has the CNI error code of each.
const (
	// Internal is the kind of every error that has no other.
	Internal Kind = "internal"
	// UnknownContainer: the pod netns does not exist.
	UnknownContainer Kind = "unknown container"
	// InvalidEnv: an environment variable of the call is invalid.
	InvalidEnv Kind = "invalid environment"
	// IO: a file could not be read or written.
	IO Kind = "input or output"
	// Decode: a document violates its format.
	Decode Kind = "decoding"
	// InvalidConfig: a configuration is impossible.
	InvalidConfig Kind = "invalid configuration"
	// InvalidNetns: the path of a netns is invalid.
	InvalidNetns Kind = "invalid netns"
	// TryAgain: the same call may succeed later.
	TryAgain Kind = "try again later"
	// NotAvailable: the plugin cannot serve an ADD now.
	NotAvailable Kind = "not available"
	// Limited: the plugin cannot serve an ADD now, and attached pods may have no connection.
	Limited Kind = "limited connectivity"
	// NICNotFound: no NIC of this node matches the selector.
	NICNotFound Kind = "no such NIC"
	// NICProtected: a guardrail forbids lending the NIC.
	NICProtected Kind = "NIC protected"
	// NICLent: another attachment holds the NIC.
	NICLent Kind = "NIC lent"
	// NameTaken: the name that the interface must get exists already.
	NameTaken Kind = "name taken"
	// NotReturned: a NIC could not be brought back to the host.
	NotReturned Kind = "NIC not returned"
	// IPAM: the IPAM plugin failed, or no address is left.
	IPAM Kind = "no address"
	// BadRecord: a state file is corrupt, or was written by a newer version.
	BadRecord Kind = "bad record"
	// Mismatch: CHECK found that the attachment differs from what ADD made.
	Mismatch Kind = "mismatch"
	// Kernel: the kernel refused a change of a link.
	Kernel Kind = "refused by the kernel"
)

// Error returns the kind in words.
func (k Kind) Error() string { return string(k) }

// KindOf returns the outermost kind in err's tree, or else Internal.
func KindOf(err error) Kind {
	kind := Internal
	errors.As(err, &kind)
	return kind
}

// An Error is an error for a user. Its text is "<what>: <cause>; <cure>",
// without empty parts.
type Error struct {
	kind  Kind
	what  string // the object and what failed
	cause error
	cure  string
}

// New returns an error without a cause. Its text names the object and what failed.
func New(kind Kind, format string, args ...any) *Error {
	return &Error{kind: kind, what: fmt.Sprintf(format, args...)}
}

// Wrap returns an error of this kind with a cause, or nil if err is nil. With an empty
// format the text is that of err.
func Wrap(err error, kind Kind, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{kind: kind, what: fmt.Sprintf(format, args...), cause: err}
}

// Cure returns e with the user's remedy, and leaves e as it is. The kind is that of e.
func (e *Error) Cure(format string, args ...any) error {
	return WithCure(e, fmt.Sprintf(format, args...))
}

// From is [Wrap] for an error that gets a cure.
func From(err error, kind Kind, format string, args ...any) Uncured {
	return Uncured{Wrap(err, kind, format, args...)}
}

// Uncured is the result of [From], and lacks its cure. It is not an error itself: one made of a
// nil error would not be nil when it is returned.
type Uncured struct{ err error }

// Cure returns the error with the user's remedy, or nil if [From] got nil.
func (u Uncured) Cure(format string, args ...any) error {
	return WithCure(u.err, fmt.Sprintf(format, args...))
}

// WithCure returns err, which another function made, with the user's remedy, or nil if
// err is nil. The kind is that of err.
func WithCure(err error, cure string) error {
	if err == nil {
		return nil
	}
	return &Error{cause: err, cure: cure}
}

// Because returns err, with its text, which also wraps cause.
func Because(err, cause error) error { return &because{err, cause} }

type because struct{ err, cause error }

func (b *because) Error() string { return b.err.Error() }

func (b *because) Unwrap() []error { return []error{b.err, b.cause} }

// Reason returns the text of err without the cure that was added last.
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

// Unwrap returns the kind, if one is set, and the cause, if there is one.
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
