package plans_test

import (
	"os"
	"syscall"
	"testing"
)

// writeExecutable writes a program. No process may be started meanwhile: it would
// inherit the open file, and the kernel runs no program that is open for writing
// (ETXTBSY).
func writeExecutable(t *testing.T, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	_ = os.Remove(path)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
