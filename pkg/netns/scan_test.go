package netns_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// budget is a context that ends after a certain number of calls of its Err. It is a deadline that
// does not depend on the machine's speed.
type budget struct {
	context.Context
	left int
}

func (b *budget) Err() error {
	if b.left--; b.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// process creates the directory of a process below /proc. The process has open files, and one of
// them is target.
func process(t *testing.T, proc, pid string, files int, target string) {
	t.Helper()
	dir := filepath.Join(proc, pid, "fd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		to := "/dev/null"
		if i == files-1 {
			to = target
		}
		if err := os.Symlink(to, filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
}

// A pod with a million open files must not hide the netns of another pod, which is held
// by a process with a lower or higher ID.
func TestProcessWithManyOpenFilesIsScannedLast(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	f, err := os.Open("/run/netns/" + n.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n.Unname()
	// The link in /proc of a file that was opened through a mount.
	holder := filepath.Join(t.TempDir(), "netns")
	if err := os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), holder); err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir()
	process(t, proc, "1", 4000, "/dev/null")
	process(t, proc, "2", 100, holder)
	process(t, proc, "3", 4000, "/dev/null")
	found, err := netns.ScanUntil(&budget{context.Background(), 3000}, proc, n.ID)
	if found == nil || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
	found.Close()

	// The netns may be among the files that have not been read.
	found, err = netns.ScanUntil(&budget{context.Background(), 3000}, proc, netns.ID{Inode: 1})
	if found != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("found %v, %v", found, err)
	}
	found.Close()
}
