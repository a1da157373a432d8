package all_test

import (
	"os"
	"testing"
)

func writeExecutable(t *testing.T, path, text string) {
	t.Helper()
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
