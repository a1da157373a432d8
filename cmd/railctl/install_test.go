package main

import (
	"strings"
	"testing"
)

func TestInstallPrintsWithWhatIsAskedFor(t *testing.T) {
	plain, errOut, code := plainRun("install", "--manifest")
	if code != 0 || errOut != "" {
		t.Fatal(code, errOut)
	}
	changed, errOut, code := plainRun("install", "--manifest", "--image", "registry.example:5000/rail-cni@sha256:0123", "--prefix", "rail-", "--crds")
	if code != 0 || errOut != "" {
		t.Fatal(code, errOut)
	}
	definitions, rest, _ := strings.Cut(changed, "# What the plugin")
	if n := strings.Count(definitions, "kind: CustomResourceDefinition\n"); n != 3 {
		t.Errorf("%d definitions", n)
	}
	was, is := strings.Split(plain, "\n"), strings.Split("# What the plugin"+rest, "\n")
	for len(was) > 0 && !strings.HasPrefix(was[0], "# What the plugin") { // says where it comes from
		was = was[1:]
	}
	if len(was) != len(is) {
		t.Fatalf("%d lines, not %d", len(is), len(was))
	}
	var lines []string
	for i := range was {
		if was[i] != is[i] {
			lines = append(lines, strings.TrimSpace(is[i]))
		}
	}
	if have, want := strings.Join(lines, "; "), "image: registry.example:5000/rail-cni@sha256:0123; image: registry.example:5000/rail-cni@sha256:0123; - --prefix=rail-"; have != want {
		t.Errorf("what is another: %s", have)
	}
}
