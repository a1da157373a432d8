package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testOf    = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	testNamed = regexp.MustCompile(`^(?:Test|Fuzz)\w+$`)
)

// tests returns the number of packages with a test or fuzz target, by its name.
func tests(t *testing.T) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, top := range []string{"cmd", "deployments", "docs", "examples", "integration", "pkg", "scripts"} {
		err := filepath.WalkDir(filepath.Join(root(t), top), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
				return err
			}
			data, err := os.ReadFile(name)
			for _, m := range testOf.FindAllStringSubmatch(string(data), -1) {
				found[m[1]]++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// TestTestsThatPagesNameExist holds the pages about invariants and testing to the code.
func TestTestsThatPagesNameExist(t *testing.T) {
	exists := tests(t)
	named := 0
	for _, page := range pages(t) {
		for _, name := range Code(fenced.ReplaceAllString(Page(t, page), "")) {
			if !testNamed.MatchString(name) {
				continue
			}
			named++
			if exists[name] == 0 {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d tests are named", named)
	}
}

// TestLeftOutTestsAreRunElsewhere holds scripts/long.txt to the code: "make test" leaves
// out tests by their names alone, and none that the page about invariants relies on.
func TestLeftOutTestsAreRunElsewhere(t *testing.T) {
	exists, invariants := tests(t), Page(t, "docs/design/invariants.md")
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(root(t), "scripts", "long.txt"))
	if err != nil {
		t.Fatal(err)
	}
	long := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) < 3 || !regexp.MustCompile(`(?m)^`+words[1]+`: `).Match(makefile) {
			t.Errorf("%q needs a test, a make target and a reason", line)
			continue
		}
		name, _, part := strings.Cut(words[0], "/")
		if n := exists[name]; n != 1 {
			t.Errorf("%d packages have a test named %s, want 1: -skip would skip all of them", n, name)
		}
		if !part && regexp.MustCompile("`"+name+"`").MatchString(invariants) {
			t.Errorf("%s is left out, and docs/design/invariants.md relies on it", name)
		}
		long[name] = !part
	}
	for line := range strings.Lines(string(list)) {
		for _, name := range regexp.MustCompile(`(Test\w+) stays`).FindAllStringSubmatch(line, -1) {
			if exists[name[1]] == 0 || long[name[1]] {
				t.Errorf("%s is named as staying, but is left out or does not exist: %q", name[1], line)
			}
		}
	}
	if len(long) == 0 {
		t.Error("no test is left out")
	}
}
