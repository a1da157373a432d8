package notify

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

// Without inotify instances the receivers poll, and must still work. The test runs itself again in
// a user namespace that allows no instances.
func TestDirsWithoutInotifyInstancesReportNothing(t *testing.T) {
	const inside = "RAIL_CNI_TEST_NO_INOTIFY"
	if os.Getenv(inside) == "" {
		need.Root(t) // some machines allow only root to make a user namespace
		cmd := exec.Command("unshare", "--user", "--map-root-user", "sh", "-c", `echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"`,
			"sh", os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	var log bytes.Buffer
	d := NewDirs(slog.New(slog.NewTextHandler(&log, nil)))
	if !strings.Contains(log.String(), "max_inotify_instances") {
		t.Errorf("it said %q", log.String())
	}
	s := d.Subscribe(func() { t.Error("it reports a change") })
	dir := t.TempDir()
	s.Watch(dir)
	write(t, dir, "record")
	s.Close()
	d.Close()
}

func TestNilDirsReportNothing(t *testing.T) {
	var d *Dirs
	s := d.Subscribe(func() { t.Error("it reports a change") })
	s.Watch(t.TempDir())
	s.Close()
	d.Close()
}

func TestEachSubscriptionIsToldOfItsOwnDirectories(t *testing.T) {
	before := instances(t)
	d := newTestDirs(t)
	one, two, other := newReceiver(d), newReceiver(d), newReceiver(d)
	shared, alone := t.TempDir(), t.TempDir()
	one.Watch(shared)
	two.Watch(shared)
	other.Watch(alone)
	if n := instances(t) - before; n != 1 {
		t.Errorf("%d inotify instances for 3 subscriptions", n)
	}
	write(t, shared, "record")
	one.await(t)
	two.await(t)
	write(t, alone, "record")
	other.await(t)
	write(t, alone, "another") // what was before it has been reported
	other.await(t)
	one.drain()
	write(t, alone, "third")
	other.await(t)
	if len(one.told) > 0 {
		t.Error("a change of another directory is reported")
	}
}

func TestDirectoryThatIsMadeAgainIsWatchedAgain(t *testing.T) {
	d := newTestDirs(t)
	r, dir := newReceiver(d), filepath.Join(t.TempDir(), "attachments")
	for range 3 {
		r.Watch(dir) // it may not exist
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		r.Watch(dir)
		write(t, dir, "record")
		r.await(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		r.await(t)
		r.settle(t, d)
	}
}

func TestDirectoryThatAnotherOneReplacesIsWatched(t *testing.T) {
	d := newTestDirs(t)
	parent := t.TempDir()
	r, dir := newReceiver(d), filepath.Join(parent, "attachments")
	for _, path := range []string{dir, dir + ".new"} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.Watch(dir)
	for _, move := range [][2]string{{dir, dir + ".old"}, {dir + ".new", dir}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	r.Watch(dir)
	if n := d.watches(t); n != 1 {
		t.Errorf("%d watches", n)
	}
	write(t, dir, "record")
	r.await(t)
}

func TestWatchEndsWithItsLastSubscription(t *testing.T) {
	d := newTestDirs(t)
	one, two := newReceiver(d), newReceiver(d)
	dir := t.TempDir()
	one.Watch(dir)
	two.Watch(dir)
	one.Close()
	one.Watch(dir) // it is closed
	write(t, dir, "record")
	two.await(t)
	two.Close()
	if n := d.watches(t); n != 0 {
		t.Errorf("%d watches", n)
	}
	if len(one.told) > 0 {
		t.Error("a change is reported to a subscription that has ended")
	}
}

func newTestDirs(t *testing.T) *Dirs {
	d := NewDirs(slog.New(slog.DiscardHandler))
	t.Cleanup(d.Close)
	return d
}

// receiver counts reports.
type receiver struct {
	*Subscription
	told chan struct{}
}

func newReceiver(d *Dirs) *receiver {
	r := &receiver{told: make(chan struct{}, 1000)}
	r.Subscription = d.Subscribe(func() { r.told <- struct{}{} })
	return r
}

func (r *receiver) await(t *testing.T) {
	t.Helper()
	select {
	case <-r.told:
	case <-time.After(30 * time.Second):
		t.Fatal("no report")
	}
}

func (r *receiver) drain() {
	for len(r.told) > 0 {
		<-r.told
	}
}

// settle waits until everything that has happened has been reported, and then forgets the reports.
func (r *receiver) settle(t *testing.T, d *Dirs) {
	t.Helper()
	last := newReceiver(d)
	defer last.Close()
	dir := t.TempDir()
	last.Watch(dir)
	write(t, dir, "record")
	last.await(t)
	r.drain()
}

func write(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// instances returns the number of inotify instances of this process.
func instances(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && to == "anon_inode:inotify" {
			n++
		}
	}
	return n
}

// watches returns the number of watches that the kernel has (proc_pid_fdinfo(5)).
func (d *Dirs) watches(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprint("/proc/self/fdinfo/", d.fd))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "inotify wd:")
}
