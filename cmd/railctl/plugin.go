package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// These are the names of the program. If its file is in the PATH with the name "kubectl-rail", the
// program is kubectl's plugin "rail"
// (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
const (
	ownName    = "railctl"
	pluginFile = "kubectl-rail"
	pluginName = "kubectl rail"
)

// program is the program's name in help texts and errors.
var program = ownName

// Version is the version of railctl. The function main sets it.
var Version = "unknown"

// nameOf returns the name of the program if it was started as path.
func nameOf(path string) string {
	if filepath.Base(path) == pluginFile {
		return pluginName
	}
	return ownName
}

// userAgent returns how railctl names itself to an API server.
func userAgent() string { return ownName + "/" + Version }

// asPlugin changes the help texts of all commands: they name the program "kubectl rail" and not
// "railctl".
func asPlugin(root *cobra.Command) {
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: pluginName}
	// For completion, kubectl runs the program "kubectl_complete-rail", which runs "kubectl rail
	// __complete".
	root.CompletionOptions.DisableDefaultCmd = true
	rename := func(text *string) { *text = strings.ReplaceAll(*text, ownName+" ", pluginName+" ") }
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, text := range []*string{&cmd.Short, &cmd.Long, &cmd.Example} {
			rename(text)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { rename(&f.Usage) })
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(root)
}
