package rdma

import (
	"encoding/hex"
	"errors"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"
)

// Answers of Linux 6.12, recorded byte by byte in the rig (little endian).
var recorded = map[string]string{
	"RECORDED": "",
}

func message(t testing.TB, name string) []byte {
	t.Helper()
	text, ok := recorded[name]
	if !ok {
		t.Fatalf("no message %q", name)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func attrsOf(t testing.TB, name string) attributes {
	t.Helper()
	a, err := parse(message(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return a
}
