package crash

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

const (
	stepsVar  = "RAIL_CNI_MODEL_STEPS"
	worldsVar = "RAIL_CNI_MODEL_WORLDS"
	worldVar  = "RAIL_CNI_MODEL_WORLD" // set in the process of a world
	calmVar   = "RAIL_CNI_MODEL_CALM"  // in that of a world in which nothing is killed by time
)

// shortening bounds rapid's shortening of a failing sequence: each try takes
// seconds.
const shortening = 5 * time.Minute

func fromEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// TestNodeDoesAsTheModelSays runs random sequences of steps, and compares the
// node with the model after each: no NIC in two pods, none on the host under
// another's name, all free ones on the host as before, no address twice, no
// record too many or too few.
//
// A step is the end of a pod, a GC, or up to four operations at once, each for
// another pod: ADD, DEL, CHECK, another runtime's DEL, "railctl gc", a rename in
// the pod, the end of rail-agent and its start; a quarter of the plugins' calls
// are killed. Half of the worlds have their state directory on a tmpfs, as nodes
// do, the others on what the tests have for their files, by their seeds.
func TestNodeDoesAsTheModelSays(t *testing.T) {
	need.Root(t)
	steps := fromEnv(stepsVar, 480)
	if os.Getenv(worldVar) != "" {
		runWorld(t, steps)
		return
	}
	worlds := min(fromEnv(worldsVar, 4*runtime.NumCPU()), max(1, steps/sequence))
	var all sync.WaitGroup
	var mu sync.Mutex
	done := map[string]int{}
	for i := range worlds {
		all.Go(func() {
			counts, out, err := startWorld(t, testnet.Bin(t), worldOf{number: i, seed: seed + uint64(i), steps: (steps + worlds - 1) / worlds, shorten: shortening})
			if err != nil {
				t.Errorf("world %d: %v; it alone is %s=1 %s=%d RAIL_CNI_SEED=%d\n%s",
					i, err, worldsVar, stepsVar, (steps+worlds-1)/worlds, seed+uint64(i), out)
			}
			mu.Lock()
			defer mu.Unlock()
			for what, n := range counts {
				done[what] += n
			}
		})
	}
	all.Wait()
	var list []string
	for _, what := range slices.Sorted(maps.Keys(done)) {
		list = append(list, fmt.Sprintf("%d %s", done[what], what))
	}
	fmt.Printf("the model in %d worlds, RAIL_CNI_SEED=%d: %s\n", worlds, seed, strings.Join(list, ", "))
	if !t.Failed() && done["steps"] < steps {
		t.Errorf("only %d steps were made", done["steps"])
	}
}

// worldOf is what a world does.
type worldOf struct {
	number  int
	seed    uint64
	steps   int
	shorten time.Duration // bounds the shortening of a failing sequence
	calm    bool          // nothing is killed by time, so that a seed always does the same
}

// startWorld runs this program again in network, mount and process namespaces
// of its own, with the programs in bin. It returns the counts of operations and
// the output.
func startWorld(t *testing.T, bin string, of worldOf) (done map[string]int, said string, err error) {
	runtime.LockOSThread() // the world ends with the thread that made it
	defer runtime.UnlockOSThread()
	args := []string{
		"-test.run=^TestNodeDoesAsTheModelSays$", "-test.v", "-rapid.nofailfile", "-rapid.shrinktime=" + of.shorten.String(),
		fmt.Sprint("-rapid.seed=", of.seed), fmt.Sprint("-rapid.steps=", sequence),
		// Enough, whatever their lengths: those after the last step do nothing. With 30 for 125
		// steps some seeds made too few.
		fmt.Sprint("-rapid.checks=", 200+10*of.steps/sequence),
	}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(deadline).String())
	}
	runtime.LockOSThread() // the world ends with the thread that starts it
	defer runtime.UnlockOSThread()
	cmd := inNamespaces(args, "RAIL_CNI_BIN="+bin, fmt.Sprintf("%s=%d", worldVar, of.number),
		fmt.Sprintf("%s=%d", stepsVar, of.steps), fmt.Sprintf("RAIL_CNI_SEED=%d", of.seed), fmt.Sprintf("%s=%v", calmVar, of.calm))
	var out, errOut bytes.Buffer
	cmd.Stderr = &errOut
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, "", err
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), progress); is {
			if err := json.Unmarshal([]byte(text), &done); err != nil {
				t.Error(err)
			}
			if testing.Verbose() || full {
				fmt.Printf("world %d: %s\n", of.number, text)
			}
			continue
		}
		fmt.Fprintln(&out, lines.Text())
	}
	err = cmd.Wait()
	return done, out.String() + errOut.String(), err
}

