package crash

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/crash/attacker"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

const (
	hostileVar     = "RAIL_CNI_HOSTILE"      // set in the process of a node: the variant
	hostileTimeVar = "RAIL_CNI_HOSTILE_TIME" // how long, for each variant
	hostileOnlyVar = "RAIL_CNI_HOSTILE_ONLY" // selects attacks, see [attacker.Plan], to find a cause
)

// TestHostilePodsHarmNobody has pods attack a node of eight NICs with
// everything that their root may do to its interfaces, while other pods come
// and go: these must get what they would have got alone, no one else may answer
// for their addresses, and each NIC must be on the host as it was as soon as
// its attacker is gone.
//
// Plain pods have every capability in their network namespace, those of the other
// variant have a user namespace that owns theirs.
func TestHostilePodsHarmNobody(t *testing.T) {
	need.Root(t)
	length, err := time.ParseDuration(os.Getenv(hostileTimeVar))
	if err != nil {
		length = 20 * time.Second
	}
	for _, variant := range []string{"plain", "userns"} {
		t.Run(variant, func(t *testing.T) {
			if os.Getenv(hostileVar) == variant {
				runHostile(t, variant == "plain", length)
				return
			}
			t.Parallel()
			runtime.LockOSThread() // the node ends with the thread that made it
			defer runtime.UnlockOSThread()
			cmd := inNamespaces([]string{"-test.run=^TestHostilePodsHarmNobody$/^" + variant + "$", "-test.v", "-test.timeout=" + (length + 10*time.Minute).String()},
				"RAIL_CNI_BIN="+testnet.Bin(t), hostileVar+"="+variant, hostileTimeVar+"="+length.String(), fmt.Sprint(need.SeedVariable, "=", seed))
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v; again by RAIL_CNI_SEED=%d %s=%v\n%s", err, seed, hostileTimeVar, length, out.Bytes())
			}
			for line := range strings.Lines(out.String()) {
				if strings.HasPrefix(line, "hostile pods") {
					fmt.Print(line)
				}
			}
		})
	}
}

// enoughWrong is the number of violations that ends a run, fewest the least
// number of attacks.
const enoughWrong, fewest = 20, 10

// runHostile runs one node. This process is the first in its PID namespace, and
// alone in its others.
func runHostile(t *testing.T, plain bool, length time.Duration) {
	attackFor(t, newLab(t, settle(t), plain, veths), length)
}

// attackFor attacks the node, and in the end compares it with its first state.
func attackFor(t *testing.T, l *lab, length time.Duration) {
	var all sync.WaitGroup
	end := time.Now().Add(length)
	late := end.Add(l.long(patience)) // a busy machine makes few attacks
	going := func() bool {
		return (time.Now().Before(end) || l.attacks() < fewest && time.Now().Before(late)) && l.violations() < enoughWrong
	}
	for i := range 2 {
		all.Go(func() {
			for n := 0; going(); n++ {
				l.attack(uint64(i), n)
			}
		})
	}
	for i := range 3 {
		all.Go(func() {
			for n := 0; going(); n++ {
				l.innocent(uint64(i), n)
			}
		})
	}
	all.Go(func() {
		l.restartAgents(going)
		l.unattended.Store(true)
	})
	all.Wait()
	l.moveOut()
	l.finish()
	if few := 3 + l.done["DEL"]/10; l.done[reopened]+l.done[lacking] > few {
		l.violation([]string{}, "more than %d NICs without default GIDs: that is more than a race", few)
	}
	if l.violations() > 0 {
		t.Errorf("%d violations; again by RAIL_CNI_SEED=%d %s=%v; attacks made: %v", l.violations(), seed, hostileTimeVar, length, l.succeeded)
	}
	l.report(length)
}

// attacks returns how many attacks succeeded.
func (l *lab) attacks() (total int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.succeeded {
		total += n
	}
	return total
}

// reportAgents fails the test if a part of the agents was not attacked at all. Readings of
// facts are bounded in time, and may all lack some in a short run on a busy machine, or in the
// rig, whose processors are emulated.
func (l *lab) reportAgents(length time.Duration) {
	parts := []string{"runs of the doctor", "lists of devices", "containers of innocent pods with their files"}
	if len(l.pci) > 0 {
		parts = append(parts, "devices allocated")
	} else if length > time.Minute {
		parts = append(parts, "readings of facts")
	}
	for _, what := range parts {
		if l.done[what] == 0 {
			l.t.Errorf("no %s", what)
		}
	}
	if l.lacked != nil {
		fmt.Printf("hostile pods: the last reading of facts that lacked some: %.400s\n", l.lacked)
	}
}

// report prints the attacks. In a long run it fails if one never succeeded, because that
// tests nothing, unless the kernel lacks the feature (EOPNOTSUPP). In the rig there are
// too few attacks for that, and its kernel lacks modules.
func (l *lab) report(length time.Duration) {
	variant := map[bool]string{true: "plain", false: "with a user namespace"}[l.plain]
	if l.rdma {
		variant += ", on NICs with RDMA"
	}
	total := l.attacks()
	var counts []string
	for _, what := range slices.Sorted(maps.Keys(l.done)) {
		counts = append(counts, fmt.Sprintf("%d %s", l.done[what], what))
	}
	fmt.Printf("hostile pods, %s, for %v, RAIL_CNI_SEED=%d: %d attacks, %s; slowest call of an innocent pod %v; rail-agent had at most %d KiB of memory and %d open files\n",
		variant, length, seed, total, strings.Join(counts, ", "), l.slowest.Round(time.Millisecond), l.memory, l.files)
	l.reportAgents(length)
	if os.Getenv(hostileOnlyVar) != "" {
		return
	}
	for _, name := range attacker.Names(l.plain, l.rdma) {
		if l.succeeded[name] == 0 && length > time.Minute {
			fmt.Printf("hostile pods, %s: %q never succeeded, but for: %s\n", variant, name, l.refused[name])
			if !l.rdma && !strings.Contains(l.refused[name], unix.EOPNOTSUPP.Error()) {
				l.t.Errorf("the attack %q never succeeded: %q", name, l.refused[name])
			}
		}
	}
	if total < fewest {
		l.t.Errorf("only %d attacks were made", total)
	}
}
