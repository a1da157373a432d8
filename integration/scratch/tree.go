package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Tree writes files below a new directory, and returns it. The content of a name that ends
// with "@" is the target of a symbolic link.
func Tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, strings.TrimSuffix(name, "@"))
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if strings.HasSuffix(name, "@") {
			err = errors.Join(err, os.Symlink(content, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(content), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}
