package local

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

// whileWaiting calls do, which needs the lock, and calls meanwhile when do waits for it.
func whileWaiting(t *testing.T, dir *statefile.Dir, lock string, do, meanwhile func()) {
	t.Helper()
	l, err := dir.Lock(testContext, lock)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	defer func() {
		release(l)
		<-done
	}()
	for bound := time.Now().Add(time.Minute); openFiles(t, filepath.Join(dir.Path(), lock)) < 2; time.Sleep(time.Millisecond) {
		select {
		case <-done:
			t.Fatalf("it did not wait for %s", lock)
		default:
		}
		if time.Now().After(bound) {
			t.Fatalf("it does not come to %s", lock)
		}
	}
	meanwhile()
}

// openFiles returns how often this process has the file open.
func openFiles(t *testing.T, path string) int {
	t.Helper()
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range open {
		if is, err := os.Stat("/proc/self/fd/" + fd.Name()); err == nil && os.SameFile(is, file) {
			n++
		}
	}
	return n
}

func openTestPool(t *testing.T, s *Store, id ipam.Pool) *pool {
	t.Helper()
	p, err := s.openPool(testContext, id, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

func TestAddressThatAnotherPoolReservesMeanwhileIsNotHandedOut(t *testing.T) {
	s := New(t.TempDir())
	wide, narrow := claim(t, "10.0.0.0/16"), claim(t, "10.0.0.0/24")
	first, second := owner("x", "x", "net1"), owner("c", "p", "net1")
	before := wide
	before.Exclusive = false // its reservation follows
	add(t, s, first, before)
	r := openTestPool(t, s, wide.Pool).reserved
	whileWaiting(t, r.space, reservedLock, func() {
		got, err := s.Allocate(testContext, second, []ipam.Claim{narrow})
		if err != nil || got[0].String() != "10.0.0.2/24" {
			t.Errorf("the second pool handed out %v, %v", got, err)
		}
	}, func() {
		addr := netip.MustParseAddr("10.0.0.1")
		if err := r.dir.Symlink(r.target(addr), addr.String()); err != nil {
			t.Error(err)
		}
	})
	del(t, s, second, narrow.Pool)
	del(t, s, first, wide.Pool)
	checkEmpty(t, s)
}

func TestHostPartThatAnotherRailChoosesMeanwhileCounts(t *testing.T) {
	s := New(t.TempDir())
	space := openTestPool(t, s, poolOf("10.0.0.0/26")).reserved.space
	whileWaiting(t, space, hostLock, func() {
		got, err := s.Allocate(testContext, railOwner("c1", "p1", 1), []ipam.Claim{want(onRail(t, 1), "10.1.0.41")})
		if failure.KindOf(err) != failure.IPAM || !strings.Contains(err.Error(), "its addresses on the other rails have the host part of 10.1.0.40") {
			t.Errorf("%v, %v", got, err)
		}
	}, func() {
		add(t, s, railOwner("c1", "p1", 0), want(claim(t, "10.0.0.0/26"), "10.0.0.40"))
	})
}

func TestFirstUseAfterABootEmptiesOnce(t *testing.T) {
	dir := testnet.OnDisk(t)
	s, c := New(dir), claim(t, "10.0.0.0/24")
	add(t, s, owner("a", "a", "net1"), c)
	const boot = "another boot\n"
	s.bootID = filepath.Join(dir, "boot_id")
	write(t, s.bootID, boot)
	root, err := statefile.Open(s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	whileWaiting(t, root, bootLock, func() {
		if got, err := s.Allocate(testContext, owner("b", "b", "net1"), []ipam.Claim{c}); err != nil || got[0].String() != "10.0.0.2/24" {
			t.Errorf("after another process was the first: %v, %v", got, err)
		}
	}, func() {
		if err := root.Write(bootFile, []byte(boot)); err != nil {
			t.Error(err)
		}
	})
}

func TestGCPassesOverARecordThatIsFreedMeanwhile(t *testing.T) {
	s, c, o := New(t.TempDir()), claim(t, "10.0.0.0/24"), owner("c", "p", "net1")
	s.now = func() time.Time { return time.Now().Add(-time.Hour) }
	got := netip.MustParsePrefix(add(t, s, o, c)).Addr()
	s.now = time.Now
	p := openTestPool(t, s, c.Pool)
	whileWaiting(t, p.dir, lockFile, func() {
		if err := s.GC(testContext, "net", nil, nil); err != nil {
			t.Error(err)
		}
	}, func() {
		if err := p.forget(o, got); err != nil {
			t.Error(err)
		}
	})
}

// A killed process leaves its files, and the mark that it was busy.
func TestNextHolderOfTheLockTidiesUp(t *testing.T) {
	s, c := New(t.TempDir()), claim(t, "10.0.0.0/24")
	add(t, s, owner("x", "x", "net1"), c)
	del(t, s, owner("x", "x", "net1"), c.Pool)
	for range 2 {
		p := openTestPool(t, s, c.Pool)
		if err := p.acquire(testContext); err != nil {
			t.Fatal(err)
		}
		ghost := "../10.0.0.9.json"
		for name, target := range map[string]string{"by-pod/ghost": ghost, "by-attachment/ghost": ghost, "../reserved/10.0.0.9": "../10.0.0.0_24/10.0.0.9.json"} {
			if err := os.Symlink(target, file(s, name)); err != nil {
				t.Fatal(err)
			}
		}
		write(t, file(s, tmpPrefix+"1"), "")
		for _, host := range []int{9, 99} {
			p.pages.take(netip.MustParseAddr(fmt.Sprint("10.0.0.", host)))
		}
		if err := os.Remove(file(s, poolFile)); err != nil {
			t.Fatal(err)
		}
		p.close() // without end

		if got := add(t, s, owner("y", "y", "net1"), c); got != "10.0.0.1/24" {
			t.Errorf("the next one got %s", got)
		}
		if _, err := os.Stat(file(s, poolFile)); err != nil {
			t.Error(err)
		}
		del(t, s, owner("y", "y", "net1"), c.Pool)
		checkEmpty(t, s)
	}
}

func TestCleaningUpHasTimeAfterTheEndOfACall(t *testing.T) {
	ended, cancel := afterwards(testContext)
	cancel()
	ctx, cancel := afterwards(ended)
	defer cancel()
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}
}
