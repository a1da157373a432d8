package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestColorIsForTerminals opens a pseudo terminal.
func TestColorIsForTerminals(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer main.Close()
	if Colored(&bytes.Buffer{}) || NewProgress(&bytes.Buffer{}) != nil {
		t.Error("a buffer is a terminal")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if Colored(file) || NewProgress(file) != nil {
		t.Error("a file is a terminal")
	}
	if !Colored(main) || NewProgress(main) == nil {
		t.Error("a terminal has no color and no progress")
	}
	t.Setenv("NO_COLOR", "1")
	if Colored(main) {
		t.Error("color in spite of NO_COLOR")
	}
}
