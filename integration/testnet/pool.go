package testnet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Leftovers returns the paths below dir of all files in the local address store
// that hold an address or are stale. A missing store has none.
func Leftovers(t testing.TB, dir string) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch name := d.Name(); {
		case name == "pool.json", name == "lock", name == "reserved.lock", name == "boot", name == "boot.lock":
			return nil
		case name == "busy", strings.HasPrefix(name, "map-"):
			data, err := os.ReadFile(path)
			if text := strings.Trim(string(data), "\x00"); err != nil || text == "" || text == "idle\n" {
				return err
			}
		}
		left = append(left, strings.TrimPrefix(path, dir))
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	return left
}
