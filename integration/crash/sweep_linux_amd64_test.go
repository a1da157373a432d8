package crash

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"

	"github.com/rail-cni/rail-cni/integration/need"
)

// full reports whether every point is tried.
var full = os.Getenv("RAIL_CNI_CRASH") == "full"

// seed chooses the sample.
var seed = need.Seed()

// injected are the errors that calls fail with.
var injected = []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EINTR, syscall.EBUSY, syscall.ENOMEM, syscall.EPERM}

// mode is one way to treat a plugin at each point, and its recovery.
type mode struct {
	errno    syscall.Errno
	whole    bool
	recovery string
	// Only every nth point, from number first (0 …); 0 is all.
	nth, first int
}

func (m mode) String() string {
	switch {
	case m.errno != 0:
		return fmt.Sprintf("%s, then %s", strings.ToUpper(errnoName(m.errno)), m.recovery)
	case m.whole:
		return "killed with its children, then " + m.recovery
	}
	return "killed alone, then " + m.recovery
}

func errnoName(e syscall.Errno) string {
	return map[syscall.Errno]string{
		syscall.ENOSPC: "ENOSPC", syscall.EIO: "EIO", syscall.EINTR: "EINTR", syscall.EBUSY: "EBUSY", syscall.ENOMEM: "ENOMEM", syscall.EPERM: "EPERM",
	}[e]
}

// subject is a call of a plugin that is swept.
type subject interface {
	// begin makes the call's environment, and returns the call.
	begin() program
	// recover runs a recovery, and returns the losses.
	recover(recovery string, o outcome) []string
}

// tally is a line of the table.
type tally struct {
	name, verb    string
	mode          mode
	points, tried int
	losses        []string
}

// counts are the numbers of changes of undisturbed calls, for samples.
var counts sync.Map

// sweep tries the mode at all points of the call, or at sample of them, until
// enough is lost.
func sweep(t *testing.T, s subject, name, verb string, m mode, sample, enough int) tally {
	t.Helper()
	result := tally{name: name, verb: verb, mode: m}
	in := intervention{errno: m.errno, whole: m.whole}
	key := fmt.Sprint(name, verb, m.errno != 0)
	known, _ := counts.Load(key)
	result.points, _ = known.(int)
	if full || known == nil {
		o := trace(t, s.begin(), in)
		if !o.ended || o.code != 0 {
			t.Fatalf("%s %s does not even succeed undisturbed: %d\n%s%s", name, verb, o.code, o.stdout, o.stderr)
		}
		if lost := s.recover(m.recovery, o); lost != nil {
			result.losses = append(result.losses, "undisturbed: "+strings.Join(lost, "; "))
		}
		result.points = o.changes
		counts.Store(key, o.changes)
	}
	hash := fnv.New64()
	fmt.Fprint(hash, name, verb, m) // never fails
	points := rand.New(rand.NewPCG(seed, hash.Sum64())).Perm(result.points)
	points = slices.DeleteFunc(points, func(p int) bool { return m.nth > 0 && p%m.nth != m.first })
	tries := len(points)
	if full {
		slices.Sort(points)
	} else {
		tries = min(tries, sample) // in random order: the next point replaces an unreached one
	}
	for _, p := range points {
		if len(result.losses) >= enough || result.tried == tries {
			break
		}
		in.nth = p + 1
		o := trace(t, s.begin(), in)
		if o.at == "" {
			// This run had fewer changes: the program was not disturbed.
			if lost := s.recover(m.recovery, o); lost != nil {
				result.losses = append(result.losses, fmt.Sprintf("change %d of %d was not reached: %s", in.nth, result.points, strings.Join(lost, "; ")))
			}
			continue
		}
		result.tried++
		if lost := s.recover(m.recovery, o); lost != nil {
			result.losses = append(result.losses, fmt.Sprintf("change %d of %d (%s): %s", in.nth, result.points, o.at, strings.Join(lost, "; ")))
		}
	}
	return result
}

// table collects the tallies of all tests.
var table struct {
	sync.Mutex
	rows []tally
}

// report adds the tally to the table, and fails the test for each loss.
func (r tally) report(t *testing.T) {
	t.Helper()
	table.Lock()
	table.rows = append(table.rows, r)
	table.Unlock()
	if full { // takes hours, and may not reach its table
		fmt.Printf("%s %s, %s: %d points, %d tried, %d losses\n", r.name, r.verb, r.mode, r.points, r.tried, len(r.losses))
	}
	if r.tried == 0 && len(r.losses) == 0 {
		t.Errorf("%s %s, %s: none of %d points was tried", r.name, r.verb, r.mode, r.points)
	}
	for i, l := range r.losses {
		if i == 5 {
			t.Errorf("… and %d more", len(r.losses)-i)
			break
		}
		t.Errorf("%s %s, %s: %s", r.name, r.verb, r.mode, l)
	}
}

// printTable prints the points that were tried.
func printTable() {
	table.Lock()
	defer table.Unlock()
	if len(table.rows) == 0 {
		return
	}
	slices.SortFunc(table.rows, func(a, b tally) int {
		return strings.Compare(a.name+" "+a.verb+" "+a.mode.String(), b.name+" "+b.verb+" "+b.mode.String())
	})
	kind := fmt.Sprintf("a sample, RAIL_CNI_SEED=%d", seed)
	if full {
		kind = "every point"
	}
	fmt.Printf("\n%s\n", kind)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PLUGIN\tVERB\tMODE\tPOINTS\tTRIED\tLOSSES")
	tried, losses := 0, 0
	for _, r := range table.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", r.name, r.verb, r.mode, r.points, r.tried, len(r.losses))
		tried, losses = tried+r.tried, losses+len(r.losses)
	}
	fmt.Fprintf(w, "all\t\t\t\t%d\t%d\n", tried, losses)
	_ = w.Flush() // stdout
}
