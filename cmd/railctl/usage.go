package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// exitUsage is the exit code for a command that does not exist.
const exitUsage = 2

// usageError is the error of a command that does not exist.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// refuseUnknown lets each command that only has others refuse the name of none, with a
// suggestion. cobra prints its help and succeeds, except for the program itself.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		switch own := cmd.Args; {
		case cmd.Name() == "help":
			cmd.Run, cmd.RunE = nil, helpOf
		case !cmd.HasSubCommands():
		case !cmd.Runnable():
			cmd.Args, cmd.DisableFlagsInUseLine = known(cobra.ArbitraryArgs), true
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		default:
			cmd.Args = known(own)
		}
	}
	walk(root)
}

// known returns the check of the arguments of a command that has others: what is one argument
// too many for it is a command that does not exist.
func known(own cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return own(cmd, args)
	}
}

// unknownCommand returns the error of a name that is no command of cmd.
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
	return &usageError{text}
}

// helpOf prints the help of the command that the arguments name.
func helpOf(cmd *cobra.Command, args []string) error {
	of, rest, err := cmd.Root().Find(args)
	if of == nil || err != nil || len(rest) > 0 && of.HasSubCommands() {
		at := cmd.Root()
		if of != nil && err == nil {
			at = of
		}
		return unknownCommand(at, rest[0])
	}
	return of.Help()
}

// one returns the check of a command that takes one argument, what.
func one(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("name %s: %s", what, cmd.CommandPath()+strings.TrimPrefix(cmd.Use, cmd.Name()))
		case len(args) > 1:
			return fmt.Errorf("it takes %s, and has %d arguments", what, len(args))
		}
		return nil
	}
}
