package whereabouts

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
)

// Half the pods of a burst are added by real whereabouts, half by ours, and
// each is deleted by the other.
var mixedPods = need.Either(100, 200)

const (
	// atOnce is the number of concurrent calls of each plugin.
	atOnce = 16
	// mixedNodes is the number of nodes: our calls on one node share their
	// writes.
	mixedNodes = 4
	// attempts is the number of tries of a runtime to start a pod.
	attempts = 10
)

// answers holds the answers of ADDs, by address. Its methods may be called
// concurrently.
type answers struct {
	mu     sync.Mutex
	holder map[netip.Addr]string
	wrong  []string
}

// take records that an ADD has answered with the addresses of result.
func (a *answers) take(id, result string) ([]netip.Addr, error) {
	texts, err := addresses(result)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var got []netip.Addr
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		if other, twice := a.holder[p.Addr()]; twice && other != id {
			a.wrong = append(a.wrong, fmt.Sprintf("%s is answered to %s while %s holds it", p.Addr(), id, other))
		}
		a.holder[p.Addr()] = id
		got = append(got, p.Addr())
	}
	return got, nil
}

// leave records that a DEL of id begins.
func (a *answers) leave(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for addr, holder := range a.holder {
		if holder == id {
			delete(a.holder, addr)
		}
	}
}

// report fails the test for each address that two pods held.
func (a *answers) report(t testing.TB) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.wrong {
		t.Error(w)
	}
}

// workers runs the jobs, n concurrently.
func workers(n int, jobs []int, do func(int)) {
	queue := make(chan int)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for job := range queue {
				do(job)
			}
		})
	}
	for _, job := range jobs {
		queue <- job
	}
	close(queue)
	wg.Wait()
}

// spent holds the durations of calls.
type spent struct {
	mu       sync.Mutex
	all      []time.Duration
	retries  int
	failures []string
}

func (s *spent) note(began time.Time, tries int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, time.Since(began))
	s.retries += tries
}

func (s *spent) fail(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, text)
}

func (s *spent) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%d calls, median %s, longest %s, %d retries", len(s.all),
		quantile(s.all, 0.5), quantile(s.all, 1), s.retries)
	seen := map[string]int{}
	for _, f := range s.failures {
		seen[f]++
	}
	for f, n := range seen {
		text += fmt.Sprintf("\n  %d times: %s", n, f)
	}
	return text
}

