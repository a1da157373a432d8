package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Files is a directory of files for a machine, the value of RIG_FILES: each is a symbolic link
// to a file of this host, at the path that it has in the machine.
type Files string

// Put adds the file source of this host as path, an absolute path in the machine. A file that
// is there already stays.
func (dir Files) Put(path, source string) error {
	to := filepath.Join(string(dir), path)
	source, err := filepath.Abs(source)
	if err == nil {
		_, err = os.Stat(source)
	}
	if err = errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755)); err == nil {
		err = os.Symlink(source, to)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("the machine's %s: %w", path, err)
	}
	return nil
}

// PutProgram is Put for a program, and adds the shared libraries that it needs.
func (dir Files) PutProgram(path, source string) error {
	out, err := exec.Command("ldd", source).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "not a dynamic executable") {
		return fmt.Errorf("ldd %s: %w\n%s", source, err, out)
	}
	errs := []error{dir.Put(path, source)}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") {
			errs = append(errs, dir.Put(word, word))
		}
	}
	return errors.Join(errs...)
}
