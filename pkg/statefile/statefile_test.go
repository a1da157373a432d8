package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
)

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	mkdir := func(name string, mode fs.FileMode, uid int) func() error {
		return func() error {
			return errors.Join(os.Mkdir(path(name), 0o700), os.Chmod(path(name), mode), os.Chown(path(name), uid, -1))
		}
	}
	self := os.Geteuid()
	for _, c := range []struct {
		name  string
		given func() error
		path  string
		code  uint
		text  string
	}{
		{"a relative path", nil, "run/rail-cni", cnierr.InvalidConfig, "not an absolute path"},
		{"a file", func() error { return os.WriteFile(path("file"), nil, 0o600) }, path("file"), cnierr.IO, "state directory"},
		{"below a file", nil, path("file/below"), cnierr.IO, "state directory"},
		{"a symbolic link", func() error { return os.Symlink(dir, path("link")) }, path("link"), cnierr.IO, "not a directory"},
		{"a directory of a group", mkdir("group", 0o770, self), path("group"), cnierr.IO, "other users can write to the state directory"},
		{"a directory of all", mkdir("all", 0o707|fs.ModeSticky, self), path("all"), cnierr.IO, "chmod 0700"},
		{"a directory of another user", mkdir("user", 0o700, 65534), path("user"), cnierr.IO, "belongs to user 65534"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "a directory of another user" {
				need.Root(t)
			}
			if c.given != nil {
				if err := c.given(); err != nil {
					t.Fatal(err)
				}
			}
			d, err := Open(c.path)
			if d != nil || cnierr.Code(err) != c.code || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("%v, error %v (code %d), want code %d, %q and the path", d, err, cnierr.Code(err), c.code, c.text)
			}
		})
	}
}

// A directory belongs to root alone only if no other user can replace it now, and no other user
// could replace it when it was made. The same holds for each directory above it.
func TestOpenRefusesADirectoryBelowOneThatOthersMayWrite(t *testing.T) {
	for name, spoil := range map[string]func(parent string) error{
		"writable by all, as a volume of a pod": func(p string) error { return os.Chmod(p, 0o777) },
		"writable by a group":                   func(p string) error { return os.Chmod(p, 0o775) },
		"another user's":                        func(p string) error { return os.Chown(p, 65534, 65534) },
	} {
		for what, path := range map[string]string{"a forged one": "root/state", "its parent": "root", "a new one": "root/new/state"} {
			t.Run(name+", "+what, func(t *testing.T) {
				if name == "another user's" {
					need.Root(t)
				}
				parent := filepath.Join(t.TempDir(), "volume")
				if err := errors.Join(os.MkdirAll(filepath.Join(parent, "root", "state"), 0o700), spoil(parent)); err != nil {
					t.Fatal(err)
				}
				state := filepath.Join(parent, path)
				for how, open := range map[string]func(string) (*Dir, error){"Open": Open, "OpenExisting": OpenExisting} {
					if _, err := os.Lstat(state); err != nil && how == "OpenExisting" {
						continue
					}
					d, err := open(state)
					if d != nil || failure.KindOf(err) != failure.IO || !strings.Contains(err.Error(), parent+" ") {
						t.Errorf("%s: %v, %v", how, d, err)
					}
				}
				if _, err := os.Lstat(filepath.Join(parent, "root", "new")); err == nil {
					t.Error("a directory was made there")
				}
			})
		}
	}
	t.Run("a sticky parent", func(t *testing.T) { // like /tmp
		parent := filepath.Join(t.TempDir(), "tmp")
		if err := errors.Join(os.Mkdir(parent, 0o700), os.Chmod(parent, 0o777|fs.ModeSticky)); err != nil {
			t.Fatal(err)
		}
		d, err := Open(filepath.Join(parent, "state"))
		if err != nil {
			t.Fatal(err)
		}
		_ = d.Close()
	})
}

