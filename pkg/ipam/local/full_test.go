package local

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// mount puts a tmpfs with the given options on a new directory.
func mount(t *testing.T, options string) string {
	t.Helper()
	need.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,"+options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFileSystemFull fills the file system at every step of an ADD: with one
// more inode, or one more page, each time.
func TestFileSystemFull(t *testing.T) {
	for name, resource := range map[string]struct {
		option      string
		unit, steps int // of the limit; how many ADDs must fail at least
	}{"inodes": {"nr_inodes=%d", 1, 10}, "pages": {"size=%dk", 4, 2}} {
		t.Run(name, func(t *testing.T) {
			failed, worked := 0, 0
			for n := 1; worked < 5 && n < 200; n++ {
				s := New(mount(t, fmt.Sprintf(resource.option, n*resource.unit)))
				c := claim(t, "10.0.0.0/24")
				o := owner("c", "p", "net1")
				got, err := s.Allocate(testContext, o, []ipam.Claim{c})
				if err == nil {
					worked++
					if got[0].String() != "10.0.0.1/24" {
						t.Errorf("%d: got %v", n, got)
					}
				} else {
					failed++
					if code := cnierr.Code(err); code != cnierr.IO || !errors.Is(err, unix.ENOSPC) {
						t.Errorf("%d: code %d, %v", n, code, err)
					}
				}
				del(t, s, o, c.Pool)
				checkEmpty(t, s)
			}
			if failed < resource.steps || worked < 5 {
				t.Errorf("%d ADDs failed and %d worked", failed, worked)
			}
		})
	}
}

func TestDelOnAFullFileSystem(t *testing.T) {
	dir := mount(t, "size=256k")
	s := New(dir)
	c := claim(t, "10.0.0.0/24")
	n := 0
	for ; n < 250; n++ {
		o := owner(fmt.Sprint(n), fmt.Sprint(n), "net1")
		if _, err := s.Allocate(testContext, o, []ipam.Claim{c}); err != nil {
			break
		}
	}
	if n == 250 {
		t.Fatal("the file system never was full")
	}
	for i := range n + 1 {
		del(t, s, owner(fmt.Sprint(i), fmt.Sprint(i), "net1"), c.Pool)
	}
	checkEmpty(t, s)
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := mount(t, "size=1m")
	s := New(dir)
	c := claim(t, "10.0.0.0/24")
	held, other := owner("c", "p", "net1"), owner("d", "d", "net1")
	add(t, s, held, c)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Allocate(testContext, other, []ipam.Claim{c}); failure.KindOf(err) != failure.IO {
		t.Errorf("ADD: %v", err)
	}
	if err := s.Status(testContext, []ipam.Claim{c}); failure.KindOf(err) != failure.NotAvailable {
		t.Errorf("STATUS: %v", err)
	}
	if err := s.Release(testContext, held, []ipam.Pool{c.Pool}); failure.KindOf(err) != failure.IO {
		t.Errorf("DEL that cannot free: %v", err)
	}
	if _, err := s.Check(testContext, held, []ipam.Pool{c.Pool}); err != nil {
		t.Errorf("CHECK needs no writing: %v", err)
	}
	del(t, s, other, c.Pool) // nothing to free
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	del(t, s, held, c.Pool)
	checkEmpty(t, s)
}
