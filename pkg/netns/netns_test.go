package netns_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// inode returns the inode number of the calling thread's namespace.
func inode(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestDoReturnsTheThread(t *testing.T) {
	n := testnet.NewNetns(t, "do")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := inode(t)
	for _, c := range []struct {
		name string
		f    func() error
	}{{"f succeeds", func() error { return nil }}, {"f fails", func() error { return os.ErrInvalid }}} {
		var there uint64
		err := n.Do(func() error { there = inode(t); return c.f() })
		if !errors.Is(err, c.f()) {
			t.Errorf("%s: error %v", c.name, err)
		}
		if there != n.ID.Inode || there == home {
			t.Errorf("%s: f ran in %d, want %d", c.name, there, n.ID.Inode)
		}
		if now := inode(t); now != home {
			t.Fatalf("%s: the thread is in %d, was in %d", c.name, now, home)
		}
	}
}

// TestNoFileStaysOpen counts the files of the process: the agent runs for months.
func TestNoFileStaysOpen(t *testing.T) {
	n := testnet.NewNetns(t, "do")
	other := netns.ID{Inode: n.ID.Inode, Cookie: n.ID.Cookie + 1<<40} // like the path of a netns that has ended
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	closed := func(ns *netns.Netns, err error) error {
		ns.Close()
		return err
	}
	as := func(is, want bool) error {
		if is != want {
			return fmt.Errorf("it is %v, want %v", is, want)
		}
		return nil
	}
	for name, call := range map[string]func() error{
		"Do":                    func() error { return n.Do(func() error { return nil }) },
		"OpenNetns":             func() error { return closed(netns.Open(n.Path)) },
		"Find":                  func() error { return closed(netns.Find(n.ID, n.Path)) },
		"Find by its ID":        func() error { return closed(netns.Find(n.ID, "")) },
		"Find that has ended":   func() error { return closed(netns.Find(other, n.Path)) },
		"Alive":                 func() error { return as(netns.Alive(n.ID, n.Path), true) },
		"Alive of another":      func() error { return as(netns.Alive(other, n.Path), false) },
		"Exists":                func() error { return as(netns.Exists(n.ID, n.Path), true) },
		"Exists that has ended": func() error { return as(netns.Exists(other, n.Path), false) },
	} {
		before := open()
		for range 200 {
			if err := call(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if now := open(); now > before+20 { // a parallel test may have opened some
			t.Errorf("%s: %d files are open, and %d before", name, now, before)
		}
	}
}

func TestDoInsideDo(t *testing.T) {
	a, b := testnet.NewNetns(t, "a"), testnet.NewNetns(t, "b")
	var seen []uint64
	err := a.Do(func() error {
		err := b.Do(func() error { seen = append(seen, inode(t)); return nil })
		seen = append(seen, inode(t))
		return err
	})
	if err != nil || len(seen) != 2 || seen[0] != b.ID.Inode || seen[1] != a.ID.Inode {
		t.Errorf("saw %v, want [%d %d] (%v)", seen, b.ID.Inode, a.ID.Inode, err)
	}
}

// A thread that entered a namespace must not run other goroutines there, even
// if f ends its goroutine.
func TestDoOfAGoroutineThatEndsInIt(t *testing.T) {
	n := testnet.NewNetns(t, "do")
	home := inode(t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { _ = n.Do(func() error { runtime.Goexit(); return nil }) })
	}
	wg.Wait()
	for range 200 {
		wg.Go(func() {
			if now := inode(t); now != home {
				t.Errorf("a goroutine runs in %d, home is %d", now, home)
			}
		})
	}
	wg.Wait()
}

func TestNetlinkNeedsNoThreadInTheNamespace(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	n.IP("link", "add", "only-here", "type", "ifb")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := link.ByName(n.Netns, "only-here"); err != nil {
				t.Error(err)
			}
			if links, err := link.Links(n.Netns); err != nil || len(links) != 2 {
				t.Errorf("%d links, %v", len(links), err)
			}
			if _, err := sysctl.Read(n.Netns, "only-here"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// The library's handle would continue in the caller's namespace.
func TestAClosedNetnsIsNotUsedInTheCallersNamespace(t *testing.T) {
	need.Root(t)
	opened, err := netns.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	opened.Close()
	opened.Close() // again does nothing
	for name, use := range map[string]func() error{
		"Links":      func() error { _, err := link.Links(opened); return err },
		"ByName":     func() error { _, err := link.ByName(opened, "lo"); return err },
		"Move":       func() error { return link.Move(opened, 4711, opened, "x", "") },
		"SetSysctls": func() error { return sysctl.Set(opened, "lo", map[string]string{"ipv4/conf/arp_ignore": "0"}) },
	} {
		err := func() (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = fmt.Errorf("panic: %v", r)
				}
			}()
			return use()
		}()
		if err == nil || errors.Is(err, unix.ENODEV) {
			t.Errorf("%s of a closed namespace did something: %v", name, err)
		}
	}
	(*netns.Netns)(nil).Close()
}

func TestOpenNetnsOfWhatIsNone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, path, text string }{
		{"missing", filepath.Join(dir, "missing"), "no such file"},
		{"no path", "", "no such file"},
		{"a regular file", file, "not a namespace file"},
		{"a directory", dir, "not a namespace file"},
		{"a namespace of another type", "/proc/self/ns/uts", "another type"},
		{"a process that is gone", "/proc/4194303/ns/net", "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := netns.Open(c.path)
			if n != nil || !errors.Is(err, netns.ErrNoNetns) || failure.KindOf(err) != failure.UnknownContainer {
				t.Fatalf("%v, error %v (code %d)", n, err, cnierr.Code(err))
			}
			if !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "netns "+c.path) {
				t.Errorf("text %q, want %q and the path in it", err, c.text)
			}
		})
	}
}

