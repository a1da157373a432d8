// Package cli has what the commands of railctl share: the program's names and its exit codes, the
// formats of the output, the flags about the cluster and the node, and text for a terminal.
package cli

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
	PluginName = "kubectl rail"
)

// Program is the program's name in help texts and errors.
var Program = ownName

// Version is the version of railctl. The function main sets it.
var Version = "unknown"

// ProgramName returns the name of the program if it was started as path.
func ProgramName(path string) string {
	if filepath.Base(path) == pluginFile {
		return PluginName
	}
	return ownName
}

// UserAgent returns how railctl names itself to an API server.
func UserAgent() string { return ownName + "/" + Version }

// AsPlugin changes the help texts of all commands: they name the program "kubectl rail" and not
// "railctl".
func AsPlugin(root *cobra.Command) {
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: PluginName}
	// For completion, kubectl runs the program "kubectl_complete-rail", which runs "kubectl rail
	// __complete".
	root.CompletionOptions.DisableDefaultCmd = true
	rename := func(text *string) { *text = strings.ReplaceAll(*text, ownName+" ", PluginName+" ") }
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
