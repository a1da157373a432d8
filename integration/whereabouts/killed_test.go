package whereabouts

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

const burst = 50 // concurrent processes

var killRounds = need.Either(2, 4)

// TestKilledProcessesLeaveNothing kills concurrent processes on one node, ADDs
// and DELs, at random moments. A DEL of each follows, as from a runtime.
func TestKilledProcessesLeaveNothing(t *testing.T) {
	namespace := newNamespace(t)
	n := newNode(t, namespace)
	// Two pools that overlap, so that each has reservations of the other.
	confs := []string{n.config(t, "1.0.0", `{"range":"10.0.0.0/24"}`, ""), n.config(t, "1.0.0", `{"range":"10.0.0.0/16"}`, "")}
	held := &answers{holder: map[netip.Addr]string{}}
	watching := startAudit(t, n, held)
	rnd := rand.New(rand.NewPCG(4, 5))
	binary := ours(t)
	var killed, finished atomic.Int64
	// each runs a verb for all pods of a round concurrently, and kills two of
	// three.
	each := func(round int, verb string, longest time.Duration, done func(c call, out string)) {
		var wg sync.WaitGroup
		for i := range burst {
			id, args := identity(round*burst + i)
			c := call{binary: binary, verb: verb, id: id, ifname: "net1", args: args, stdin: confs[i%2]}
			var fuse time.Duration
			if longest > 0 && i%3 != 0 {
				fuse = time.Millisecond + time.Duration(rnd.Int64N(int64(longest)))
			}
			wg.Go(func() {
				if verb == "DEL" {
					held.leave(c.id)
				}
				out, ended, err := c.runFused(fuse)
				switch {
				case err != nil:
					t.Errorf("%s: %v", verb, err)
				case !ended:
					killed.Add(1)
				default:
					finished.Add(1)
					done(c, out)
				}
			})
		}
		wg.Wait()
	}
	for round := range killRounds {
		each(round, "ADD", 600*time.Millisecond, func(c call, out string) {
			if _, err := held.take(c.id, out); err != nil {
				t.Error(err)
			}
		})
		each(round, "DEL", 400*time.Millisecond, func(call, string) {})
		each(round, "DEL", 0, func(call, string) {})
	}
	t.Logf("%d processes were killed, %d were not", killed.Load(), finished.Load())
	watching.stop(t)
	held.report(t)
	entries, reserved := holders(t, namespace)
	t.Logf("before the reconciler: %d entries, %d reservations", len(entries), len(reserved))
	n.settle(t)
	wantEmpty(t, namespace)
	id, args := identity(0)
	later := call{binary: binary, verb: "DEL", id: id, ifname: "net1", args: args}
	var calls []call
	for _, later.stdin = range confs {
		calls = append(calls, later)
	}
	n.wantTidy(t, calls...)
}

// runFused kills the plugin after fuse, unless that is zero.
func (c call) runFused(fuse time.Duration) (out string, ended bool, err error) {
	if fuse == 0 {
		out, err = c.run()
		return out, true, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), fuse)
	defer cancel()
	cmd := c.command(ctx)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	err = cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil {
		return "", false, nil
	}
	return stdout.String(), true, err
}

// wantTidy fails the test unless another call soon leaves a state directory
// without anything of these attachments.
func (n *node) wantTidy(t *testing.T, calls ...call) {
	t.Helper()
	each := func(do func(path, name string) error) {
		err := filepath.WalkDir(filepath.Join(n.dir, "state"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			return do(path, d.Name())
		})
		if err != nil {
			t.Error(err)
		}
	}
	long := time.Now().Add(-time.Hour)
	each(func(path, _ string) error { return os.Chtimes(path, long, long) })
	for _, c := range calls {
		if _, err := c.run(); err != nil {
			t.Error(err)
		}
	}
	each(func(path, name string) error {
		// A note of a pool whose patches were slow stays, one for each pool.
		if !strings.HasSuffix(name, "lock") && name != "latency" {
			t.Errorf("the node keeps %s", path)
		}
		return nil
	})
}
