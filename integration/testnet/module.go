package testnet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// ModuleFile returns a file of another project's module, at the version that the module in the directory
// pins: a path from the top of the tree. If Go's cache lacks the module it is downloaded.
func ModuleFile(t testing.TB, pin, module, file string) []byte {
	t.Helper()
	dir, err := moduleDir(filepath.Join(root(), pin), module)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// moduleDir returns the directory of a module in Go's cache.
func moduleDir(pin, module string) (string, error) {
	goes := func(args ...string) (string, error) {
		cmd := exec.Command("go", args...)
		cmd.Dir = pin
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("go %v in %s: %w\n%s", args, pin, err, stderr.Bytes())
		}
		return string(bytes.TrimSpace(out)), err
	}
	list := []string{"list", "-m", "-f", "{{.Dir}}", module}
	if dir, err := goes(list...); err != nil || dir != "" {
		return dir, err
	}
	if _, err := goes("mod", "download"); err != nil {
		return "", err
	}
	return goes(list...)
}
