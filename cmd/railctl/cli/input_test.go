package cli

import (
	"os"
	"strings"
	"testing"
)

func TestInputIsStdinOrAFile(t *testing.T) {
	const text = `{"configList": []}`
	in, err := os.CreateTemp(t.TempDir(), "in")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := in.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadInput(in, "-"); err != nil || string(got) != text {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ReadInput(strings.NewReader(strings.Repeat("x", maxInput+1)), "-"); err == nil {
		t.Error("an endless input is read")
	}
}
