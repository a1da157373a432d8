package whereabouts

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

const (
	// late is the least delay of an ADD here: the store takes a younger sandbox
	// for the newest without a look.
	late = 1500 * time.Millisecond
	// apart is the time between two sandboxes whose order the server's clock,
	// in whole seconds, must show.
	apart = 3500 * time.Millisecond
)

const (
	oneRange  = `{"range":"10.0.0.0/24"}`
	twoRanges = `{"ipRanges":[{"range":"10.0.0.0/24"},{"range":"10.1.0.0/24"}]}`
	reversed  = `{"ipRanges":[{"range":"10.1.0.0/24"},{"range":"10.0.0.0/24"}]}`
	noOverlap = `{"range":"10.0.0.0/24","enable_overlapping_ranges":false}`
)

// sandboxOf is a call for a new sandbox of the pod "apps/pod-1".
func (n *node) sandboxOf(t *testing.T, container int, ipam string) (call, *testnet.Netns) {
	t.Helper()
	id, _ := identity(container)
	_, args := identity(1)
	pod := testnet.NewNetns(t, "pod")
	return call{
		binary: ours(t), verb: "ADD", id: id, ifname: "net1", args: args,
		netns: "/run/netns/" + pod.Name, stdin: n.config(t, "1.0.0", ipam, ""),
	}, pod
}

// begin starts c, and returns a function that waits for its addresses.
func (c call) begin() (wait func() ([]string, error)) {
	var got []string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err = c.add()
	}()
	return func() ([]string, error) {
		<-done
		return got, err
	}
}

// add runs c and returns the addresses of its result.
func (c call) add() ([]string, error) {
	out, err := c.run()
	if err != nil {
		return nil, err
	}
	return addresses(out)
}

// wantKept fails the test unless a pod keeps its addresses after the older
// sandbox's DEL, and no other pod gets them.
func wantKept(t *testing.T, n *node, older, newer call, has []string) {
	t.Helper()
	older.verb = "DEL"
	if _, err := older.run(); err != nil {
		t.Errorf("DEL of the older sandbox: %v", err)
	}
	entries, _ := holders(t, n.namespace)
	mine := 0
	for _, e := range entries {
		if strings.Contains(e, newer.id) {
			mine++
		}
	}
	if mine != len(has) {
		t.Errorf("the newer sandbox has %q, and of the entries %q", has, entries)
	}
	stranger := newer
	stranger.id, stranger.args = identity(99)
	stranger.binary, stranger.netns = ours(t), ""
	stranger.stdin = n.config(t, "1.0.0", twoRanges, "")
	got := mustAdd(t, stranger)
	for _, a := range got {
		for _, b := range has {
			if a == b {
				t.Errorf("%s is given to another pod too", a)
			}
		}
	}
	for _, c := range []call{stranger, newer} {
		c.verb = "DEL"
		if _, err := c.run(); err != nil {
			t.Error(err)
		}
	}
	wantEmpty(t, n.namespace)
}

func mustAdd(t *testing.T, c call) []string {
	t.Helper()
	got, err := c.add()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestLateAddTakesNothingFromANewerSandboxOnAnotherNode delays the ADD of a pod
// on one node, while the pod is made again on another one.
func TestLateAddTakesNothingFromANewerSandboxOnAnotherNode(t *testing.T) {
	for name, tc := range map[string]struct {
		ipam   string
		dead   bool // the older sandbox, before its ADD goes on
		theirs bool // real whereabouts runs on the other node
	}{
		"one range":                       {ipam: oneRange},
		"one range, a dead sandbox":       {ipam: oneRange, dead: true},
		"two ranges":                      {ipam: twoRanges},
		"two ranges, a dead sandbox":      {ipam: twoRanges, dead: true},
		"beside real whereabouts":         {ipam: oneRange, theirs: true},
		"no reservations, a dead sandbox": {ipam: noOverlap, dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace, g := newNamespace(t), newGate(t)
			a, b := newNodeBehind(t, namespace, g), newNode(t, namespace)
			older, pod := a.sandboxOf(t, 1, tc.ipam)
			held, wait := "ippools/10.0.0.0-24", late
			if tc.ipam == twoRanges {
				held, wait = "ippools/10.1.0.0-24", apart
			}
			g.shut(held)
			end := older.begin()
			eventually(t, "a request is held", func() bool { return g.holds() > 0 })
			time.Sleep(wait)
			newer, _ := b.sandboxOf(t, 2, tc.ipam)
			if tc.theirs {
				newer.binary = theirs(t)
			}
			has := mustAdd(t, newer)
			if tc.dead {
				pod.Kill()
			}
			g.open()
			if _, err := end(); err == nil {
				t.Error("the late ADD succeeds")
			} else {
				t.Log(err)
			}
			wantKept(t, b, older, newer, has)
		})
	}
}

