package nodefile

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
)

// TestNodeFilePageHasThePathsThatAreOpen checks every path that the page says is open
// without a node file: patterns, or each name below each directory.
func TestNodeFilePageHasThePathsThatAreOpen(t *testing.T) {
	keys := map[string]bool{}
	for _, row := range docs.Rows(docs.Section(t, "docs/reference/node-file.md", "Paths that networks may name")) {
		var dirs, names, paths []string
		for _, text := range docs.Code(row[1]) {
			switch {
			case !strings.HasPrefix(text, "/"):
				names = append(names, text)
			case strings.Contains(text, "*"):
				paths = append(paths, text)
			default:
				dirs = append(dirs, text)
			}
		}
		for _, dir := range dirs {
			for _, name := range names {
				paths = append(paths, dir+"/"+name)
			}
		}
		for _, key := range docs.Code(row[0]) {
			keys[key] = true
			if len(paths) == 0 {
				t.Errorf("no path of %s is named", key)
			}
			for _, path := range paths {
				var none *File
				if path = strings.ReplaceAll(path, "*", "x"); !none.OpensPath(key, path) {
					t.Errorf("%s: %s is not open", key, path)
				}
			}
		}
	}
	for key := range defaultPaths {
		if !keys[key] {
			t.Errorf("the page does not name %s", key)
		}
	}
}
