package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
)

// No file of another type may block the reader, lead out of the directory, or
// have its target changed.
func TestWhatIsNoFileIsRefusedAtOnce(t *testing.T) {
	for name, plant := range map[string]func(path, canary string) error{
		"a FIFO":                    func(p, _ string) error { return syscall.Mkfifo(p, 0o600) },
		"a directory":               func(p, _ string) error { return os.Mkdir(p, 0o700) },
		"a device":                  func(p, _ string) error { return syscall.Mknod(p, syscall.S_IFCHR|0o600, 1<<8|5) }, // /dev/zero
		"a link out":                func(p, canary string) error { return os.Symlink(canary, p) },
		"a link out, relative":      func(p, canary string) error { return os.Symlink("../canary/file", p) },
		"a link to nothing outside": func(p, canary string) error { return os.Symlink(canary+"-new", p) },
	} {
		for verb, do := range map[string]func(d *Dir) error{
			"Read": func(d *Dir) error { _, err := d.Read("x"); return err },
			"ReadEach": func(d *Dir) error {
				failed := errors.New("as it should be") // as expected; a directory is skipped
				return errors.Join(d.ReadEach("x", func(_ string, _ []byte, err error) { failed = err }), failed)
			},
			"OpenFile": func(d *Dir) error { _, err := d.OpenFile("x", os.O_RDWR|os.O_CREATE); return err },
			"TryLock":  func(d *Dir) error { _, err := d.TryLock("x"); return err },
			"Lock":     func(d *Dir) error { _, err := d.Lock(t.Context(), "x"); return err },
			"Held":     func(d *Dir) error { _, err := d.Held("x"); return err },
			"Sub": func(d *Dir) error {
				s, err := d.Sub("x")
				if err == nil && name == "a directory" {
					return errors.Join(s.Close(), errors.New("as it should be"))
				}
				return err
			},
		} {
			t.Run(name+", "+verb, func(t *testing.T) {
				if name == "a device" {
					need.Root(t)
				}
				top := t.TempDir()
				canary := filepath.Join(top, "canary", "file")
				if err := errors.Join(os.Mkdir(filepath.Dir(canary), 0o700), os.WriteFile(canary, []byte("c"), 0o600)); err != nil {
					t.Fatal(err)
				}
				d, err := Open(filepath.Join(top, "state"))
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				if err := plant(filepath.Join(d.Path(), "x"), canary); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- do(d) }()
				select {
				case err := <-done:
					if err == nil {
						t.Error("it was taken for a file")
					}
				case <-time.After(10 * time.Second):
					t.Fatal("it blocks")
				}
				if data, err := os.ReadFile(canary); err != nil || string(data) != "c" {
					t.Errorf("what it leads to is %q, %v", data, err)
				}
				if entries, err := os.ReadDir(filepath.Dir(canary)); err != nil || len(entries) != 1 {
					t.Errorf("outside lies %v, %v", entries, err)
				}
			})
		}
		t.Run(name+", Write and Remove", func(t *testing.T) {
			if name == "a device" {
				need.Root(t)
			}
			top := t.TempDir()
			canary := filepath.Join(top, "file")
			if err := os.WriteFile(canary, []byte("c"), 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := Open(filepath.Join(top, "state"))
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			x := filepath.Join(d.Path(), "x")
			if err := plant(x, canary); err != nil {
				t.Fatal(err)
			}
			if err := d.Write("x", []byte("new")); err == nil {
				if info, err := os.Lstat(x); err != nil || info.Mode() != fileMode {
					t.Errorf("%v, %v", info, err)
				}
			} else if name != "a directory" {
				t.Error(err)
			}
			if err := d.Remove("x"); err != nil {
				t.Error(err)
			}
			if data, err := os.ReadFile(canary); err != nil || string(data) != "c" {
				t.Errorf("what it leads to is %q, %v", data, err)
			}
		})
	}
}

func TestSubdirectoryThatOthersCouldForgeIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"writable by all":     func(p string) error { return os.Chmod(p, 0o777) },
		"writable by a group": func(p string) error { return os.Chmod(p, 0o770) },
		"another user's":      func(p string) error { return os.Chown(p, 65534, 65534) },
		"a link":              func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p+"2", 0o700), os.Symlink("sub2", p)) },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's" {
				need.Root(t)
			}
			d, err := Open(filepath.Join(t.TempDir(), "state"))
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			sub, err := d.Sub("sub")
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Lstat(sub.Path()); err != nil || info.Mode() != fs.ModeDir|dirMode {
				t.Errorf("made as %v, %v", info, err)
			}
			if err := errors.Join(sub.Close(), spoil(sub.Path())); err != nil {
				t.Fatal(err)
			}
			if sub, err := d.Sub("sub"); err == nil {
				sub.Close()
				t.Error("it was opened")
			}
		})
	}
}

// A directory that is swapped for a link while it is opened leads nowhere else: what is
// opened is the directory that the path named, or nothing.
func TestDirectoryThatIsSwappedWhileItIsOpened(t *testing.T) {
	for name, open := range map[string]func(parent *Dir) (*Dir, error){
		"OpenExisting": func(p *Dir) (*Dir, error) { return OpenExisting(filepath.Join(p.Path(), "x")) },
		"Open":         func(p *Dir) (*Dir, error) { return Open(filepath.Join(p.Path(), "x")) },
		"Sub":          func(p *Dir) (*Dir, error) { return p.Sub("x") },
		"SubExisting":  func(p *Dir) (*Dir, error) { return p.SubExisting("x") },
	} {
		for kind, plant := range map[string]func(path string) error{
			"a link within": func(p string) error { return os.Symlink("canary", p) },
			"a link":        func(p string) error { return os.Symlink(filepath.Join(filepath.Dir(p), "canary"), p) },
			"a FIFO":        func(p string) error { return syscall.Mkfifo(p, 0o600) },
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				parent, err := Open(t.TempDir() + "/state")
				if err != nil {
					t.Fatal(err)
				}
				defer parent.Close()
				at := func(name string) string { return filepath.Join(parent.Path(), name) }
				if err := errors.Join(os.Mkdir(at("x"), 0o700), os.MkdirAll(at("canary/feathers"), 0o700), plant(at("y"))); err != nil {
					t.Fatal(err)
				}
				var swaps atomic.Int64
				done := make(chan struct{})
				var swapper sync.WaitGroup
				swapper.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
						}
						if err := unix.Renameat2(unix.AT_FDCWD, at("x"), unix.AT_FDCWD, at("y"), unix.RENAME_EXCHANGE); err != nil {
							t.Error(err)
							return
						}
						swaps.Add(1)
					}
				})
				defer swapper.Wait()
				defer close(done)
				opened, refused := 0, 0
				enough := func() bool { return swaps.Load() >= 100 && opened > 0 && refused > 0 }
				for end, tries := time.Now().Add(10*time.Second), 0; (tries < 3000 || !enough()) && time.Now().Before(end); tries++ {
					d, err := open(parent)
					if err != nil {
						refused++
						continue
					}
					opened++
					if d.Exists("feathers") {
						t.Fatalf("it opened the canary, after %d swaps", swaps.Load())
					}
					if err := d.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if !enough() {
					t.Errorf("that was no test: %d swaps, %d opened, %d refused", swaps.Load(), opened, refused)
				}
			})
		}
	}
}
