package local

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

func TestKeyLinksToOneRecord(t *testing.T) {
	dir, err := statefile.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	x, a, b := index{dir}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	path := dir.Path() + "/key"
	set := func(addr netip.Addr) os.FileInfo {
		t.Helper()
		if err := x.set("key", addr); err != nil {
			t.Fatal(err)
		}
		if got, ok := x.get("key"); !ok || got != addr {
			t.Fatalf("the key links to %s, %v, want %s", got, ok, addr)
		}
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	set(a)
	old := unix.NsecToTimeval(1e18)
	if err := unix.Lutimes(path, []unix.Timeval{old, old}); err != nil {
		t.Fatal(err)
	}
	if made := set(a).ModTime(); made.UnixNano() != 1e18 {
		t.Errorf("a link that is right was made again at %s", made)
	}
	set(b)
	if err := x.drop("key", a); err != nil {
		t.Fatal(err)
	}
	if got, ok := x.get("key"); !ok || got != b {
		t.Errorf("the link to %s is gone with another's: %s, %v", b, got, ok)
	}
	if err := x.drop("key", b); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the link stays: %v", err)
	}
	write(t, path, "no link")
	set(a)
}

// The file system may have lost a record, and not the links to it.
func TestLinkWithoutRecordIsNoAddress(t *testing.T) {
	s, o := New(t.TempDir()), owner("c1", "p1", "net1")
	c := claim(t, "10.0.0.0/24")
	add(t, s, o, c)
	if err := os.Remove(file(s, "10.0.0.1.json")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Check(testContext, o, []ipam.Pool{c.Pool}); err == nil {
		t.Errorf("CHECK found %v", got)
	}
	got := add(t, s, o, c)
	if held, err := s.Check(testContext, o, []ipam.Pool{c.Pool}); err != nil || len(held) != 1 || held[0].String() != got {
		t.Errorf("CHECK found %v, %v, want %s", held, err, got)
	}
}

func TestDelRemovesLinksWithoutRecord(t *testing.T) {
	s, c, o := New(t.TempDir()), claim(t, "10.0.0.0/24"), owner("c1", "p1", "net1")
	add(t, s, o, c)
	if err := os.Remove(file(s, "10.0.0.1.json")); err != nil {
		t.Fatal(err)
	}
	del(t, s, o, c.Pool)
	for _, dir := range []string{byPodDir, byAttachmentDir} {
		if left, err := os.ReadDir(file(s, dir)); err != nil || len(left) > 0 {
			t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
}

// A new sandbox of the pod has a new container. Nothing is left of the old one.
func TestLinksOfTheFormerContainerGo(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	for _, container := range []string{"c1", "c2"} {
		o := owner(container, "p1", "net1")
		add(t, s, o, c)
		links, err := os.ReadDir(file(s, byAttachmentDir))
		if err != nil || len(links) != 1 || links[0].Name() != attachmentKey(o) {
			t.Errorf("links of attachments: %v, %v, want %s", links, err, attachmentKey(o))
		}
	}
}

func TestOneLinkIsEnoughForDel(t *testing.T) {
	for _, lost := range []string{"by-pod/ns%2Fp1@net1", "by-attachment/c1@net1"} {
		s, c, o := New(t.TempDir()), claim(t, "10.0.0.0/24"), owner("c1", "p1", "net1")
		add(t, s, o, c)
		if err := os.Remove(file(s, lost)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Check(testContext, o, []ipam.Pool{c.Pool}); err != nil {
			t.Errorf("CHECK without %s: %v", lost, err)
		}
		del(t, s, o, c.Pool)
		checkEmpty(t, s)
	}
}

func TestGCGoesOnAfterAFileThatIsNoRecord(t *testing.T) {
	s := New(t.TempDir())
	c, o := claim(t, "10.0.0.0/24"), owner("c1", "p1", "net1")
	s.now = func() time.Time { return time.Now().Add(-time.Hour) }
	add(t, s, o, c)
	s.now = time.Now
	for _, name := range []string{"0.json", "~.json"} { // before and after the record
		write(t, file(s, name), "{}")
	}
	if err := s.GC(testContext, "net", nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Check(testContext, o, []ipam.Pool{c.Pool}); err == nil {
		t.Errorf("%v was not freed", got)
	}
}
