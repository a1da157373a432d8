package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// ExitUsage is the exit code if the user names a command that does not exist.
const ExitUsage = 2

// UsageError is the error if the user names a command that does not exist.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

// RefuseUnknown changes each command that has only subcommands: if the user names a subcommand that
// does not exist, the command fails and suggests a similar name. Without this change, cobra would
// print the help and succeed, except for the program itself.
func RefuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		switch validate := cmd.Args; {
		case cmd.Name() == "help":
			cmd.Run, cmd.RunE = nil, helpOf
		case !cmd.HasSubCommands():
		case !cmd.Runnable():
			cmd.Args, cmd.DisableFlagsInUseLine = known(cobra.ArbitraryArgs), true
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		default:
			cmd.Args = known(validate)
		}
	}
	walk(root)
}

// known returns the check of arguments for a command that has subcommands. If there are too many
// arguments for the command, the first one is reported as a subcommand that does not exist.
func known(validate cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return validate(cmd, args)
	}
}

// unknownCommand returns the error that cmd has no subcommand with this name.
func unknownCommand(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("unknown command %q for %q", name, cmd.CommandPath())
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	} else {
		text += fmt.Sprintf("; %q lists the commands", cmd.CommandPath()+" --help")
	}
	return &UsageError{text}
}

// helpOf prints the help of the command that args name.
func helpOf(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if found == nil || err != nil || len(rest) > 0 && found.HasSubCommands() {
		parent := cmd.Root()
		if found != nil && err == nil {
			parent = found
		}
		return unknownCommand(parent, rest[0])
	}
	return found.Help()
}

// OneArg returns the check of arguments for a command that takes exactly one argument. what describes
// the argument in errors.
func OneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("name %s: %s", what, cmd.CommandPath()+strings.TrimPrefix(cmd.Use, cmd.Name()))
		case len(args) > 1:
			return fmt.Errorf("the command takes one argument (%s), but there are %d", what, len(args))
		}
		return nil
	}
}
