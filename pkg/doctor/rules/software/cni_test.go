package software

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// TestPluginsInTheCNIDirectory: if rail-cni's plugins have a prefix in their names, the reference
// plugins stay in the same directory.
func TestPluginsInTheCNIDirectory(t *testing.T) {
	ours := fact.Binary{Path: "/opt/cni/bin/rail-macvlan", SHA256: "aaaa", Installed: "aaaa", Version: "v1", RailCNI: true}
	for _, c := range []struct {
		name string
		set  func(b *fact.Binary)
		want string
	}{
		{"another's beside ours", func(*fact.Binary) {}, ""},
		{"replaced", func(b *fact.Binary) { *b = fact.Binary{Path: b.Path, SHA256: "dddd", Installed: "aaaa"} }, "another program: its SHA-256 sum is dddd"},
		{"replaced by one of ours", func(b *fact.Binary) { b.SHA256, b.Version = "dddd", "v2" }, "it is rail-cni v2: its SHA-256 sum is dddd"},
		{"replaced by one of ours that does not run", func(b *fact.Binary) { b.SHA256, b.Version = "dddd", "" }, "it is rail-cni: its SHA-256 sum is dddd"},
		{"deleted", func(b *fact.Binary) { *b = fact.Binary{Path: b.Path, Installed: "aaaa"} }, "the file is missing"},
	} {
		b := ours
		c.set(&b)
		f := &fact.Facts{Schema: fact.Schema, CNI: &fact.CNI{Binaries: fact.Known([]fact.Binary{b, {Path: "/opt/cni/bin/macvlan", SHA256: "1"}}, "test")}}
		if got := ruletest.Evidence(t, Rules(), f, "CNI-BINARY"); !strings.Contains(got, c.want) || (got != "") != (c.want != "") || strings.Contains(got, "bin/macvlan") {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