func TestNetnsIDEqual(t *testing.T) {
	for _, c := range []struct {
		a, b netns.ID
		want bool
	}{
		{netns.ID{Inode: 1, Cookie: 5}, netns.ID{Inode: 1, Cookie: 5}, true},
		{netns.ID{Inode: 1, Cookie: 5}, netns.ID{Inode: 1, Cookie: 6}, false},
		{netns.ID{Inode: 1, Cookie: 5}, netns.ID{Inode: 1}, true}, // written before a kernel update
		{netns.ID{Inode: 1}, netns.ID{Inode: 1}, true},
		{netns.ID{Inode: 1}, netns.ID{Inode: 2}, false},
		{netns.ID{}, netns.ID{Inode: 2}, false},
	} {
		if got := c.a.Equal(c.b); got != c.want || c.b.Equal(c.a) != got {
			t.Errorf("%+v = %+v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
	if !(netns.ID{}).IsZero() || (netns.ID{Cookie: 1}).IsZero() {
		t.Error("IsZero")
	}
}

func TestOneNamespaceByTwoPathsIsOne(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	other := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/var/run/netns/"+n.Name, other); err != nil {
		t.Fatal(err)
	}
	again, err := netns.Open(other)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if !again.ID.Equal(n.ID) || n.ID.Cookie == 0 {
		t.Errorf("%+v by one path, %+v by another; the kernel has cookies since 5.14", n.ID, again.ID)
	}
}

// fresh makes a namespace that exists as long as while runs.
func fresh(t *testing.T, while func(id netns.ID)) {
	t.Helper()
	need.Root(t)
	if err := <-freshThread(while); err != nil {
		t.Fatal(err)
	}
}

// freshThread runs while on a thread that is in a new namespace.
func freshThread(while func(id netns.ID)) (ended <-chan error) {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			var n *netns.Netns
			if n, err = netns.Current(); err == nil {
				n.Close()
				while(n.ID)
			}
		}
		done <- err
	}()
	return done
}