func TestMixedWritersShareAPool(t *testing.T) {
	namespace := newNamespace(t)
	var confs [mixedNodes]string
	for i := range confs {
		confs[i] = newNode(t, namespace).config(t, "1.0.0", `{"range":"10.0.0.0/16","log_level":"debug"}`, "")
	}
	binaries := [2]string{ours(t), theirs(t)}
	names := [2]string{"ours", "theirs"}
	of := func(pod int) int { return pod % 2 } // the plugin that adds the pod
	held := &answers{holder: map[netip.Addr]string{}}
	callOf := func(verb string, pod, by int) call {
		id, args := identity(pod)
		return call{binary: binaries[by], verb: verb, id: id, ifname: "net1", args: args, stdin: confs[pod/2%mixedNodes]}
	}
	phase := func(verb string, by func(int) int, each func(pod int, c call, s *spent)) {
		var both [2]spent
		began := time.Now()
		var wg sync.WaitGroup
		for side := range both {
			var jobs []int
			for pod := range mixedPods {
				if by(pod) == side {
					jobs = append(jobs, pod)
				}
			}
			wg.Go(func() {
				workers(atOnce, jobs, func(pod int) { each(pod, callOf(verb, pod, side), &both[side]) })
				t.Logf("%s by %s: over after %s", verb, names[side], time.Since(began).Round(time.Millisecond))
			})
		}
		wg.Wait()
		for side := range both {
			t.Logf("%s by %s: %s", verb, names[side], &both[side])
		}
	}

	phase("ADD", of, func(pod int, c call, s *spent) {
		began := time.Now()
		for try := range attempts {
			out, err := c.run()
			if err == nil {
				s.note(began, try)
				if _, err := held.take(c.id, out); err != nil {
					t.Error(err)
				}
				return
			}
			s.fail(lastLine(err))
			if c.binary == binaries[0] {
				t.Errorf("our ADD failed: %v", err)
			}
		}
		t.Errorf("ADD of pod %d failed %d times", pod, attempts)
	})
	held.report(t)
	entries, reserved := holders(t, namespace)
	if len(held.holder) != mixedPods || len(entries) != mixedPods || len(reserved) != mixedPods {
		t.Errorf("%d addresses answered, %d entries, %d reservations: want %d of each", len(held.holder), len(entries), len(reserved), mixedPods)
	}

	// Real whereabouts answers success to every DEL, even to a failed one, so
	// no runtime would repeat it. The test counts and shows the addresses that
	// it leaves, and frees them by a second DEL, as a reconciler would.
	other := func(pod int) int { return 1 - of(pod) }
	var said sync.Map // stderr, by container id
	phase("DEL", other, func(_ int, c call, s *spent) {
		began := time.Now()
		_, log, err := c.runLogged()
		if err != nil {
			t.Errorf("DEL by %s: %v", c.binary, err)
		}
		said.Store(c.id, log)
		s.note(began, 0)
	})
	var kept [2]int // by side
	entries, reserved = holders(t, namespace)
	left := fmt.Sprint(entries, reserved)
	for pod := range mixedPods {
		side := other(pod)
		c := callOf("DEL", pod, side)
		if !strings.Contains(left, fmt.Sprintf("podref:apps/pod-%d]", pod)) {
			continue
		}
		log, _ := said.Load(c.id)
		t.Logf("DEL by %s left pod %d behind: %s", names[side], pod, log)
		// On a busy machine ours meets its bound, leaves the address to the node's journal, and says so.
		if side == 0 && !strings.Contains(fmt.Sprint(log), "a step failed") {
			t.Error("ours did not report it")
		}
		kept[side]++
		if _, err := c.run(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("of %d DELs each, %d by ours and %d by theirs left their address behind", mixedPods/2, kept[0], kept[1])
	if kept[0] > mixedPods/4 {
		t.Error("that is too many by ours")
	}
	if kept[1] > mixedPods/20 {
		t.Error("that is too many by theirs: does our traffic starve real whereabouts?")
	}
	wantEmpty(t, namespace)
}

// TestRealWhereaboutsGetsThroughOurTraffic keeps ours busy on several nodes
// without a pause, while real whereabouts adds and deletes some pods. The
// writes of real whereabouts yield to every other writer's, and it gives up
// after 10 s: failed ADDs are repeated as by a runtime, and counted. Addresses
// that its DELs leave behind are defects of its own, and are counted as well.
func TestRealWhereaboutsGetsThroughOurTraffic(t *testing.T) {
	const (
		pods, theirCalls = 6, 2
		busy             = 20 * time.Second
	)
	namespace := newNamespace(t)
	var confs [mixedNodes]string
	for i := range confs {
		confs[i] = newNode(t, namespace).config(t, "1.0.0", `{"range":"10.0.0.0/16","log_level":"error"}`, "")
	}
	run := func(s *spent, verb, binary string, pod, tries int) {
		id, args := identity(pod)
		c := call{binary: binary, verb: verb, id: id, ifname: "net1", args: args, stdin: confs[pod%mixedNodes]}
		began := time.Now()
		for try := range tries {
			_, err := c.run()
			if err == nil {
				s.note(began, try)
				return
			}
			s.fail(lastLine(err))
		}
		t.Errorf("%s of pod %d by %s failed %d times: %s", verb, pod, binary, tries, s)
	}
	var ourAdds, ourDels, theirAdds, theirDels spent
	our, their := ours(t), theirs(t)
	var wg sync.WaitGroup
	var next atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), busy)
	defer cancel()
	for range mixedNodes {
		wg.Go(func() {
			for ctx.Err() == nil {
				pod := pods + int(next.Add(1))
				run(&ourAdds, "ADD", our, pod, 1)
				run(&ourDels, "DEL", our, pod, 1)
			}
		})
	}
	jobs := make([]int, pods)
	for i := range jobs {
		jobs[i] = i
	}
	workers(theirCalls, jobs, func(pod int) {
		run(&theirAdds, "ADD", their, pod, attempts)
		run(&theirDels, "DEL", their, pod, 1)
	})
	cancel()
	wg.Wait()
	for what, s := range map[string]*spent{
		"ADD by ours": &ourAdds, "DEL by ours": &ourDels, "ADD by theirs": &theirAdds, "DEL by theirs": &theirDels,
	} {
		t.Logf("%s: %s", what, s)
	}
	entries, reserved := holders(t, namespace)
	t.Logf("DELs by theirs left %q and %q behind", entries, reserved)
	for pod := range pods {
		run(&ourDels, "DEL", our, pod, 1)
	}
	if entries, _ := holders(t, namespace); len(entries) > 0 {
		t.Errorf("left over: %q", entries)
	}
}

// lastLine returns the last line of an error: real whereabouts logs before it.
func lastLine(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	return lines[len(lines)-1]
}