func TestOpenMakesADirectoryOnlyForItsOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	old := unix.Umask(0)
	defer unix.Umask(old)
	if _, err := OpenExisting(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenExisting of nothing: %v", err)
	}
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.SubExisting("sub"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("SubExisting of nothing: %v", err)
	}
	sub, err := d.Sub("sub")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := sub.Write("file", []byte("x")); err != nil {
		t.Fatal(err)
	}
	l, err := sub.TryLock("lock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Unlock() }()
	for name, want := range map[string]fs.FileMode{"": 0o700, "sub": 0o700, "sub/file": 0o600, "sub/lock": 0o600} {
		info, err := os.Stat(filepath.Join(path, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, want %v (%v)", name, info.Mode(), want, err)
		}
	}
	again, err := OpenExisting(path)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestNamesThatLeadElsewhere(t *testing.T) {
	d := openTemp(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Write("inside", []byte("another's")); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"out": outside, "in": "inside", "dangling": "../nothing"} {
		if err := os.Symlink(target, filepath.Join(d.Path(), link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"../outside", outside, "out", "in", "dangling", "dangling/x"} {
		t.Run("Read "+name, func(t *testing.T) {
			if data, err := d.Read(name); err == nil {
				t.Errorf("read %q", data)
			}
		})
		t.Run("TryLock "+name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() { _, err := d.TryLock(name); done <- err }()
			select {
			case err := <-done:
				if err == nil || errors.Is(err, ErrBusy) {
					t.Errorf("error %v", err)
				}
			case <-time.After(5 * time.Second):
				t.Error("it does not end")
			}
		})
	}
	if _, err := d.Read("in"); !errors.Is(err, ErrForeign) {
		t.Errorf("a link inside: %v", err)
	}
	// A write replaces the link, and never follows it.
	for _, name := range []string{"out", "in"} {
		if err := d.Write(name, []byte("new")); err != nil {
			t.Error(err)
		}
		if data, err := d.Read(name); err != nil || string(data) != "new" {
			t.Errorf("%q, %v", data, err)
		}
	}
	for _, path := range []string{outside, filepath.Join(d.Path(), "inside")} {
		if data, err := os.ReadFile(path); err != nil || bytes.Equal(data, []byte("new")) {
			t.Errorf("%s was written through a link: %q, %v", path, data, err)
		}
	}
	if err := d.Write("../escaped", nil); err == nil {
		t.Error("a write climbed")
	}
}

func TestListSeesFilesOnly(t *testing.T) {
	d := openTemp(t)
	for _, name := range []string{"b.json", "a.json", "c.txt"} {
		if err := d.Write(name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	killed := filepath.Join(d.Path(), tmpPrefix+"1.json") // a killed writer's leftover
	if err := os.WriteFile(killed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sub, err := d.Sub("sub.json")
	if err != nil {
		t.Fatal(err)
	}
	sub.Close()
	if got, err := d.List(".json"); err != nil || !slices.Equal(got, []string{"a.json", "b.json"}) {
		t.Errorf("List: %q, %v", got, err)
	}
	aside, err := d.SetAside("a.json")
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(aside); err != nil || string(data) != "a.json" || d.Exists("a.json") {
		t.Errorf("aside as %s: %q, %v", aside, data, err)
	}
	if got, err := d.List(".json"); err != nil || !slices.Equal(got, []string{"b.json"}) {
		t.Errorf("List after SetAside: %q, %v", got, err)
	}
}

func TestListRemovesOldTemporaryFilesOnly(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	long := time.Now().Add(-time.Hour)
	for name, when := range map[string]time.Time{".tmp-old": long, ".tmp-new": time.Now(), "old": long} {
		path := filepath.Join(d.Path(), name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.List(""); err != nil {
		t.Error(err)
	}
	for name, there := range map[string]bool{".tmp-old": false, ".tmp-new": true, "old": true} {
		if d.Exists(name) != there {
			t.Errorf("%s: there is %v, want %v", name, d.Exists(name), there)
		}
	}
}

func TestFilesAndLinks(t *testing.T) {
	d := openTemp(t)
	if _, err := d.Read("file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if err := d.Write("file", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := d.Symlink("x", "mark"); err != nil {
		t.Fatal(err)
	}
	if err := d.Symlink("y", "mark"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second link: %v", err)
	}
	if got, err := d.Readlink("mark"); err != nil || got != "x" || !d.Exists("mark") {
		t.Errorf("Readlink: %q, %v", got, err)
	}
	if err := d.Link("file", "other"); err != nil {
		t.Error(err)
	}
	if err := d.Link("file", "other"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second name: %v", err)
	}
	if err := os.Truncate(filepath.Join(d.Path(), "file"), maxFile+1); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read("file"); !errors.Is(err, ErrForeign) {
		t.Errorf("a huge file: %v", err)
	}
	for range 2 { // a missing one is not an error
		if err := d.Remove("file"); err != nil {
			t.Error(err)
		}
	}
}

// tmpfs returns a directory on a file system of its own.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	need.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func openAt(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestWriteSetsADirectoryAside has directories where files belong, as a person or a broken tool
// may leave them.
func TestWriteSetsADirectoryAside(t *testing.T) {
	for name, fill := range map[string]func(dir string) error{
		"empty": func(string) error { return nil },
		"full":  func(dir string) error { return os.WriteFile(filepath.Join(dir, "kept"), []byte("x"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Open(filepath.Join(t.TempDir(), "state"))
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			path := filepath.Join(d.Path(), "boot")
			if err := errors.Join(os.Mkdir(path, 0o700), fill(path)); err != nil {
				t.Fatal(err)
			}
			for _, data := range []string{"first", "second"} {
				if err := d.Write("boot", []byte(data)); err != nil {
					t.Fatal(err)
				}
				if now, err := d.Read("boot"); err != nil || string(now) != data {
					t.Errorf("%q, %v", now, err)
				}
			}
			aside, err := filepath.Glob(path + ".corrupt-*")
			if err != nil || len(aside) != 1 {
				t.Fatalf("set aside: %q, %v", aside, err)
			}
			if _, err := os.Stat(filepath.Join(aside[0], "kept")); (err == nil) != (name == "full") {
				t.Errorf("its file: %v", err)
			}
		})
	}
}

func TestAFullFileSystemLeavesTheOldContent(t *testing.T) {
	d := openAt(t, tmpfs(t, "64k"))
	if d.Durable() {
		t.Error("a tmpfs counts as durable")
	}
	if err := d.Write("file", []byte("old")); err != nil {
		t.Fatal(err)
	}
	err := d.Write("file", make([]byte, 100<<10))
	if !errors.Is(err, unix.ENOSPC) || failure.KindOf(err) != failure.IO || !strings.Contains(err.Error(), "free space") {
		t.Errorf("error %v", err)
	}
	if data, err := d.Read("file"); err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
	if entries, err := os.ReadDir(d.Path()); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := d.Write("file", []byte("new")); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestAReadOnlyFileSystem(t *testing.T) {
	d := openAt(t, tmpfs(t, "64k"))
	if err := d.Write("file", []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", d.Path(), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, lockErr := d.TryLock("lock")
	_, asideErr := d.SetAside("file")
	for what, err := range map[string]error{"write": d.Write("file", []byte("new")), "remove": d.Remove("file"), "lock": lockErr, "set aside": asideErr} {
		if !errors.Is(err, unix.EROFS) || failure.KindOf(err) != failure.IO || !strings.Contains(err.Error(), "writable") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if data, err := d.Read("file"); err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
}

func content(round int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%08d", round), 2000) }

// whole reports whether data is the complete content of a round.
func whole(data []byte) bool {
	return len(data) == len(content(0)) && bytes.Equal(data, bytes.Repeat(data[:8], 2000))
}

func TestManyWritersOfOneFile(t *testing.T) {
	d := openTemp(t)
	d.Volatile()
	if err := d.Write("file", content(0)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 100 {
				if err := d.Write("file", content(i)); err != nil {
					t.Error(err)
				}
				if data, err := d.Read("file"); err != nil || !whole(data) {
					t.Errorf("read %.20q…, %v", data, err)
				}
			}
		})
	}
	wg.Wait()
	if entries, err := os.ReadDir(d.Path()); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestName(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{"c1", "net1"}, "c1@net1"},
		{[]string{"c1@net1"}, "c1%40net1"},
		{[]string{"a%40b"}, "a%2540b"},
		{[]string{"."}, "%2E"},
		{[]string{".."}, "%2E."},
		{[]string{".tmp-1"}, "%2Etmp-1"},
		{[]string{"a/b", "ü"}, "a%2Fb@%C3%BC"},
		{[]string{""}, "%"},
		{[]string{"", ""}, "@"},
		{[]string{"net:[4026531840] eth0"}, "net%3A%5B4026531840%5D%20eth0"},
	} {
		if got := Name(c.parts...); got != c.want {
			t.Errorf("%q: %q, want %q", c.parts, got, c.want)
		}
	}
	if a, b := Name(long, "x"), Name(long, "y"); a == b || len(a) != 200 || len(b) != 200 {
		t.Errorf("long names: %q, %q", a, b)
	}
}

// Files that exist have these names, so the length from which a name is hashed may not change.
func TestNameIsHashedFrom201BytesOn(t *testing.T) {
	if fits := strings.Repeat("x", 200); Name(fits) != fits {
		t.Errorf("%d bytes became %s", len(fits), Name(fits))
	}
	if long := strings.Repeat("x", 201); len(Name(long)) != 200 || !strings.Contains(Name(long), "~") {
		t.Errorf("%d bytes became %s", len(long), Name(long))
	}
}

func FuzzName(f *testing.F) {
	f.Add("c1", "net1", "c1@net1", "")
	f.Add("..", "", ".", ".tmp-")
	f.Add("a", "b@c", "a@b", "c")
	f.Add(strings.Repeat("x", 200), "a", strings.Repeat("x", 200), "b")
	f.Add("a%40", "", "a@", "")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		lists := [][]string{{a, b}, {c, d}, {a}, {c}, {a, b, c}}
		for i, x := range lists {
			name := Name(x...)
			if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 200 || strings.HasPrefix(name, tmpPrefix) {
				t.Errorf("%q gives %q", x, name)
			}
			for _, y := range lists[:i] {
				if (Name(y...) == name) != slices.Equal(x, y) {
					t.Errorf("%q and %q give %q and %q", x, y, name, Name(y...))
				}
			}
		}
	})
}
