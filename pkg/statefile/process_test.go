package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// childOf is the environment variable of a test that was executed again as
// another process. It has the directory to work in.
const childOf = "RAIL_STATEFILE_CHILD"

func child(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command(exe, "-test.run", "^"+name+"$", "-test.count", "1")
	cmd.Env = append(os.Environ(), childOf+"="+dir)
	return cmd
}

func asChild(t *testing.T) (d *Dir, is bool) {
	t.Helper()
	dir := os.Getenv(childOf)
	if dir == "" {
		return nil, false
	}
	d, err := OpenExisting(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d, true
}

// A process that only writes is killed repeatedly.
func TestAKilledWriterLeavesOneWholeContent(t *testing.T) {
	if d, is := asChild(t); is {
		for round := 1; ; round++ {
			if err := d.Write("file", content(round)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, kind := range []string{"durable", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			if kind == "tmpfs" {
				dir = tmpfs(t, "4m")
			}
			d := openAt(t, dir)
			wrote := 0
			for range 15 {
				if err := d.Write("file", content(0)); err != nil {
					t.Fatal(err)
				}
				cmd := child(t, dir)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				// Until it has written, and then for a random time.
				for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
					if data, err := d.Read("file"); err == nil && !bytes.Equal(data, content(0)) {
						wrote++
						break
					}
				}
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				if data, err := d.Read("file"); err != nil || !whole(data) {
					t.Fatalf("after a kill: %d bytes beginning with %.20q, %v", len(data), data, err)
				}
			}
			if wrote == 0 {
				t.Error("no child ever wrote: nothing was tested")
			}
		})
	}
}

// Several processes count in one file.
func TestLocksHoldAcrossProcesses(t *testing.T) {
	const processes, rounds = 6, 60
	if d, is := asChild(t); is {
		for i := range rounds {
			if err := countUp(t, d, i%3 == 0); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	d := openTemp(t)
	if err := d.Write("count", []byte("0")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range processes {
		cmd := child(t, d.Path())
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	if data, err := d.Read("count"); err != nil || string(data) != fmt.Sprint(processes*rounds) {
		t.Errorf("counted to %s, want %d (%v)", data, processes*rounds, err)
	}
}

func countUp(t *testing.T, d *Dir, keep bool) error {
	t.Helper()
	l, err := d.Lock(t.Context(), "lock")
	if err != nil {
		return err
	}
	data, err := d.Read("count")
	if err != nil {
		return err
	}
	n := 0
	if _, err := fmt.Sscan(string(data), &n); err != nil {
		return err
	}
	if err := d.Write("count", fmt.Append(nil, n+1)); err != nil {
		return err
	}
	if keep {
		return l.Unlock()
	}
	return l.UnlockAndRemove()
}

func TestALockEndsWithItsProcess(t *testing.T) {
	if d, is := asChild(t); is {
		if _, err := d.TryLock("lock"); err != nil {
			t.Fatal(err)
		}
		if err := d.Write("locked", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		return
	}
	d := openTemp(t)
	cmd := child(t, d.Path())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !d.Exists("locked"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the child does not lock")
		}
	}
	if _, err := d.TryLock("lock"); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), filepath.Join(d.Path(), "lock")) {
		t.Errorf("while it lives: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	l, err := d.TryLock("lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.UnlockAndRemove(); err != nil {
		t.Error(err)
	}
}

// Between fork and exec a child has every open file of its parent, and thereby
// the parent's locks.
func TestUnlockWhileChildrenStart(t *testing.T) {
	d := openTemp(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	for i := range 3000 {
		l, err := d.TryLock("lock")
		if err != nil {
			t.Errorf("round %d: %v", i, err)
			break
		}
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}
