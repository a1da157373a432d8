package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// ReadEach must agree with List and Read for any directory.
func TestReadEachIsListAndRead(t *testing.T) {
	d := openAt(t, filepath.Join(t.TempDir(), "state"))
	path := func(name string) string { return filepath.Join(d.Path(), name) }
	for i, size := range []int{0, 1, 100, 8 << 10, 8<<10 + 1, 100_000, 50, maxFile} {
		if err := d.Write(fmt.Sprintf("%d.json", i), bytes.Repeat([]byte{byte('a' + i)}, size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		d.Write("another.txt", []byte("x")),
		os.WriteFile(path(tmpPrefix+"1.json"), []byte("x"), 0o600),
		os.Mkdir(path("directory.json"), 0o700),
		os.Symlink("1.json", path("link.json")),
		syscall.Mkfifo(path("fifo.json"), 0o600),
		os.WriteFile(path("large.json"), nil, 0o600),
		os.Truncate(path("large.json"), maxFile+1),
	); err != nil {
		t.Fatal(err)
	}
	want, err := d.List(".json")
	if err != nil || len(want) != 11 {
		t.Fatal(want, err)
	}
	var got []string
	err = d.ReadEach(".json", func(name string, data []byte, err error) {
		got = append(got, name)
		wantData, wantErr := d.Read(name)
		if !bytes.Equal(data, wantData) || (err == nil) != (wantErr == nil) || errors.Is(err, ErrForeign) != errors.Is(wantErr, ErrForeign) {
			t.Errorf("%s: %d bytes, %v; Read returns %d bytes, %v", name, len(data), err, len(wantData), wantErr)
		}
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestReadEachPassesOverWhatIsRemovedMeanwhile(t *testing.T) {
	d := openAt(t, filepath.Join(t.TempDir(), "state"))
	for _, name := range []string{"1", "2", "3"} {
		if err := d.Write(name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	err := d.ReadEach("", func(name string, data []byte, err error) {
		got = append(got, string(data))
		if err := errors.Join(err, d.Remove("2"), d.Write("3", []byte("new"))); err != nil {
			t.Error(name, err)
		}
	})
	if err != nil || !slices.Equal(got, []string{"1", "new"}) {
		t.Errorf("%v, %v", got, err)
	}
}

// A file that was replaced by one of the same size has another stamp.
func TestReadChangedOfPassesOverWhatIsKnown(t *testing.T) {
	d := openAt(t, filepath.Join(t.TempDir(), "state"))
	stamps := map[string]Stamp{}
	read := func() (names []string) {
		t.Helper()
		err := d.ReadChangedOf("", ".json", func(name string, s Stamp) bool { return stamps[name] == s }, func(name string, s Stamp, _ []byte, err error) {
			if err != nil {
				t.Error(name, err)
			}
			stamps[name] = s
			names = append(names, name)
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for _, step := range []struct {
		change string
		want   []string
	}{{"a.json", []string{"a.json"}}, {"", nil}, {"b.json", []string{"b.json"}}, {"a.json", []string{"a.json"}}, {"", nil}} {
		if step.change != "" {
			if err := d.Write(step.change, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		if got := read(); !slices.Equal(got, step.want) {
			t.Errorf("after a change of %q it read %q, want %q", step.change, got, step.want)
		}
	}
}
