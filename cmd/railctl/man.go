//go:build man

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
)

// This file is not part of the released railctl. scripts/package.sh uses it to write the manual
// pages, by "go run -tags man ./cmd/railctl man DIR".

func init() {
	extra = append(extra, func(root *cobra.Command) *cobra.Command {
		return &cobra.Command{
			Use:    "man DIR",
			Short:  "Write the manual pages of all commands to a directory",
			Hidden: true,
			Args:   cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				root.DisableAutoGenTag = true // the generated tag would contain the time of day
				// The date of the pages is SOURCE_DATE_EPOCH.
				header := &doc.GenManHeader{Section: "1", Source: "rail-cni " + cli.Version, Manual: "rail-cni"}
				return doc.GenManTree(root, header, args[0])
			},
		}
	})
}
