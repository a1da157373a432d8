package nodefile

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestNodeFileIsParsedOnceForEachChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.yaml")
	long := time.Now().Add(-time.Hour)
	write := func(text string) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, long, long); err != nil { // as a program that restores a file does
				t.Fatal(err)
			}
		}
	}
	mode := func(mode os.FileMode) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := &Reader{Path: path}
	var last *File
	for _, c := range []struct {
		name       string
		change     func(*testing.T)
		generation uint64
		node       int // -1 without a file
		fails      bool
	}{
		{"no file", func(*testing.T) {}, 1, -1, false},
		{"still none", func(*testing.T) {}, 1, -1, false},
		{"the first one", write("node: 1"), 2, 1, false},
		{"the same text", write("node: 1"), 2, 1, false},
		{"other text of the same length and time", write("node: 2"), 3, 2, false},
		{"a mistake", write("nod: 3"), 4, -1, true},
		{"the same mistake", write("nod: 3"), 4, -1, true},
		{"corrected", write("node: 3"), 5, 3, false},
		{"others may write", mode(0o602), 6, -1, true},
		{"others may not", mode(0o600), 7, 3, false},
		{"removed", func(t *testing.T) { _ = os.Remove(path) }, 8, -1, false},
		{"a directory", func(t *testing.T) { _ = os.Mkdir(path, 0o700) }, 9, -1, true},
	} {
		c.change(t)
		file, generation, err := r.Read()
		if generation != c.generation || (err != nil) != c.fails || (file == nil) != (c.node < 0) || file != nil && *file.Node != c.node {
			t.Errorf("%s: generation %d, %+v, %v", c.name, generation, file, err)
		}
		if again, _, _ := r.Read(); again != file {
			t.Errorf("%s: parsed again", c.name)
		}
		if file != nil && file == last && c.generation != 2 {
			t.Errorf("%s: not parsed", c.name)
		}
		last = file
	}
}

// The path of the node's file is not that of the last read: the administrator's own file may come.
func TestNodeFileReaderFollowsThePath(t *testing.T) {
	one, two := nodeFile(t, "node: 1"), nodeFile(t, "node: 1")
	r := &Reader{}
	for i, path := range []string{one, two, one} {
		t.Setenv(PathEnv, path)
		file, generation, err := r.Read()
		if err != nil || file.Path != path || generation != uint64(i)+1 {
			t.Errorf("%s: %+v, generation %d, %v", path, file, generation, err)
		}
	}
}
