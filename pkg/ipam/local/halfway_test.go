package local

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/ipam"
)

// The next ADD removes the files of an ADD on a full file system, even if that
// ADD gets no DEL: its pool was cleaned up, or is still marked as unfinished.
func TestNothingIsLeftOfAnAddThatFailedHalfway(t *testing.T) {
	failed := 0
	for inodes := 8; ; inodes++ {
		dir := mount(t, fmt.Sprintf("nr_inodes=%d", inodes))
		s := New(dir)
		c := claim(t, "10.0.0.0/24")
		if _, err := s.Allocate(testContext, owner("c", "p", "net1"), []ipam.Claim{c}); err == nil {
			break
		}
		failed++
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "nr_inodes=1000"); err != nil {
			t.Fatal(err)
		}
		other := owner("d", "q", "net1")
		if got := add(t, s, other, c); got != "10.0.0.1/24" {
			t.Errorf("with %d inodes the next pod gets %s", inodes, got)
		}
		del(t, s, other, c.Pool)
		checkEmpty(t, s)
	}
	if failed < 3 {
		t.Errorf("%d ADDs failed", failed)
	}
}
