package whereabouts

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/deployments/crds"
)

// meaning decodes a CRD and removes what does not affect the objects that a
// server accepts: descriptions, annotations, and the order of required fields.
func meaning(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var crd map[string]any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	var strip func(v any)
	strip = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if _, is := v["description"].(string); is {
				delete(v, "description")
			}
			if required, is := v["required"].([]any); is {
				slices.SortFunc(required, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
			for _, value := range v {
				strip(value)
			}
		case []any:
			for _, value := range v {
				strip(value)
			}
		}
	}
	strip(crd)
	if metadata, is := crd["metadata"].(map[string]any); is {
		delete(metadata, "annotations")
	}
	return crd
}

// A cluster with whereabouts' CRDs, and one with ours, must accept the same
// objects: the CRDs of either may be applied over those of the other.
func TestCRDsAreThoseOfWhereabouts(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/k8snetworkplumbingwg/whereabouts").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, plural := range []string{"ippools", "nodeslicepools", "overlappingrangeipreservations"} {
		theirs, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "doc", "crds", "whereabouts.cni.cncf.io_"+plural+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		ours, err := fs.ReadFile(crds.Files, plural+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := meaning(t, ours), meaning(t, theirs); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\nours:   %v\ntheirs: %v", plural, got, want)
		}
	}
}
