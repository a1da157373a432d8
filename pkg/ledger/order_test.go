package ledger

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
)

// A record without a mark would let its NIC be lent twice. So Remove must
// remove the record first, in case it fails or is killed halfway.
func TestFailedRemoveLeavesTheNICHeld(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	r := lending("c1", "ens1")
	put(t, l, r)
	readOnly(t, filepath.Join(dir, "attachments"))
	stuck := open(t, dir) // through the mount
	if err := stuck.Remove(r); err == nil {
		t.Fatal("a record was removed from a read-only directory")
	}
	if holder, err := l.HolderOf("ens1"); err != nil || holder == nil || holder.Key != r.Key {
		t.Errorf("the record is still there, and the NIC is held by %v, %v", holder, err)
	}
	if err := l.Remove(r); err != nil {
		t.Error(err)
	}
	if holder, err := l.HolderOf("ens1"); err != nil || holder != nil {
		t.Errorf("the record is gone, and the NIC is held by %v, %v", holder, err)
	}
}

// readOnly makes the directory read-only for later opens.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	need.Root(t)
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}
