package docs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update-docs", false, "write the generated parts of the documentation")

// root returns the directory of the checkout: tests run in their package's.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "docs", "docs.go")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("the test does not run in a checkout")
		}
		dir = filepath.Dir(dir)
	}
}

// Page returns the text of a page, whose path is relative to the top of the checkout.
func Page(t testing.TB, page string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), page))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Section returns the text below a heading of the second level, with the sections in
// it. The test fails if there is no such heading.
func Section(t testing.TB, page, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(Page(t, page), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// Rows returns the rows of all tables in the text, by cells, without headings.
func Rows(text string) [][]string {
	var rows [][]string
	inTable := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			inTable = false
			continue
		}
		if strings.HasPrefix(line, "|-") || strings.HasPrefix(line, "|:") {
			inTable = true
			continue
		}
		if !inTable {
			continue // the heading
		}
		var cells []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	return rows
}

var code = regexp.MustCompile("`([^`]+)`")

// Code returns what the text has between backquotes.
func Code(text string) []string {
	var all []string
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// Generated fails if the part of the page named part is not want. The part lies between
// two comments. With -update-docs Generated writes it.
func Generated(t testing.TB, page, part, want string) {
	t.Helper()
	text := Page(t, page)
	begin, end := fmt.Sprintf("<!-- begin %s -->\n", part), fmt.Sprintf("<!-- end %s -->\n", part)
	before, rest, begins := strings.Cut(text, begin)
	have, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no part %q", page, part)
	}
	if have == want {
		return
	}
	if !*update {
		t.Errorf("%s is stale: run go test with -update-docs\n%s", page, difference(have, want))
		return
	}
	if err := os.WriteFile(filepath.Join(root(t), page), []byte(before+begin+want+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}

// difference returns the first line that differs.
func difference(have, want string) string {
	a, b := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d is\n%s\nand must be\n%s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("it has %d lines, not %d", len(a), len(b))
}

// Commands returns the help texts of a program, each below a heading of the third level.
// help runs the program with arguments, and returns what it prints. It is called with
// "--help" first, and then for each command that a help text lists.
func Commands(program string, help func(args ...string) string) string {
	var b strings.Builder
	var add func(command ...string)
	add = func(command ...string) {
		text := strings.TrimSpace(help(append(slices.Clone(command), "--help")...))
		fmt.Fprintf(&b, "\n### %s\n\n```text\n%s\n```\n", strings.Join(append([]string{program}, command...), " "), text)
		_, list, _ := strings.Cut(text, "\nAvailable Commands:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		for line := range strings.Lines(list) {
			name := strings.Fields(line)[0]
			if name != "help" && name != "completion" { // they are the library's, not ours
				add(append(slices.Clone(command), name)...)
			}
		}
	}
	add()
	return b.String() + "\n"
}

// A Block is a fenced block of a page.
type Block struct {
	// Language is the first word of the block's info string: sh for commands, "" if
	// there is none.
	Language string
	// Marks are the other words, which have the form KEY=VALUE.
	Marks map[string]string
	// Text is what lies between the fences, without the indentation of the first one.
	Text string
}

var block = regexp.MustCompile("(?ms)^( *)```([^\n]*)\n(.*?)^ *```$")

// Blocks returns the fenced blocks of the text.
func Blocks(text string) (all []Block) {
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		b := Block{Marks: map[string]string{}, Text: strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n")[1:]}
		for i, word := range strings.Fields(m[2]) {
			key, value, _ := strings.Cut(word, "=")
			if i == 0 {
				b.Language = word
			} else {
				b.Marks[key] = value
			}
		}
		all = append(all, b)
	}
	return all
}

// Scripts returns the commands that the page says are run by the test that calls it: the
// blocks with "sh test=NAME". The test fails if there is none.
func Scripts(t testing.TB, page string) (scripts []string) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	for _, b := range Blocks(Page(t, page)) {
		if b.Marks["test"] == name {
			scripts = append(scripts, b.Text)
		}
	}
	if len(scripts) == 0 {
		t.Fatalf("%s has no block with test=%s", page, name)
	}
	return scripts
}

// CommandPages returns the pages whose readers paste commands. The READMEs repeat some of
// these commands.
func CommandPages(t testing.TB) []string {
	t.Helper()
	var pages []string
	for _, glob := range []string{"docs/guide/*.md", "docs/reference/*.md", "deployments/README.md", "examples/README.md"} {
		found, err := filepath.Glob(filepath.Join(root(t), glob))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", glob, err)
		}
		for _, name := range found {
			if filepath.Base(name) != "cli.md" { // generated
				pages = append(pages, filepath.ToSlash(strings.TrimPrefix(name, root(t)+"/")))
			}
		}
	}
	return pages
}