// TestLateAddTakesNothingFromANewerSandboxOnTheSameNode delays an ADD in the
// queue of a pool, while one for a newer sandbox of the pod goes on in another.
func TestLateAddTakesNothingFromANewerSandboxOnTheSameNode(t *testing.T) {
	for name, tc := range map[string]struct {
		older, newer string
		dead         bool
	}{
		"one range":                  {older: oneRange, newer: oneRange},
		"one range, a dead sandbox":  {older: oneRange, newer: oneRange, dead: true},
		"two ranges":                 {older: twoRanges, newer: reversed},
		"two ranges, a dead sandbox": {older: twoRanges, newer: reversed, dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, newNamespace(t))
			for _, verb := range []string{"ADD", "DEL"} { // makes the pools
				c, _ := n.sandboxOf(t, 3, twoRanges)
				c.verb = verb
				if _, err := c.run(); err != nil {
					t.Fatal(err)
				}
			}
			older, pod := n.sandboxOf(t, 1, tc.older)
			unlock := n.lockPool(t, "10.0.0.0-24")
			endOlder := older.begin()
			eventually(t, "the older one waits", func() bool { return n.asks(t, "10.0.0.0-24") == 1 })
			time.Sleep(late)
			newer, _ := n.sandboxOf(t, 2, tc.newer)
			endNewer := newer.begin()
			eventually(t, "the newer one waits", func() bool { return n.asks(t, "10.0.0.0-24") == 2 })
			if tc.dead {
				pod.Kill()
			}
			time.Sleep(late)
			unlock()
			_, err := endOlder()
			if t.Logf("the older ADD: %v", err); tc.dead && (err == nil || !strings.Contains(err.Error(), "is gone")) {
				t.Error("it does not say that its sandbox is gone")
			}
			has, err := endNewer()
			if err != nil {
				t.Fatal(err)
			}
			wantKept(t, n, older, newer, has)
		})
	}
}

// TestNewSandboxTakesTheAddressOfAnOlderOne: if the node of a pod has died, the
// pod's next sandbox gets the pod's address, with a quick and with a slow
// server.
func TestNewSandboxTakesTheAddressOfAnOlderOne(t *testing.T) {
	for name, tc := range map[string]struct {
		slow, theirs, unreserved bool
	}{
		"quick":                            {},
		"slow":                             {slow: true},
		"slow, real whereabouts'":          {slow: true, theirs: true},
		"slow, its reservation is missing": {slow: true, unreserved: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace, g := newNamespace(t), newGate(t)
			a, b := newNode(t, namespace), newNodeBehind(t, namespace, g)
			older, _ := a.sandboxOf(t, 1, oneRange)
			if tc.theirs {
				older.binary = theirs(t)
			}
			had := mustAdd(t, older)
			if tc.unreserved {
				code, answer, err := plane.Admin().Delete(t.Context(), group+namespace+"/"+reservations+"/10.0.0.1")
				if err != nil || code != http.StatusOK {
					t.Fatal(code, string(answer), err)
				}
			}
			add := func(container int) (call, []string, error) {
				c, _ := b.sandboxOf(t, container, oneRange)
				if tc.slow {
					g.shut("ippools/10.0.0.0-24")
					time.AfterFunc(late, g.open)
				}
				got, err := c.add()
				return c, got, err
			}
			if tc.slow {
				time.Sleep(apart)
			}
			if tc.unreserved {
				// The holder's age is unknown until it has a reservation.
				if _, got, err := add(3); err == nil {
					t.Errorf("it got %q", got)
				}
				time.Sleep(apart)
			}
			newer, got, err := add(2)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(had) {
				t.Fatalf("the pod had %q, and has now %q: %v", had, got, err)
			}
			wantKept(t, b, older, newer, had)
		})
	}
}
