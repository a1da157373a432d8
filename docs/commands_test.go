package docs

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var allOfPage = regexp.MustCompile(`(?m)^<!-- commands: test=(\w+) -->$`)

// needs are what commands can need that no test has.
var needs = []string{"hardware", "registry"}

// TestEveryCommandIsRunOrNeedsHardware demands a language of each block, and of each block
// of commands one of these marks behind it:
//
//	test=NAME   the test takes the commands from the page, and runs them
//	like=NAME   the test runs the same commands with values of its own
//	needs=WHAT  no test can run them: see needs
//
// The line "<!-- commands: test=NAME -->" marks all blocks of its page that have no mark.
func TestEveryCommandIsRunOrNeedsHardware(t *testing.T) {
	files := testFiles(t)
	blocks := 0
	for _, page := range CommandPages(t) {
		all := allOfPage.FindStringSubmatch(Page(t, page))
		for _, b := range Blocks(Page(t, page)) {
			if all != nil && len(b.Marks) == 0 {
				b.Marks["test"] = all[1]
			}
			first, _, _ := strings.Cut(b.Text, "\n")
			switch b.Language {
			case "sh", "console":
				blocks++
			case "":
				t.Errorf("%s: the block %q needs a language: sh for commands, text for output, console for both", page, first)
				continue
			default:
				continue
			}
			if fault := b.markFault(page, files); fault != "" {
				t.Errorf("%s: the commands %q %s", page, first, fault)
			}
			if b.Language == "sh" {
				if out, err := exec.Command("sh", "-n", "-c", b.Text).CombinedOutput(); err != nil {
					t.Errorf("%s: the commands %q: %v\n%s", page, first, err, out)
				}
			}
		}
	}
	if blocks < 30 {
		t.Errorf("only %d blocks of commands", blocks)
	}
}

// markFault returns what is wrong with the mark of a block of commands, or "".
func (b *Block) markFault(page string, files map[string]string) string {
	if len(b.Marks) != 1 {
		return "need one of test=, like= and needs="
	}
	for key, value := range b.Marks {
		text, exists := files[value]
		switch {
		case key == "needs" && slices.Contains(needs, value):
		case key == "needs":
			return fmt.Sprintf("need %q, which is none of %q", value, needs)
		case key != "test" && key != "like":
			return "have the unknown mark " + key
		case !exists:
			return "are run by " + value + ", which does not exist"
		case key == "test" && !strings.Contains(text, page):
			return "are run by " + value + ", which does not take them from the page"
		case key == "like":
			for _, word := range commandWords(b.Text) {
				if !strings.Contains(text, word) {
					return fmt.Sprintf("are run by %s, whose package does not have %q", value, word)
				}
			}
		}
	}
	return ""
}

// testFiles returns the text of all test files of the package of each test, by the test's name.
func testFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, top := range []string{"cmd", "deployments", "docs", "examples", "integration", "pkg", "scripts"} {
		packages := map[string]string{}
		err := filepath.WalkDir(filepath.Join(root(t), top), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
				return err
			}
			data, err := os.ReadFile(name)
			packages[filepath.Dir(name)] += string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range packages {
			for _, m := range testOf.FindAllStringSubmatch(text, -1) {
				files[m[1]] = text
			}
		}
	}
	return files
}

var subcommand = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// commandWords returns the subcommands of railctl, rail-agent, helm and kubectl in a
// script: "ipam" and "show" of "railctl ipam show POOL".
func commandWords(script string) []string {
	words := map[string]bool{}
	for _, line := range commandLines(script) {
		switch line[0] {
		case "railctl", "rail-agent", "helm", "kubectl":
		default:
			continue
		}
		for _, word := range line[1:] {
			if !subcommand.MatchString(word) {
				break
			}
			words[word] = true
			if line[0] == "kubectl" || line[0] == "helm" {
				break // the rest are objects
			}
		}
	}
	return slices.Sorted(maps.Keys(words))
}

// commandLines returns the words of each command of a script, without comments and the
// parts behind a redirection.
func commandLines(script string) (all [][]string) {
	script = regexp.MustCompile(`\\\n|(?m)^\$ |\$\(|\)$`).ReplaceAllString(script, " ")
	for line := range strings.Lines(script) {
		line, _, _ = strings.Cut(line, " #")
		for _, part := range regexp.MustCompile(`\|\||\||&&|;`).Split(line, -1) {
			if part, _, _ = strings.Cut(part, " >"); len(strings.Fields(part)) > 0 {
				all = append(all, strings.Fields(part))
			}
		}
	}
	return all
}

// TestCommandsSetValuesOfTheChart looks for each --set of helm in values.yaml.
func TestCommandsSetValuesOfTheChart(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(Page(t, "deployments/helm/rail-cni/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	set := regexp.MustCompile(`--set(?:-string)? '?([^ '\n]+)`)
	seen := 0
	for _, page := range append(CommandPages(t), readmePage) {
		for _, b := range Blocks(Page(t, page)) {
			for _, m := range set.FindAllStringSubmatch(b.Text, -1) {
				for pair := range strings.SplitSeq(m[1], ",") {
					key, _, _ := strings.Cut(pair, "=")
					seen++
					if !hasValue(values, strings.Split(key, ".")) {
						t.Errorf("%s sets %s, which the chart does not have", page, key)
					}
				}
			}
		}
	}
	if seen < 3 {
		t.Errorf("only %d values are set", seen)
	}
}

// hasValue reports whether the values have the key. All keys below an empty map exist.
func hasValue(values map[string]any, key []string) bool {
	value, ok := values[key[0]]
	below, isMap := value.(map[string]any)
	return ok && (len(key) == 1 || isMap && (len(below) == 0 || hasValue(below, key[1:])))
}
