package ibaddr

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// gidTable is a directory with a GID table of 256 entries, as sysfs has it.
type gidTable struct {
	t   testing.TB
	dir string
}

func newGIDTable(t testing.TB) *gidTable {
	table := &gidTable{t, t.TempDir()}
	for i := range 256 {
		table.set(i, GID{})
	}
	return table
}

func (table *gidTable) set(index int, gid GID) {
	table.t.Helper()
	if err := os.WriteFile(filepath.Join(table.dir, strconv.Itoa(index)), []byte(gid.String()+"\n"), 0o644); err != nil {
		table.t.Fatal(err)
	}
}

func TestGIDWatchNoticesChanges(t *testing.T) {
	table := newGIDTable(t)
	a, b, c := GID{15: 1}, GID{15: 2}, GID{15: 3}
	table.set(0, a)
	table.set(3, b)
	dir, err := os.Open(table.dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &GIDWatch{dir: dir, seen: []GID{a, {}, {}, b}}
	defer w.Close()
	for _, step := range []struct {
		name    string
		index   int
		gid     GID
		changed []GID
	}{
		{"nothing", 0, a, nil},
		{"in a gap", 1, c, []GID{c}},
		{"nothing again", 1, c, nil},
		{"behind the last", 4, c, []GID{c}},
		{"another value", 4, b, []GID{c, b}},
		{"the last is removed", 4, GID{}, []GID{b}},
		{"and the one before", 3, GID{}, []GID{b}},
		{"the first is removed", 0, GID{}, []GID{a}},
		{"the only one is removed", 1, GID{}, []GID{c}},
		{"the first one comes", 0, a, []GID{a}},
	} {
		table.set(step.index, step.gid)
		changed, err := w.Changed()
		if err != nil || !slices.Equal(changed, step.changed) {
			t.Errorf("%s: %v, %v; want %v", step.name, changed, err, step.changed)
		}
	}
	if err := os.RemoveAll(table.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Changed(); err == nil {
		t.Error("no error after the table is gone")
	}
}

// BenchmarkGIDWatch measures one check of the table of a port that has 256 entries, of which eight
// are in use.
func BenchmarkGIDWatch(b *testing.B) {
	table := newGIDTable(b)
	w := &GIDWatch{}
	for i := range 8 {
		table.set(i, GID{15: byte(i + 1)})
		w.seen = append(w.seen, GID{15: byte(i + 1)})
	}
	var err error
	if w.dir, err = os.Open(table.dir); err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	for b.Loop() {
		if changed, err := w.Changed(); changed != nil || err != nil {
			b.Fatal(changed, err)
		}
	}
}
