package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/cell"
)

// format is the value of the flag --output.
type format string

const (
	asTable format = "table"
	asWide  format = "wide" // a table with more columns
	asJSON  format = "json"
	asYAML  format = "yaml"
	asLine  format = "line" // one line, for node-problem-detector
)

// outputs has each command with the flag --output, and the formats of this flag. The first format
// is the default. The other commands have no such flag: they print input for another program (a
// manifest, shell variables, an SVG), or only a message about what they did.
var outputs = map[string][]format{
	"railctl check":          {asTable, asJSON, asYAML},
	"railctl doctor":         {asTable, asLine, asJSON, asYAML},
	"railctl doctor cluster": {asTable, asJSON, asYAML},
	"railctl doctor pod":     {asTable, asJSON, asYAML},
	"railctl gc":             {asTable, asJSON, asYAML},
	"railctl ibdev2netdev":   {asTable, asJSON, asYAML},
	"railctl ipam check":     {asTable, asJSON, asYAML},
	"railctl ipam explain":   {asTable, asJSON, asYAML},
	"railctl ipam gc":        {asTable, asJSON, asYAML},
	"railctl ipam show":      {asTable, asJSON, asYAML},
	"railctl nics":           {asTable, asWide, asJSON, asYAML},
	"railctl pod":            {asTable, asJSON, asYAML},
	"railctl rdma mode":      {asTable, asJSON, asYAML},
	"railctl show":           {asTable, asWide, asJSON, asYAML},
	"railctl topology":       {asTable, asJSON, asYAML},
	"railctl verify":         {asTable, asJSON, asYAML},
	"railctl version":        {asTable, asJSON, asYAML},
}

// outputFlag is the value of the flag --output of one command.
type outputFlag struct {
	value   *format
	formats []format
}

// String returns the format. String, Set and Type implement pflag.Value.
func (f *outputFlag) String() string { return string(*f.value) }

// Type returns the name of the value in the help text.
func (f *outputFlag) Type() string { return "format" }

// Set sets the format. It returns an error if the command does not have this format.
func (f *outputFlag) Set(s string) error {
	if !slices.Contains(f.formats, format(s)) {
		return fmt.Errorf("it must be one of %s", joined(f.formats))
	}
	*f.value = format(s)
	return nil
}

func joined(formats []format) string { return strings.Join(namesOfFormats(formats), ", ") }

func namesOfFormats(formats []format) []string {
	var all []string
	for _, f := range formats {
		all = append(all, string(f))
	}
	return all
}

// addOutputFlag adds the flag -o to a command. The map outputs has the flag's formats, by the path
// of the command.
func addOutputFlag(cmd *cobra.Command, path string) *format {
	f := asTable
	formats := outputs["railctl "+path]
	cmd.Flags().VarP(&outputFlag{&f, formats}, "output", "o", joined(formats))
	// Fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(namesOfFormats(formats), cobra.ShellCompDirectiveNoFileComp))
	return &f
}

// print writes the list as JSON or YAML, or the rows as a table. Names and texts that others have
// chosen are escaped if they could change the terminal.
func (f *format) print(w io.Writer, list any, rows [][]string) error {
	switch *f {
	case asJSON:
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetIndent("", "  ")
		if err := e.Encode(list); err != nil {
			return err
		}
		_, err := io.WriteString(w, withoutControls(text.String()))
		return err
	case asYAML:
		return printYAML(w, list)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, text := range row {
			if row[i] = cell.Printable(text); text == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// writeAs writes a report in the format f. The functions asText and asJSONText write the report as
// text and as JSON.
func writeAs(f format, w io.Writer, asJSONText, asText func(io.Writer) error) error {
	switch f {
	case asJSON:
		return asJSONText(w)
	case asYAML:
		var text bytes.Buffer
		if err := asJSONText(&text); err != nil {
			return err
		}
		return printYAML(w, json.RawMessage(text.Bytes()))
	}
	return asText(w)
}

// toStdout is the file name that stands for stdout.
const toStdout = "-"

// writeTo writes a page or a picture to a file or to stdout.
func writeTo(stdout io.Writer, file string, text []byte) error {
	if file == toStdout {
		_, err := stdout.Write(text)
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// printYAML writes the list as YAML, with the same keys in the same order as in JSON. It parses the
// JSON as YAML, which is possible for every JSON document, and changes only the style.
func printYAML(w io.Writer, list any) error {
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(withoutControls(string(data))), &document); err != nil {
		return err
	}
	plain(&document)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&document); err != nil {
		return err
	}
	_, err = io.WriteString(w, withoutControls(out.String()))
	return err
}

// withoutControls returns the JSON with escapes in place of control characters that could change a
// terminal. JSON may contain these characters unescaped, but YAML may contain them only as escapes.
func withoutControls(text string) string {
	var escaped strings.Builder
	for _, r := range text {
		if r >= 0x7f && r <= 0xffff && !strconv.IsPrint(r) {
			fmt.Fprintf(&escaped, `\u%04x`, r)
			continue
		}
		escaped.WriteRune(r)
	}
	return escaped.String()
}

func plain(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0 // an empty list can only be written as "[]"
		if withoutControls(n.Value) != n.Value {
			n.Style = yaml.DoubleQuotedStyle // has escapes
		}
	}
	for _, c := range n.Content {
		plain(c)
	}
}
