package configs

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/docs"
)

func TestKeysOfOursAreMarkedInTheReference(t *testing.T) {
	const page = "docs/reference/keys.md"
	for _, of := range []struct {
		sections []string
		keys     []string
	}{{[]string{"Every plugin", "host-device", "macvlan", "ipoib", "rdma"}, ourKeys}, {[]string{"whereabouts"}, ourIPAMKeys}} {
		marked := map[string]bool{}
		for _, section := range of.sections {
			for _, row := range docs.Rows(docs.Section(t, page, section)) {
				for _, key := range docs.Code(row[0]) {
					top, _, _ := strings.Cut(key, ".")
					marked[top] = marked[top] || strings.HasPrefix(row[1], "**ours**")
				}
			}
		}
		for _, key := range of.keys {
			if !marked[key] {
				t.Errorf("%s is not marked", key)
			}
			delete(marked, key)
		}
		// In other plugins these keys have another meaning, or are an error.
		for _, key := range []string{"mtu", "mode", "railRanges", "allow_gateway"} {
			delete(marked, key)
		}
		for key, ours := range marked {
			if ours {
				t.Errorf("%s is ours, and not looked for", key)
			}
		}
	}
}
