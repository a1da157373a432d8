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

// TestTestsThatPagesNameExist holds the pages about invariants and testing to the code.
func TestTestsThatPagesNameExist(t *testing.T) {
	exists := map[string]bool{}
	for _, top := range []string{"cmd", "deployments", "docs", "examples", "integration", "pkg", "scripts"} {
		err := filepath.WalkDir(filepath.Join(root(t), top), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") {
				return err
			}
			data, err := os.ReadFile(name)
			for _, m := range testOf.FindAllStringSubmatch(string(data), -1) {
				exists[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	named := 0
	for _, page := range pages(t) {
		for _, name := range Code(fenced.ReplaceAllString(Page(t, page), "")) {
			if !testNamed.MatchString(name) {
				continue
			}
			named++
			if !exists[name] {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d tests are named", named)
	}
}
