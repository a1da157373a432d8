package main

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// errReported is the error of a command that has already printed its errors.
var errReported = errors.New("already reported")

// exitCode is the error of a command that has already printed everything. railctl exits with this
// code.
type exitCode int

func (exitCode) Error() string { return errReported.Error() }

func (exitCode) Unwrap() error { return errReported }

// judges is the annotation of a command that judges facts. For such a command and its subcommands,
// exit code 1 means that a rule failed. If the command itself fails, the exit code is
// [doctor.ExitUnknown].
var judges = map[string]string{"railctl/judges": "yes"}

// judging reports whether the command, or a command above it, judges facts.
func judging(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Annotations["railctl/judges"] != "" {
			return true
		}
	}
	return false
}

// requireRoot returns an error if the user is not root. It checks this early, because the kernel's
// errors about namespaces and files do not name the cure.
func requireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("this command needs root to read the node's state and network namespaces; run railctl as root on the node, or on another machine with --node if the command has this flag")
	}
	return nil
}

// reportErrors prints the errors of a command that could do only a part of its work. If there are
// any, it returns an error that makes railctl exit with 1.
func reportErrors(stderr io.Writer, errs []error) error {
	for _, err := range errs {
		note(stderr, "%v", err)
	}
	if len(errs) > 0 {
		return errReported
	}
	return nil
}