// inNamespaces returns the command that runs this program again in network,
// mount and process namespaces of its own, which end with the thread that
// starts it.
func inNamespaces(args []string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// progress begins the lines in which a world reports its progress, which it
// does every so many steps.
const (
	progress      = "progress: "
	progressEvery = 50 * sequence
)

// firstViolation begins the log of a world's first violation, behind the shortened ones.
const firstViolation = "the first violation: "

// runWorld runs one world for at least so many steps, in sequences that end
// with everything free. This process is the first in its PID namespace, and
// alone in its others.
func runWorld(t *testing.T, steps int) {
	state := settle(t)
	var w *world
	done := map[string]int{}
	tell := func() {
		text, _ := json.Marshal(done) // numbers
		fmt.Printf("%s%s\n", progress, text)
	}
	sequences, failed, unfinished := 0, false, false
	var first string // the first violation; a shortened sequence may show another
	t.Cleanup(func() {
		if first != "" {
			t.Log(first)
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		if done["steps"] >= steps && !failed {
			return
		}
		if unfinished { // rapid abandons a shortened sequence where its bytes end
			w.abandon()
			w = nil
		}
		if w == nil {
			w = newWorld(t, done)
		}
		unfinished = true
		sequences++
		w.state = filepath.Join(state, strconv.Itoa(sequences))
		var made []string
		violated := func(found []string) {
			if len(found) == 0 {
				return
			}
			// Rapid prints a failing sequence again, but not the violation.
			text := fmt.Sprintf("after\n%s\nthis is wrong:\n%s\n", strings.Join(made, "\n"), strings.Join(found, "\n"))
			fmt.Print(text)
			if !failed {
				first = firstViolation + text // logged last, because CI keeps the last lines
			}
			failed = true
			w.abandon() // what a failed sequence leaves is of no use
			w, unfinished = nil, false
			rt.Fatal("the node is not as the model says")
		}
		rt.Repeat(map[string]func(*rapid.T){"step": func(rt *rapid.T) {
			all := w.draw(rt)
			for _, op := range all {
				made = append(made, fmt.Sprintf("%d: %s", len(made), op.text))
				rt.Log(made[len(made)-1])
			}
			violated(w.step(all))
			if done["steps"]++; done["steps"]%progressEvery == 0 {
				tell()
			}
		}})
		made = append(made, "the end")
		violated(w.end())
		unfinished = false
		if err := os.RemoveAll(w.state); err != nil {
			t.Error(err)
		}
	})
	tell()
}

// step runs all operations concurrently and returns the violations.
func (w *world) step(all []operation) (found []string) {
	verdicts := make([]func() string, len(all))
	var wg sync.WaitGroup
	for i, op := range all {
		wg.Go(func() { verdicts[i] = op.do() })
	}
	wg.Wait()
	w.done["operations"] += len(all)
	for _, verdict := range verdicts {
		if v := verdict(); v != "" {
			found = append(found, v)
		}
	}
	return append(found, w.violations()...)
}

// settle makes this process's namespaces a node's: with /proc and /sys of its
// own, and without named netns. It returns the directory for states.
func settle(t *testing.T) (state string) {
	t.Helper()
	state = t.TempDir()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := map[string]string{"/proc": "proc", "/sys": "sysfs", "/run/netns": "tmpfs"}
	if seed%2 == 0 {
		mounts[state] = "tmpfs"
	}
	for at, kind := range mounts {
		if err := unix.Mount(kind, at, kind, 0, ""); err != nil {
			t.Fatalf("%s at %s: %v", kind, at, err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	return state
}
