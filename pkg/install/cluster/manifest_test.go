package cluster_test

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/install/cluster"
)

func TestManifestHasWhatIsAskedFor(t *testing.T) {
	plain, err := cluster.Manifest{}.Objects()
	if err != nil {
		t.Fatal(err)
	}
	changed, err := cluster.Manifest{Image: "registry.example:5000/rail-cni@sha256:0123", Prefix: "rail-", Definitions: true}.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range changed[:3] {
		if !strings.Contains(text, "kind: CustomResourceDefinition\n") {
			t.Errorf("object %d is no definition:\n%s", i, text)
		}
	}
	was, is := strings.Split(strings.Join(plain, "\n"), "\n"), strings.Split(strings.Join(changed[3:], "\n"), "\n")
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

func TestManifestRefusesWhatBreaksIt(t *testing.T) {
	for _, m := range []cluster.Manifest{{Image: "a b"}, {Image: "a\nb: c"}, {Prefix: "../"}, {Prefix: ".rail"}, {Prefix: "rail -"}} {
		if objects, err := m.Objects(); err == nil {
			t.Errorf("%+v: %d objects", m, len(objects))
		}
	}
}
