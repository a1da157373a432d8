package local

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
)

const testRails = 4

// onRail returns the claim of an address on a rail, with the host part of the container's
// other rails.
func onRail(t testing.TB, rail int) ipam.Claim {
	t.Helper()
	c := claim(t, fmt.Sprintf("10.%d.0.0/26", rail))
	for i := range testRails {
		c.SameHost = append(c.SameHost, netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/26", i)))
	}
	return c
}

// railOwner returns the interface of a pod's container on a rail.
func railOwner(container, pod string, rail int) ipam.Owner {
	return owner(container, pod, fmt.Sprint("net", rail))
}

// wantRails adds the container on the rails, and checks the host part.
func wantRails(t *testing.T, s *Store, container, pod string, host int, rails ...int) {
	t.Helper()
	for _, rail := range rails {
		if got, want := add(t, s, railOwner(container, pod, rail), onRail(t, rail)), fmt.Sprintf("10.%d.0.%d/26", rail, host); got != want {
			t.Errorf("%s on rail %d: %s, want %s", container, rail, got, want)
		}
	}
}

func TestHostPartIsTheSameOnAllRails(t *testing.T) {
	s := New(t.TempDir())
	wantRails(t, s, "c1", "p1", 1, 0, 1, 2, 3)
	wantRails(t, s, "c2", "p2", 2, 3, 1) // the order does not matter, nor how many
	wantRails(t, s, "c3", "p3", 3, 2, 0)
	wantRails(t, s, "c2", "p2", 2, 0, 3) // again
	// A host part is free when no rail has it.
	del(t, s, railOwner("c1", "p1", 0), poolOf("10.0.0.0/26"))
	wantRails(t, s, "c4", "p4", 4, 0)
	for rail := 1; rail < testRails; rail++ {
		del(t, s, railOwner("c1", "p1", rail), poolOf(fmt.Sprintf("10.%d.0.0/26", rail)))
	}
	wantRails(t, s, "c5", "p5", 1, 1, 0)
}

func TestNetworkWithoutSameHostTakesAHostPartOfOneRail(t *testing.T) {
	s := New(t.TempDir())
	for i := range 12 { // more than are looked at one by one
		if got := add(t, s, owner(fmt.Sprint("x", i), fmt.Sprint("x", i), "net1"), claim(t, "10.2.0.0/26")); got != fmt.Sprintf("10.2.0.%d/26", i+1) {
			t.Fatal(got)
		}
	}
	wantRails(t, s, "c1", "p1", 13, 0, 1, 2)
	add(t, s, owner("y", "y", "net1"), want(claim(t, "10.3.0.0/26"), "10.3.0.13"))
	_, err := s.Allocate(testContext, railOwner("c1", "p1", 3), []ipam.Claim{onRail(t, 3)})
	if failure.KindOf(err) != failure.TryAgain || !strings.Contains(err.Error(), "ns/y holds it") || !strings.Contains(err.Error(), "next sandbox") {
		t.Errorf("host part that was taken meanwhile: %v", err)
	}
	for rail := range 3 {
		del(t, s, railOwner("c1", "p1", rail), poolOf(fmt.Sprintf("10.%d.0.0/26", rail)))
	}
	wantRails(t, s, "c2", "p1", 14, 3, 2, 1, 0)
}

func TestHostPartThatAnotherPoolHasReservedOnOneRailIsNotChosen(t *testing.T) {
	for _, many := range []int{1, 12} { // more than are looked at one by one
		s := New(t.TempDir())
		for i := range many {
			c := claim(t, "10.3.0.0/27")
			c.Exclusive = true
			add(t, s, owner(fmt.Sprint("x", i), fmt.Sprint("x", i), "net1"), c)
		}
		for rail := range testRails {
			c := onRail(t, rail)
			c.Exclusive = true
			if err := s.Status(testContext, []ipam.Claim{c}); err != nil {
				t.Error(err)
			}
			if got, want := add(t, s, railOwner("c1", "p1", rail), c), fmt.Sprintf("10.%d.0.%d/26", rail, many+1); got != want {
				t.Errorf("rail %d: %s, want %s", rail, got, want)
			}
		}
		c := onRail(t, 0)
		c.Exclusive = false // reservations do not count
		if got := add(t, s, railOwner("c2", "p2", 0), c); got != "10.0.0.1/26" {
			t.Errorf("without reservations: %s", got)
		}
	}
}

func TestNewSandboxOfAPodKeepsItsHostPart(t *testing.T) {
	s := New(t.TempDir())
	wantRails(t, s, "c1", "p1", 1, 0, 1, 2, 3)
	wantRails(t, s, "c2", "p1", 1, 2, 0, 1, 3) // no DEL of c1 has come
	for rail := range testRails {
		del(t, s, railOwner("c1", "p1", rail), poolOf(fmt.Sprintf("10.%d.0.0/26", rail)))
	}
	wantRails(t, s, "c3", "p3", 2, 0)
	// Only some of the rails were freed: another pod may have the host part on those.
	for rail := range 2 {
		del(t, s, railOwner("c2", "p1", rail), poolOf(fmt.Sprintf("10.%d.0.0/26", rail)))
	}
	add(t, s, owner("x", "x", "net1"), claim(t, "10.1.0.0/26"))
	wantRails(t, s, "c4", "p1", 3, 2, 0, 1, 3)
	for rail := range testRails {
		del(t, s, railOwner("c2", "p1", rail), poolOf(fmt.Sprintf("10.%d.0.0/26", rail)))
		del(t, s, railOwner("c3", "p3", rail), poolOf(fmt.Sprintf("10.%d.0.0/26", rail)))
		del(t, s, railOwner("c4", "p1", rail), poolOf(fmt.Sprintf("10.%d.0.0/26", rail)))
	}
	del(t, s, owner("x", "x", "net1"), poolOf("10.1.0.0/26"))
	checkEmpty(t, s)
}

func TestTwoInterfacesOnOneRailAreRefusedWithSameHost(t *testing.T) {
	s := New(t.TempDir())
	wantRails(t, s, "c1", "p1", 1, 0, 1)
	second := owner("c1", "p1", "net9")
	_, err := s.Allocate(testContext, second, []ipam.Claim{onRail(t, 1)})
	if failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), "net9 of ns/p1 is on the same rail as net1") {
		t.Errorf("%v", err)
	}
}

