package cnierr

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// Error codes. Those below 100 are the specification's (CNI SPEC, section 5,
// "Error"); from 100 on they are this project's.
const (
	UnknownContainer = types.ErrUnknownContainer
	InvalidEnv       = types.ErrInvalidEnvironmentVariables
	IO               = types.ErrIOFailure
	Decode           = types.ErrDecodingFailure
	InvalidConfig    = types.ErrInvalidNetworkConfig
	InvalidNetns     = types.ErrInvalidNetNS
	TryAgain         = types.ErrTryAgainLater
	NotAvailable     = types.ErrPluginNotAvailable
	Limited          = types.ErrLimitedConnectivity
	Internal         = types.ErrInternal

	// NICNotFound: no NIC of this node matches the selector.
	NICNotFound uint = 100
	// NICProtected: a guardrail forbids lending the NIC.
	NICProtected uint = 101
	// NICLent: another attachment holds the NIC.
	NICLent uint = 102
	// NameTaken: the name that the interface must get exists already.
	NameTaken uint = 103
	// NotHome: a NIC could not be brought back to the host.
	NotHome uint = 104
	// IPAM: the IPAM plugin failed, or no address is left.
	IPAM uint = 105
	// BadRecord: a state file is corrupt, or was written by a newer version.
	BadRecord uint = 106
	// Mismatch: CHECK found the attachment other than ADD left it.
	Mismatch uint = 107
	// Kernel: the kernel refused a change of a link.
	Kernel uint = 108
)

// Error says what went wrong, and how to cure it. Its text is
// "<what>: <cause>; <cure>", without the parts that are empty.
type Error struct {
	Code uint   // CNI error code, see the constants
	What string // the object and what failed, as a user would say it
	Err  error  // the cause, may be nil
	Cure string // what the user can do, may be empty
}

func (e *Error) Error() string {
	s := e.What
	if e.Err != nil {
		if s != "" {
			s += ": "
		}
		s += e.Err.Error()
	}
	if e.Cure != "" {
		s += "; " + e.Cure
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New makes an error without a further cause.
func New(code uint, cure, format string, args ...any) *Error {
	return &Error{Code: code, What: fmt.Sprintf(format, args...), Cure: cure}
}

// Wrap makes an error with a cause. It returns nil when err is nil.
func Wrap(err error, code uint, cure, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Code: code, What: fmt.Sprintf(format, args...), Err: err, Cure: cure}
}

// Code returns the code of the outermost [Error] in err's tree, or else of a
// *types.Error in it (another plugin's answer), or else [Internal]. It is never
// 0, which a runtime would take for success.
func Code(err error) uint {
	var ours *Error
	if errors.As(err, &ours) && ours.Code != 0 {
		return ours.Code
	}
	var theirs *types.Error
	if errors.As(err, &theirs) && theirs.Code != 0 {
		return theirs.Code
	}
	return Internal
}

// ToCNI turns err into what skel prints: the whole text, and the code of the
// outermost coded error in it. nil stays nil.
//
// Multus takes a failed DEL for a success when its text holds the words of
// ENOENT, and forgets the attachment; so they are said in other words. A text
// that carries a user's megabyte is cut in its middle.
func ToCNI(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ReplaceAll(err.Error(), unix.ENOENT.Error(), "the file does not exist")
	const longest = 16 << 10
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest/2], "") + " … " + strings.ToValidUTF8(text[len(text)-longest/2:], "")
	}
	return types.NewError(Code(err), text, "")
}
