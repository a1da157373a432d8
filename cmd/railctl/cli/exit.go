package cli

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// ErrReported is the error of a command that has already printed its errors.
var ErrReported = errors.New("already reported")

// ExitCode is the error of a command that has already printed everything. railctl exits with this
// code.
type ExitCode int

func (ExitCode) Error() string { return ErrReported.Error() }

func (ExitCode) Unwrap() error { return ErrReported }

// Judges is the annotation of a command that judges facts. For such a command and its subcommands,
// exit code 1 means that a rule failed. If the command itself fails, the exit code is
// ExitUnknown of pkg/doctor.
var Judges = map[string]string{"railctl/judges": "yes"}

// Judging reports whether the command, or a command above it, judges facts.
func Judging(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Annotations["railctl/judges"] != "" {
			return true
		}
	}
	return false
}

// RequireRoot returns an error if the user is not root. It checks this early, because the kernel's
// errors about namespaces and files do not name the cure.
func RequireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("this command needs root to read the node's state and network namespaces; run railctl as root on the node, or on another machine with --node if the command has this flag")
	}
	return nil
}

// ReportErrors prints the errors of a command that could do only a part of its work. If there are
// any, it returns an error that makes railctl exit with 1.
func ReportErrors(stderr io.Writer, errs []error) error {
	for _, err := range errs {
		Note(stderr, "%v", err)
	}
	if len(errs) > 0 {
		return ErrReported
	}
	return nil
}