func TestRequestedAddressGivesTheHostPart(t *testing.T) {
	s := New(t.TempDir())
	if got := add(t, s, railOwner("c1", "p1", 1), want(onRail(t, 1), "10.1.0.40")); got != "10.1.0.40/26" {
		t.Errorf("%s", got)
	}
	wantRails(t, s, "c1", "p1", 40, 0, 2)
	for what, tc := range map[string]struct {
		owner ipam.Owner
		claim ipam.Claim
	}{
		"ns/p1 asks for 10.3.0.41, but its addresses on the other rails have the host part of 10.3.0.40": {railOwner("c1", "p1", 3), want(onRail(t, 3), "10.3.0.41")},
		"10.3.0.40: its host part is taken on another rail":                                              {railOwner("c2", "p2", 3), want(onRail(t, 3), "10.3.0.40")},
	} {
		if _, err := s.Allocate(testContext, tc.owner, []ipam.Claim{tc.claim}); failure.KindOf(err) != failure.IPAM || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
}

// A record of another rail that cannot be read may be any pod's.
func TestRecordThatCannotBeReadHoldsItsHostPart(t *testing.T) {
	s := New(t.TempDir())
	wantRails(t, s, "c1", "p1", 1, 0, 1)
	write(t, filepath.Join(s.path, "space", "10.0.0.0_26", "10.0.0.1.json"), "{")
	wantRails(t, s, "c2", "p1", 2, 1) // the pod had 1 there
	wantRails(t, s, "c1", "p1", 3, 2)
}

// Such links stay of a process that was killed, or lost a file.
func TestLinksWithoutRecordSayNothingOfTheHostPart(t *testing.T) {
	s := New(t.TempDir())
	ghost := func(i int) {
		name := filepath.Join(s.path, "space", "10.0.0.0_26", byAttachmentDir, fmt.Sprint("c1@ghost", i))
		write(t, name+"x", "") // no link at all
		if err := os.Symlink("../10.0.0.9.json", name); err != nil {
			t.Fatal(err)
		}
	}
	wantRails(t, s, "c0", "p0", 1, 0)
	for i := range 5 {
		ghost(i)
	}
	wantRails(t, s, "c1", "p1", 2, 0)
	for i := range 5 { // the order of a directory's files is unknown
		ghost(5 + i)
	}
	del(t, s, railOwner("c0", "p0", 0), poolOf("10.0.0.0/26"))
	wantRails(t, s, "c1", "p1", 2, 1)
}

func TestExhaustedRailsSaySo(t *testing.T) {
	for _, exclusive := range []bool{true, false} {
		t.Run(fmt.Sprint("exclusive=", exclusive), func(t *testing.T) { testExhaustedRails(t, exclusive) })
	}
}

func testExhaustedRails(t *testing.T, exclusive bool) {
	t.Helper()
	s := New(t.TempDir())
	for i := range 62 {
		c := onRail(t, i%testRails) // one rail each
		c.Exclusive = exclusive
		add(t, s, railOwner(fmt.Sprint("c", i), fmt.Sprint("p", i), i%testRails), want(c, fmt.Sprintf("10.%d.0.%d", i%testRails, i+1)))
	}
	write(t, filepath.Join(s.path, "space", "10.3.0.0_26", "0.json"), "{}") // no record
	c := onRail(t, 2)
	c.Exclusive = exclusive
	_, err := s.Allocate(testContext, railOwner("c", "p", 2), []ipam.Claim{c})
	if failure.KindOf(err) != failure.IPAM || !strings.Contains(err.Error(), "Could not allocate IP in range") {
		t.Errorf("%v", err)
	}
	if err := s.Status(testContext, []ipam.Claim{c}); failure.KindOf(err) != failure.NotAvailable {
		t.Errorf("status: %v", err)
	}
	del(t, s, railOwner("c7", "p7", 3), poolOf("10.3.0.0/26"))
	if err := s.Status(testContext, []ipam.Claim{c}); err != nil {
		t.Errorf("status: %v", err)
	}
	wantRails(t, s, "c", "p", 8, 2, 0)
}

// Pods of one node choose at once, on whichever rail comes first.
func TestConcurrentPodsHaveHostPartsOfTheirOwn(t *testing.T) {
	s := New(t.TempDir())
	var mu sync.Mutex
	hosts := map[netip.Addr]int{} // the pod, by host part on rail 0
	var wg sync.WaitGroup
	for pod := range 20 {
		for i := range testRails {
			wg.Go(func() {
				rail := (i + pod) % testRails
				got, err := s.Allocate(testContext, railOwner(fmt.Sprint("c", pod), fmt.Sprint("p", pod), rail), []ipam.Claim{onRail(t, rail)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				host := ipam.Move(got[0].Addr(), netip.MustParsePrefix("10.0.0.0/26"))
				if other, some := hosts[host]; some && other != pod {
					t.Errorf("pods %d and %d have %s", other, pod, host)
				}
				hosts[host] = pod
			})
		}
	}
	wg.Wait()
	if len(hosts) != 20 {
		t.Errorf("20 pods have %d host parts", len(hosts))
	}
}
