package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A Cache returns what the ledger does, after each change, and decodes nothing twice.
func TestCacheIsTheLedger(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	c := l.NewCache()
	put := func(container, ifname string, mtu int) {
		t.Helper()
		r := full()
		r.Key, r.Phase, r.MTU = Key{container, ifname}, Lent, mtu
		if err := l.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("c", 200)
	for _, step := range []struct {
		name   string
		change func() error
	}{
		{"empty", func() error { return nil }},
		{"two records", func() error { put("c1", "net1", 1500); put("c1", "net2", 1500); return nil }},
		{"another container", func() error { put("c2", "net1", 1500); put(long, "net1", 1500); return nil }},
		{"a change", func() error { put("c1", "net1", 9000); return nil }},
		{"an end", func() error { return l.Remove(&Record{Key: Key{"c1", "net2"}}) }},
		{"damage", func() error {
			return os.WriteFile(filepath.Join(dir, "attachments", recordName(Key{"c2", "net1"})), []byte("{"), 0o600)
		}},
		{"repair", func() error { put("c2", "net1", 1400); return nil }},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		for what, both := range map[string][2]func() ([]*Record, []error){
			"List":            {l.List, func() ([]*Record, []error) { return c.collect("") }},
			"ofContainer c1":  {func() ([]*Record, []error) { return l.ofContainer("c1") }, func() ([]*Record, []error) { return c.ofContainer("c1") }},
			"ofContainer ccc": {func() ([]*Record, []error) { return l.ofContainer(long) }, func() ([]*Record, []error) { return c.ofContainer(long) }},
		} {
			want, wantErrs := both[0]()
			got, errs := both[1]()
			if len(got) != len(want) || len(errs) != len(wantErrs) {
				t.Fatalf("%s, %s: %d records, %v, want %d, %v", step.name, what, len(got), errors.Join(errs...), len(want), wantErrs)
			}
			for i := range want {
				if got[i].Key != want[i].Key || got[i].MTU != want[i].MTU || !got[i].Updated.Equal(want[i].Updated) || got[i].IPAM.Config != nil {
					t.Errorf("%s, %s: %+v, want %+v", step.name, what, got[i], want[i])
				}
			}
		}
	}
	first, _ := c.collect("")
	second, _ := c.collect("")
	for i := range first {
		if first[i] != second[i] {
			t.Errorf("%s was decoded again", first[i].Key)
		}
	}
	if len(c.known) != len(first) {
		t.Errorf("it has %d records of %d", len(c.known), len(first))
	}
}
