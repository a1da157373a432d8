package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/cmd/railctl/cli"
)

// toTerminal are texts that change a terminal: colors and titles as sequences of seven and eight
// bits, a line that is overwritten, and a line that is read from right to left.
var toTerminal = []string{"\x1b[31mred", "\x1b]0;title\a", "\u009b31mred", "over\rwritten", "back\b\b", "\u202eleft", "\x7f"}

// controls returns the characters in text that change a terminal.
func controls(text string) []rune {
	var found []rune
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			found = append(found, r)
		}
	}
	return found
}

// testIPAMTerminal has a pool into which a node with its plugin's token has written.
func testIPAMTerminal(l *ipamLab) {
	t := l.t
	allocations := map[string]any{}
	for i, text := range toTerminal {
		allocations[fmt.Sprint(i+1)] = map[string]any{"id": "c" + text, "podref": l.ns + "/p" + text, "ifname": "i" + text}
	}
	allocations["x\x1b[31m"] = map[string]any{"id": "c", "podref": l.ns + "/p"}
	l.cr("ippools", "IPPool", "10.66.0.0-24", map[string]any{"spec": map[string]any{"range": "10.66.0.0/24", "allocations": allocations}})
	l.macvlan("net", `"range":"10.66.0.0/24"`)
	for _, args := range [][]string{
		{"show"},
		{"show", "10.66.0.0-24"},
		{"show", "10.66.0.0-24", "-o", "json"},
		{"show", "10.66.0.0-24", "-o", "yaml"},
		{"explain"},
		{"check"},
		{"check", "-o", "json"},
		{"show", "no\x1b[31mpool"},
		{"gc", "--dry-run"},
		{"gc", "--grace", "0s"},
	} {
		stdout, stderr, _ := l.railctl(args...)
		if found := controls(stdout + stderr); len(found) > 0 {
			t.Errorf("railctl ipam %q prints %q:\n%s\n%s", args, found, stdout, stderr)
		}
		if stdout+stderr == "" {
			t.Errorf("railctl ipam %q says nothing", args)
		}
		var any []any
		if slices.Contains(args, "json") {
			if err := json.Unmarshal([]byte(stdout), &any); err != nil || args[0] == "show" && !strings.Contains(fmt.Sprint(any), toTerminal[0]) {
				t.Errorf("railctl ipam %q: %v: %s", args, err, stdout)
			}
		}
		if slices.Contains(args, "yaml") {
			if err := yaml.Unmarshal([]byte(stdout), &any); err != nil || !strings.Contains(fmt.Sprint(any), toTerminal[0]) {
				t.Errorf("railctl ipam %q: %v: %s", args, err, stdout)
			}
		}
	}
}

func TestTextForPeopleIsEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"a pod, näme 名 “x” …\n\tnext":  "a pod, näme 名 “x” …\n\tnext",
		`c:\x "quoted"`:                `c:\x "quoted"`,
		"\x1b[31mred\x1b[0m":           `\x1b[31mred\x1b[0m`,
		"\u009b31m \u202e \u2028 \x7f": `\u009b31m \u202e \u2028 \x7f`,
		"not UTF-8: \xff\xfe":          `not UTF-8: \xff\xfe`,
		"one\rtwo\a":                   `one\rtwo\a`,
	} {
		var out strings.Builder
		if n, err := cli.Escaper(&out).Write([]byte(text)); err != nil || n != len(text) || out.String() != want {
			t.Errorf("%q is written as %q, want %q (%d, %v)", text, out.String(), want, n, err)
		}
	}
	for _, text := range toTerminal {
		var table, as strings.Builder
		format, js := cli.Table, cli.JSON
		if err := format.Print(&table, nil, [][]string{{"NAME"}, {text}}); err != nil || len(controls(table.String())) > 0 {
			t.Errorf("a table has %q, %v", table.String(), err)
		}
		if err := js.Print(&as, []string{text}, nil); err != nil || strings.ContainsAny(as.String(), "\u009b\x7f") {
			t.Errorf("JSON has %q, %v", as.String(), err)
		}
	}
}
