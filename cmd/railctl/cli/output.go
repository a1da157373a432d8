package cli

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

// Format is the value of the flag --output.
type Format string

// These are the formats.
const (
	Table Format = "table"
	Wide  Format = "wide" // a table with more columns
	JSON  Format = "json"
	YAML  Format = "yaml"
	Line  Format = "line" // one line, for node-problem-detector
)

// Outputs has each command with the flag --output, and the formats of this flag. The first format
// is the default. The other commands have no such flag: they print input for another program (a
// manifest, shell variables, an SVG), or only a message about what they did.
var Outputs = map[string][]Format{
	"railctl check":          {Table, JSON, YAML},
	"railctl doctor":         {Table, Line, JSON, YAML},
	"railctl doctor cluster": {Table, JSON, YAML},
	"railctl doctor pod":     {Table, JSON, YAML},
	"railctl gc":             {Table, JSON, YAML},
	"railctl ibdev2netdev":   {Table, JSON, YAML},
	"railctl ipam check":     {Table, JSON, YAML},
	"railctl ipam explain":   {Table, JSON, YAML},
	"railctl ipam gc":        {Table, JSON, YAML},
	"railctl ipam show":      {Table, JSON, YAML},
	"railctl nics":           {Table, Wide, JSON, YAML},
	"railctl pod":            {Table, JSON, YAML},
	"railctl rdma mode":      {Table, JSON, YAML},
	"railctl show":           {Table, Wide, JSON, YAML},
	"railctl topology":       {Table, JSON, YAML},
	"railctl verify":         {Table, JSON, YAML},
	"railctl version":        {Table, JSON, YAML},
}

// outputFlag is the value of the flag --output of one command.
type outputFlag struct {
	value   *Format
	formats []Format
}

// String returns the format. String, Set and Type implement pflag.Value.
func (f *outputFlag) String() string { return string(*f.value) }

// Type returns the name of the value in the help text.
func (f *outputFlag) Type() string { return "format" }

// Set sets the format. It returns an error if the command does not have this format.
func (f *outputFlag) Set(s string) error {
	if !slices.Contains(f.formats, Format(s)) {
		return fmt.Errorf("it must be one of %s", joined(f.formats))
	}
	*f.value = Format(s)
	return nil
}

func joined(formats []Format) string { return strings.Join(namesOfFormats(formats), ", ") }

func namesOfFormats(formats []Format) []string {
	var all []string
	for _, f := range formats {
		all = append(all, string(f))
	}
	return all
}

// AddOutputFlag adds the flag -o to a command. [Outputs] has the flag's formats, by the path of
// the command.
func AddOutputFlag(cmd *cobra.Command, path string) *Format {
	f := Table
	formats := Outputs["railctl "+path]
	cmd.Flags().VarP(&outputFlag{&f, formats}, "output", "o", joined(formats))
	// Fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(namesOfFormats(formats), cobra.ShellCompDirectiveNoFileComp))
	return &f
}

// Print writes the list as JSON or YAML, or the rows as a table. Names and texts that others have
// chosen are escaped if they could change the terminal.
func (f *Format) Print(w io.Writer, list any, rows [][]string) error {
	switch *f {
	case JSON:
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetIndent("", "  ")
		if err := e.Encode(list); err != nil {
			return err
		}
		_, err := io.WriteString(w, withoutControls(text.String()))
		return err
	case YAML:
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

// WriteAs writes a report in the format f. The functions asText and asJSONText write the report as
// text and as JSON.
func WriteAs(f Format, w io.Writer, asJSONText, asText func(io.Writer) error) error {
	switch f {
	case JSON:
		return asJSONText(w)
	case YAML:
		var text bytes.Buffer
		if err := asJSONText(&text); err != nil {
			return err
		}
		return printYAML(w, json.RawMessage(text.Bytes()))
	}
	return asText(w)
}

// Stdout is the file name that stands for stdout.
const Stdout = "-"

// WriteFile writes a page or a picture to a file or to stdout.
func WriteFile(stdout io.Writer, file string, text []byte) error {
	if file == Stdout {
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