// A namespace can get the inode number of a dead one. A record of the dead namespace must not match
// the new one.
func TestReusedInodeIsToldApartByTheCookie(t *testing.T) {
	seen := map[uint64]netns.ID{}
	for range 300 {
		again := false
		fresh(t, func(id netns.ID) {
			old, ok := seen[id.Inode]
			if ok && old.Cookie == id.Cookie {
				return // the old one has not died yet
			}
			again = ok
			seen[id.Inode] = id
			if !again {
				return
			}
			if old.Equal(id) || id.Cookie == 0 {
				t.Errorf("%+v and %+v count as one", old, id)
			}
			if netns.Alive(old, "/proc/thread-self/ns/net") {
				t.Errorf("%+v counts as alive where %+v lives", old, id)
			}
			found, err := netns.Find(old, "/proc/thread-self/ns/net")
			if found != nil || err != nil {
				t.Errorf("looked for %+v, found %+v, %v", old, found, err)
				found.Close()
			}
			if scanned, err := netns.Scan(old); scanned != nil || err != nil {
				t.Errorf("scanned for %+v, found %+v, %v", old, scanned, err)
				scanned.Close()
			}
		})
		if again {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Log("no inode number came again in 300 namespaces: nothing was tested")
}

func TestFind(t *testing.T) {
	type held struct {
		id   netns.ID
		path string // last known
	}
	unmounted := func(t *testing.T, n *testnet.Netns) held {
		t.Helper()
		path := "/run/netns/" + n.Name
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) }) // the path is a plain file now, which nobody else removes
		n.Netns.Close()
		return held{n.ID, path}
	}
	for _, c := range []struct {
		name  string
		given func(t *testing.T) held
		found bool
		scan  bool // even if the kernel has no handles of namespaces
	}{
		{"by its path", func(t *testing.T) held {
			n := testnet.NewNetns(t, "n")
			return held{n.ID, "/run/netns/" + n.Name}
		}, true, true},
		{"by another name under /run/netns", func(t *testing.T) held {
			n := testnet.NewNetns(t, "n")
			return held{n.ID, "/run/netns/gone"}
		}, true, true},
		{"its path is another namespace now", func(t *testing.T) held {
			n, other := testnet.NewNetns(t, "n"), testnet.NewNetns(t, "other")
			return held{n.ID, "/run/netns/" + other.Name}
		}, true, true},
		{"by a mount somewhere else", func(t *testing.T) held {
			n := testnet.NewNetns(t, "n")
			place := filepath.Join(t.TempDir(), `a strange\place`)
			if err := os.WriteFile(place, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("/run/netns/"+n.Name, place, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(place, unix.MNT_DETACH) })
			return unmounted(t, n)
		}, true, true},
		{"by a process only", func(t *testing.T) held {
			n := testnet.NewNetns(t, "n")
			cmd := exec.Command("ip", "netns", "exec", n.Name, "sleep", "600")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			await(t, "the process to enter the netns", func() bool {
				var st unix.Stat_t
				return unix.Stat(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), &st) == nil && st.Ino == n.ID.Inode
			})
			return unmounted(t, n)
		}, true, true},
		{"by a thread only", func(t *testing.T) held {
			need.Root(t)
			id, end := make(chan netns.ID), make(chan struct{})
			ended := freshThread(func(fresh netns.ID) { id <- fresh; <-end })
			t.Cleanup(func() { close(end) })
			select {
			case err := <-ended:
				t.Fatal(err)
				return held{}
			case id := <-id:
				return held{id, ""}
			}
		}, true, true},
		{"by an open file only", func(t *testing.T) held {
			n := testnet.NewNetns(t, "n")
			f, err := os.Open("/run/netns/" + n.Name)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return unmounted(t, n)
		}, true, true},
		{"by a socket only", func(t *testing.T) held {
			n := testnet.NewNetns(t, "n")
			s := -1
			err := n.Do(func() (err error) {
				s, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(s) })
			return unmounted(t, n)
		}, true, false},
		{"gone", func(t *testing.T) held {
			n := testnet.NewNetns(t, "n")
			n.Delete()
			return held{n.ID, "/run/netns/" + n.Name}
		}, false, false},
		{"gone, and its path is a file", func(t *testing.T) held {
			n := testnet.NewNetns(t, "n")
			return unmounted(t, n)
		}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := c.given(t)
			if !c.found {
				// The sockets of the namespace keep it alive for a moment. Find would open further
				// sockets.
				await(t, "the end of the netns", func() bool { return !netns.Exists(h.id, h.path) })
			}
			began := time.Now()
			n, err := netns.Find(h.id, h.path)
			took := time.Since(began)
			if err != nil || (n != nil) != c.found {
				t.Fatalf("Find: %v, %v", n, err)
			}
			if n != nil {
				if !n.ID.Equal(h.id) {
					t.Errorf("found %+v, want %+v", n.ID, h.id)
				}
				if _, err := link.ByName(n, "lo"); err != nil {
					t.Error(err)
				}
				n.Close()
			}
			began = time.Now()
			n, _ = netns.Scan(h.id)
			t.Logf("Find took %v, a scan %v", took, time.Since(began))
			if (n != nil) != c.scan {
				t.Errorf("a scan found %v", n)
			}
			n.Close()
		})
	}
}

