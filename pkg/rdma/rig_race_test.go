//go:build rig

package rdma

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/need"
)

// movers moves all eight devices to a pod and back, each with a separate Core, as separate plugins
// would do. It returns Move's errors about changed numbers.
func (r *rig) movers(rounds int, lock sync.Locker) (changed []*UverbsChanged) {
	r.t.Helper()
	_, pod := r.pod("pod")
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, d := range r.devs {
		host, inPod := r.apart(r.ns), r.apart(pod.ns)
		ctx := r.soon()
		all.Go(func() {
			move := func(from, to *Core) {
				lock.Lock()
				defer lock.Unlock()
				_, err := from.Move(ctx, d, to)
				var c *UverbsChanged
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.As(err, &c):
					changed = append(changed, c)
				case err != nil:
					r.t.Error(err)
				}
			}
			for range rounds {
				move(host, inPod)
				move(inPod, host)
			}
		})
	}
	all.Wait()
	return changed
}

type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

func TestRigMovesSideBySideExchangeNumbers(t *testing.T) {
	r := inRig(t, Exclusive)
	r.delay(5 * time.Millisecond)
	var changed []*UverbsChanged
	for range 5 {
		if changed = append(changed, r.movers(1, noLock{})...); len(changed) > 0 {
			break
		}
	}
	if len(changed) == 0 {
		t.Fatal("no number changed: then the lock protects from nothing, or Move does not see it")
	}
	for _, c := range changed {
		if c.Before == c.After || c.Before < 0 || c.After < 0 || c.Device == "" {
			t.Errorf("%+v", c)
		}
	}
	t.Logf("without a lock %d moves ended with another number, as: %v", len(changed), changed[0])

	// A device that returned with another device's number keeps that number. With the lock the
	// numbers no longer change.
	before, err := r.host.uverbsOwners()
	must(t, err)
	began := time.Now()
	if changed := r.movers(3, &sync.Mutex{}); len(changed) > 0 {
		t.Errorf("with the lock %d moves ended with another number: %v", len(changed), changed[0])
	}
	t.Logf("with the lock: 48 moves in %v", time.Since(began).Round(time.Millisecond))
	after, err := r.host.uverbsOwners()
	must(t, err)
	for n, d := range before {
		if after[n] != d {
			t.Errorf("uverbs%d was %s's and is %q's", n, d, after[n])
		}
	}
}

func TestRigListsAreWholeDuringMoves(t *testing.T) {
	r := inRig(t, Exclusive)
	_, pod := r.pod("pod")
	home, err := r.host.Devices()
	must(t, err)
	var stay []string
	for _, d := range home {
		if d.Name != r.devs[0].Name {
			stay = append(stay, d.Name)
		}
	}
	lister := r.apart(r.ns)
	moves := make(chan struct{})
	go func() {
		defer close(moves)
		for range need.Either(50, 200) {
			for _, way := range [][2]*Core{{r.host, pod}, {pod, r.host}} {
				if _, err := way[0].Move(r.soon(), r.devs[0], way[1]); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	began, lists, dumps, short := time.Now(), 0, 0, 0
	for done := false; !done; {
		select {
		case <-moves:
			done = true
		default:
		}
		all, err := lister.Devices()
		must(t, err)
		lists++
		names := namesOf(all)
		for _, n := range stay {
			if !slices.Contains(names, n) {
				t.Errorf("list %d lacks %s: %v", lists, n, names)
			}
		}
		// The kernel's own list, for comparison.
		for range 3 {
			var one []Device
			must(t, lister.inNetns(func() (err error) { one, err = lister.dump(); return err }))
			dumps++
			names := namesOf(one)
			if !slices.ContainsFunc(stay, func(n string) bool { return !slices.Contains(names, n) }) {
				continue
			}
			short++
		}
	}
	t.Logf("%d lists during 400 moves in %v, all whole; of %d bare dumps %d lacked a device that stayed", lists, time.Since(began).Round(time.Millisecond), dumps, short)
}

// nicModule is the path of the NICs' driver in the rig.
const nicModule = "/rig/modules/fakerdma.ko"

func reload(t *testing.T, parameters string) {
	t.Helper()
	f, err := os.Open(nicModule)
	must(t, err)
	defer f.Close()
	must(t, unix.DeleteModule("fakerdma", 0))
	must(t, unix.FinitModule(int(f.Fd()), parameters, 0))
}

// A driver that cannot take its devices away from their users, and the effect of a driver's reload
// on known identities.
func TestRigZDriversThatCannotMove(t *testing.T) {
	r := inRig(t, Exclusive)
	old := r.devs[0]
	reload(t, "movable=0")
	t.Cleanup(func() { reload(t, "") })
	now, err := r.host.awaitDevice(r.soon(), old.Name, func(d Device) bool { return d.ParentDev == old.ParentDev })
	must(t, err)
	if now.Is(old) {
		t.Errorf("%+v is taken for %+v, of before the reload", now, old)
	}
	_, pod := r.pod("pod")
	_, err = r.host.Move(r.soon(), now, pod)
	if !errors.Is(err, ErrImmovable) || !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("%v", err)
	}
	if here, err := r.host.ByIndex(now.Index); err != nil || here != now {
		t.Errorf("it is not where it was: %+v, %v", here, err)
	}
}
