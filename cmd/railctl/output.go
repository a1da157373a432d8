package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// format is the value of the flag --output.
type format string

const (
	asTable format = "table"
	asJSON  format = "json"
	asYAML  format = "yaml"
)

var formats = []string{string(asTable), string(asJSON), string(asYAML)}

// String, Set and Type implement pflag.Value.
func (f *format) String() string { return string(*f) }

// Type names the value in a help text.
func (f *format) Type() string { return "format" }

// Set refuses an unknown format.
func (f *format) Set(s string) error {
	if !slices.Contains(formats, s) {
		return fmt.Errorf("it is one of %s", strings.Join(formats, ", "))
	}
	*f = format(s)
	return nil
}

// addOutputFlag adds the flag -o to a command.
func addOutputFlag(cmd *cobra.Command) *format {
	f := asTable
	cmd.Flags().VarP(&f, "output", "o", strings.Join(formats, ", "))
	// Fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return &f
}

// print writes a list as JSON or YAML, or as the table that rows make.
func (f *format) print(w io.Writer, list any, rows [][]string) error {
	switch *f {
	case asJSON:
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(list)
	case asYAML:
		return printYAML(w, list)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// printYAML writes the JSON form as YAML, with the same keys in the same order.
// JSON is YAML already; only its style changes.
func printYAML(w io.Writer, list any) error {
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	// JSON may have these characters, and YAML only their escapes.
	var escaped strings.Builder
	for _, r := range string(data) {
		if r >= 0x7f && r <= 0x9f {
			fmt.Fprintf(&escaped, `\u%04x`, r)
			continue
		}
		escaped.WriteRune(r)
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(escaped.String()), &document); err != nil {
		return err
	}
	plain(&document)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&document); err != nil {
		return err
	}
	_, err = w.Write(out.Bytes())
	return err
}

func plain(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0 // an empty list has no other form than "[]"
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// age returns a duration in a table's short form.
func age(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