func TestAlive(t *testing.T) {
	n, other := testnet.NewNetns(t, "n"), testnet.NewNetns(t, "other")
	path := "/run/netns/" + n.Name
	for _, c := range []struct {
		name string
		id   netns.ID
		path string
		want bool
	}{
		{"it is there", n.ID, path, true},
		{"another is there", other.ID, path, false},
		{"nothing is there", n.ID, path + "x", false},
		{"no path", n.ID, "", false},
		{"the inode of it, the cookie of another", netns.ID{Inode: n.ID.Inode, Cookie: other.ID.Cookie}, path, false},
	} {
		if got := netns.Alive(c.id, c.path); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestExists(t *testing.T) {
	n, gone := testnet.NewNetns(t, "n"), testnet.NewNetns(t, "gone")
	path := "/run/netns/" + n.Name
	gone.Delete()
	for _, handles := range []bool{true, false} {
		netns.UseHandles(t, handles)
		for _, c := range []struct {
			name string
			id   netns.ID
			path string
			want bool
		}{
			{"it is there", n.ID, path, true},
			{"it is elsewhere", n.ID, path + "x", true},
			{"another is there", gone.ID, path, false},
			{"another with its inode number is there", netns.ID{Inode: n.ID.Inode, Cookie: gone.ID.Cookie}, path, false},
			{"it is there, of a kernel without cookies", netns.ID{Inode: n.ID.Inode}, path, true},
		} {
			if got := netns.Exists(c.id, c.path); got != c.want {
				t.Errorf("%s: %v, want %v; with handles: %v", c.name, got, c.want, handles)
			}
		}
	}
}

// The cost of a sweep for each record whose netns exists, and for each record whose netns is gone.
func BenchmarkFind(b *testing.B) {
	n := testnet.NewNetns(b, "n")
	path := "/run/netns/" + n.Name
	gone := netns.ID{Inode: n.ID.Inode, Cookie: 1 << 60}
	b.Run("alive", func(b *testing.B) {
		for b.Loop() {
			netns.Exists(n.ID, path)
		}
	})
	b.Run("alive, without handles", func(b *testing.B) {
		netns.UseHandles(b, false)
		for b.Loop() {
			netns.Exists(n.ID, path)
		}
	})
	b.Run("opened", func(b *testing.B) {
		for b.Loop() {
			found, _ := netns.Find(n.ID, path)
			found.Close()
		}
	})
	b.Run("gone", func(b *testing.B) {
		for b.Loop() {
			found, _ := netns.Find(gone, "")
			found.Close()
		}
	})
	b.Run("gone, scanned", func(b *testing.B) {
		for b.Loop() {
			found, _ := netns.Scan(gone)
			found.Close()
		}
	})
}

func TestThePluginsOwnNetnsIsTheThreads(t *testing.T) {
	n := testnet.NewNetns(t, "n")
	n.Inside(func() {
		own, err := netns.Current()
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		if !own.ID.Equal(n.ID) {
			t.Errorf("%+v, want %+v", own.ID, n.ID)
		}
	})
}

// TestNetnsIsNotGoneWhereNothingCanBeOpened makes the process run out of file
// descriptors, and looks for an existing namespace, at its path or elsewhere.
func TestNetnsIsNotGoneWhereNothingCanBeOpened(t *testing.T) {
	n := testnet.NewNetns(t, "pod")
	for name, path := range map[string]string{"its path": "/run/netns/" + n.Name, "no path": ""} {
		t.Run(name, func(t *testing.T) { isNotGone(t, n, path) })
	}
}

func isNotGone(t *testing.T, n *testnet.Netns, path string) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	exists := netns.Exists(n.ID, path)
	found, err := netns.Find(n.ID, path)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !exists || found != nil || !errors.Is(err, unix.EMFILE) {
		t.Errorf("exists: %v, found: %+v, %v", exists, found, err)
	}
	if found, err = netns.Find(n.ID, path); found == nil || err != nil {
		t.Errorf("then: %+v, %v", found, err)
	}
	found.Close()
}

// A few descriptors are enough to read the list of mounts, but not for the steps that follow.
func TestNetnsIsNotGoneWhereFewCanBeOpened(t *testing.T) {
	n := testnet.NewNetns(t, "pod")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for free := range 8 {
		for name, path := range map[string]string{"its path": "/run/netns/" + n.Name, "no path": ""} {
			var filled []int
			err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: limit.Max})
			for err == nil {
				var fd int
				if fd, err = unix.Dup(0); err == nil {
					filled = append(filled, fd)
				}
			}
			for _, fd := range filled[:min(free, len(filled))] {
				_ = unix.Close(fd)
			}
			exists := netns.Exists(n.ID, path)
			found, findErr := netns.Find(n.ID, path)
			for _, fd := range filled[min(free, len(filled)):] {
				_ = unix.Close(fd)
			}
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(err, unix.EMFILE) || len(filled) < free {
				t.Fatalf("%d descriptors filled: %v", len(filled), err)
			}
			if !exists || (found == nil) == (findErr == nil) {
				t.Errorf("%d free, %s: exists: %v, found: %+v, %v", free, name, exists, found, findErr)
			}
			found.Close()
		}
	}
}
