package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
)

var testContext = context.Background()

// owner returns an attachment of pod "ns/<pod>" in network "net".
func owner(container, pod, ifname string) ipam.Owner {
	return ipam.Owner{ContainerID: container, IfName: ifname, PodRef: "ns/" + pod, Network: "net"}
}

func poolOf(prefix string) ipam.Pool { return ipam.Pool{Prefix: netip.MustParsePrefix(prefix)} }

// claim returns a claim of any address of a network, reserved against other
// pools.
func claim(t testing.TB, prefix string) ipam.Claim {
	t.Helper()
	r, err := ipam.NewRange(ipam.RangeSpec{Prefix: netip.MustParsePrefix(prefix)})
	if err != nil {
		t.Fatal(err)
	}
	return ipam.Claim{Pool: poolOf(prefix), Range: r, Exclusive: true}
}

func want(c ipam.Claim, addr string) ipam.Claim {
	c.Want = netip.MustParseAddr(addr)
	return c
}

// add allocates one address and returns it as text.
func add(t testing.TB, s *Store, o ipam.Owner, claims ...ipam.Claim) string {
	t.Helper()
	got, err := s.Allocate(testContext, o, claims)
	if err != nil {
		t.Fatalf("ADD %+v: %v", o, err)
	}
	var texts []string
	for _, p := range got {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, " ")
}

func del(t testing.TB, s *Store, o ipam.Owner, pools ...ipam.Pool) {
	t.Helper()
	if err := s.Release(testContext, o, pools); err != nil {
		t.Fatalf("DEL %+v: %v", o, err)
	}
}

// file returns the path of a file of the pool 10.0.0.0/24.
func file(s *Store, name string) string { return filepath.Join(s.path, "space", "10.0.0.0_24", name) }

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkEmpty fails if the store holds anything: a record, a link, a
// reservation, a temporary file, a bit.
func checkEmpty(t testing.TB, s *Store) {
	t.Helper()
	if _, err := os.Lstat(s.path); errors.Is(err, fs.ErrNotExist) {
		return
	}
	err := filepath.WalkDir(s.path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch name := d.Name(); {
		case name == poolFile, name == lockFile, name == reservedLock, name == hostLock, name == bootFile, name == bootLock:
		case name == busyFile, strings.HasPrefix(name, "map-"):
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if text := strings.Trim(string(data), "\x00"); text != "" && text != idleText {
				t.Errorf("%s says %q", path, text)
			}
		default:
			t.Errorf("%s is left", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAddressesAreHandedOutInOrderAndAgain(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	for i, name := range []string{"a", "b", "c"} {
		if got, want := add(t, s, owner("c"+name, name, "net1"), c), fmt.Sprintf("10.0.0.%d/24", i+1); got != want {
			t.Errorf("%s got %s, want %s", name, got, want)
		}
	}
	del(t, s, owner("cb", "b", "net1"), c.Pool)
	if got := add(t, s, owner("cd", "d", "net1"), c); got != "10.0.0.2/24" {
		t.Errorf("the freed address was not the next: %s", got)
	}
	for _, name := range []string{"a", "c", "d"} {
		del(t, s, owner("c"+name, name, "net1"), c.Pool)
	}
	checkEmpty(t, s)
}

// Neighbors go on sending to the MAC of an address that they know.
func TestFreedAddressIsTheLastToBeHandedOutAgainWithRotation(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/29") // .1 to .6
	c.Rotate = true
	for i := range 14 {
		o := owner(fmt.Sprint("c", i), fmt.Sprint("pod", i), "net1")
		if got, want := add(t, s, o, c), fmt.Sprintf("10.0.0.%d/29", i%6+1); got != want {
			t.Errorf("ADD %d got %s, want %s", i, got, want)
		}
		if again := add(t, s, o, c); again != fmt.Sprintf("10.0.0.%d/29", i%6+1) {
			t.Errorf("the same pod got %s", again)
		}
		del(t, s, o, c.Pool)
	}
	lost := filepath.Join(s.path, "space", "10.0.0.0_29", lastFile)
	for _, text := range []string{"", "nonsense", "2001:db8::1", "10.9.9.9"} {
		write(t, lost, text)
		o := owner("c", "pod", "net1")
		if got := add(t, s, o, c); got != "10.0.0.1/29" {
			t.Errorf("after %q: %s", text, got)
		}
		del(t, s, o, c.Pool)
	}
}

func TestSamePodAndInterfaceKeepsItsAddress(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	first := add(t, s, owner("old", "p", "net1"), c)
	if again := add(t, s, owner("old", "p", "net1"), c); again != first {
		t.Errorf("ADD again: %s, was %s", again, first)
	}
	if other := add(t, s, owner("old", "p", "net2"), c); other != "10.0.0.2/24" {
		t.Errorf("another interface of the pod got %s", other)
	}
	if moved := add(t, s, owner("new", "p", "net1"), c); moved != first {
		t.Errorf("the new container got %s, the pod had %s", moved, first)
	}
	del(t, s, owner("old", "p", "net1"), c.Pool)
	if held, err := s.Check(testContext, owner("new", "p", "net1"), []ipam.Pool{c.Pool}); err != nil || held[0].String() != first {
		t.Errorf("a late DEL of the old container took it: %v, %v", held, err)
	}
	if _, err := s.Check(testContext, owner("old", "p", "net1"), []ipam.Pool{c.Pool}); failure.KindOf(err) != failure.Mismatch {
		t.Errorf("the old container still holds something: %v", err)
	}
	del(t, s, owner("new", "p", "net1"), c.Pool)
	del(t, s, owner("old", "p", "net2"), c.Pool)
	checkEmpty(t, s)
}

func TestSameAttachmentUnderAnotherPodNameKeepsItsAddress(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	first := add(t, s, ipam.Owner{ContainerID: "c", IfName: "net1", PodRef: "c"}, c)
	if again := add(t, s, owner("c", "p", "net1"), c); again != first {
		t.Errorf("got %s, had %s", again, first)
	}
	del(t, s, owner("c", "p", "net1"), c.Pool)
	checkEmpty(t, s)
}

func TestDelWithoutPodNameFindsTheAddress(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	add(t, s, owner("c", "p", "net1"), c)
	del(t, s, ipam.Owner{ContainerID: "c", IfName: "net1", PodRef: "c"}, c.Pool)
	checkEmpty(t, s)
}

func TestDelOfNothingSucceedsAndMakesNothing(t *testing.T) {
	dir := t.TempDir()
	s := New(dir)
	del(t, s, owner("c", "p", "net1"), poolOf("10.0.0.0/24"))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("DEL made %v, %v", left, err)
	}
	add(t, s, owner("x", "x", "net1"), claim(t, "10.0.0.0/24"))
	del(t, s, owner("c", "p", "net1"), poolOf("10.0.0.0/24"))
	del(t, s, owner("x", "p", "net2"), poolOf("10.0.0.0/24"))
	if _, err := s.Check(testContext, owner("x", "x", "net1"), []ipam.Pool{poolOf("10.0.0.0/24")}); err != nil {
		t.Errorf("DEL of others took it: %v", err)
	}
}

func TestDelFreesAllRangesAlsoWhereOneIsMissing(t *testing.T) {
	s := New(t.TempDir())
	a, b, c := claim(t, "10.0.0.0/24"), claim(t, "10.0.1.0/24"), claim(t, "2001:db8::/64")
	o := owner("c", "p", "net1")
	if got := add(t, s, o, a, c); got != "10.0.0.1/24 2001:db8::1/64" {
		t.Errorf("got %s", got)
	}
	del(t, s, o, a.Pool, b.Pool, c.Pool)
	checkEmpty(t, s)
}

func TestDelFreesWhatTheConfigNoLongerNames(t *testing.T) {
	for name, pools := range map[string][]ipam.Pool{
		"another range":   {poolOf("10.7.0.0/24")},
		"no range at all": nil,
		"another space":   {{Space: "x", Prefix: netip.MustParsePrefix("10.0.0.0/24")}},
	} {
		s := New(t.TempDir())
		named := claim(t, "10.0.0.0/24")
		named.Pool.Space = "named"
		add(t, s, owner("c", "p", "net1"), named, claim(t, "10.0.2.0/24"))
		t.Log(name)
		del(t, s, owner("c", "p", "net1"), pools...)
		checkEmpty(t, s)
	}
}

// So a broken pool holds up only the pods that have an address in it.
func TestDelThatFindsItsAddressesReadsNoOtherPool(t *testing.T) {
	s, c := New(t.TempDir()), claim(t, "10.1.0.0/24")
	add(t, s, owner("x", "x", "net1"), claim(t, "10.0.0.0/24"))
	add(t, s, owner("c", "p", "net1"), c)
	write(t, file(s, poolFile), "{")
	del(t, s, owner("c", "p", "net1"), c.Pool)
	if err := s.Release(testContext, owner("c", "p", "net1"), []ipam.Pool{c.Pool}); failure.KindOf(err) != failure.BadRecord {
		t.Errorf("DEL that finds nothing says %v of the broken pool", err)
	}
}

func TestFileThatIsNoPoolIsPassedOver(t *testing.T) {
	s, c := New(t.TempDir()), claim(t, "10.0.0.0/24")
	add(t, s, owner("c", "p", "net1"), c)
	for _, name := range []string{"spaces.tar", "space/10.9.0.0_24", "space/notes"} {
		write(t, filepath.Join(s.path, name), "")
	}
	del(t, s, owner("c", "p", "net1"))
	if all, err := s.Allocations(testContext, c.Pool); len(all) > 0 || err != nil {
		t.Errorf("DEL left %v, %v", all, err)
	}
}

func TestAllocateOfSeveralRangesIsAllOrNothing(t *testing.T) {
	s := New(t.TempDir())
	full := claim(t, "10.0.1.0/30")
	for _, n := range []string{"1", "2"} {
		add(t, s, owner(n, n, "net1"), full)
	}
	_, err := s.Allocate(testContext, owner("c", "p", "net1"), []ipam.Claim{claim(t, "10.0.0.0/24"), full})
	var exhausted *ipam.ExhaustedError
	if !errors.As(err, &exhausted) || failure.KindOf(err) != failure.IPAM {
		t.Fatalf("got %v", err)
	}
	for _, n := range []string{"1", "2"} {
		del(t, s, owner(n, n, "net1"), full.Pool)
	}
	checkEmpty(t, s)
}

func TestOverlappingRangesShareNoAddress(t *testing.T) {
	s := New(t.TempDir())
	wide, narrow := claim(t, "10.0.0.0/16"), claim(t, "10.0.0.0/24")
	seen := map[string]bool{}
	for i := range 60 {
		c := wide
		if i%2 == 0 {
			c = narrow
		}
		got, _, _ := strings.Cut(add(t, s, owner(fmt.Sprint(i), fmt.Sprint(i), "net1"), c), "/")
		if seen[got] {
			t.Fatalf("%s twice", got)
		}
		seen[got] = true
	}
	// One pod, two interfaces, two pools: still two addresses.
	if a, b := add(t, s, owner("z", "z", "net1"), wide), add(t, s, owner("z", "z", "net2"), narrow); strings.TrimSuffix(a, "/16") == strings.TrimSuffix(b, "/24") {
		t.Errorf("%s and %s", a, b)
	}
}

func TestOverlappingRangesMayBeAllowed(t *testing.T) {
	s := New(t.TempDir())
	wide, narrow := claim(t, "10.0.0.0/16"), claim(t, "10.0.0.0/24")
	wide.Exclusive, narrow.Exclusive = false, false
	if a, b := add(t, s, owner("a", "a", "net1"), wide), add(t, s, owner("b", "b", "net1"), narrow); a != "10.0.0.1/16" || b != "10.0.0.1/24" {
		t.Errorf("%s and %s", a, b)
	}
}

func TestAddressSpacesAreApart(t *testing.T) {
	s := New(t.TempDir())
	a, b := claim(t, "10.0.0.0/24"), claim(t, "10.0.0.0/24")
	b.Pool.Space = "n"
	if x, y := add(t, s, owner("a", "a", "net1"), a), add(t, s, owner("b", "b", "net1"), b); x != y {
		t.Errorf("%s and %s", x, y)
	}
}

func TestRecordGivesWayToAReservationOfAnotherPool(t *testing.T) {
	s := New(t.TempDir())
	wide, narrow := claim(t, "10.0.0.0/16"), claim(t, "10.0.0.0/24")
	o := owner("c", "p", "net1")
	free := narrow
	free.Exclusive = false // as if killed before the reservation
	add(t, s, o, free)
	if got := add(t, s, owner("x", "x", "net1"), wide); got != "10.0.0.1/16" {
		t.Fatalf("%s", got)
	}
	if got := add(t, s, o, narrow); got != "10.0.0.2/24" {
		t.Errorf("got %s", got)
	}
	del(t, s, o, narrow.Pool)
	del(t, s, owner("x", "x", "net1"), wide.Pool)
	checkEmpty(t, s)
}

func TestReservationWithoutRecordHoldsNothing(t *testing.T) {
	s := New(t.TempDir())
	wide, narrow := claim(t, "10.0.0.0/16"), claim(t, "10.0.0.0/24")
	add(t, s, owner("x", "x", "net1"), wide)
	if err := os.Remove(filepath.Join(s.path, "space", "10.0.0.0_16", "10.0.0.1.json")); err != nil {
		t.Fatal(err)
	}
	if got := add(t, s, owner("c", "p", "net1"), narrow); got != "10.0.0.1/24" {
		t.Errorf("got %s", got)
	}
	if err := os.Remove(filepath.Join(s.path, "space", "10.0.0.0_16", "map-10.0.0.0")); err != nil {
		t.Fatal(err)
	}
	if got := add(t, s, owner("y", "y", "net1"), wide); got != "10.0.0.2/16" {
		t.Errorf("got %s", got)
	}
}

func TestManyForeignAddressesAreNoObstacle(t *testing.T) {
	s := New(t.TempDir())
	wide, narrow := claim(t, "10.0.0.0/16"), claim(t, "10.0.0.0/25")
	for i := range 100 {
		add(t, s, owner(fmt.Sprint(i), fmt.Sprint(i), "net1"), wide)
	}
	if got := add(t, s, owner("c", "p", "net1"), narrow); got != "10.0.0.101/25" {
		t.Errorf("got %s", got)
	}
	for i := range 25 {
		add(t, s, owner(fmt.Sprint("n", i), fmt.Sprint("n", i), "net1"), narrow)
	}
	if _, err := s.Allocate(testContext, owner("last", "last", "net1"), []ipam.Claim{narrow}); failure.KindOf(err) != failure.IPAM {
		t.Errorf("a full pool: %v", err)
	}
	del(t, s, owner("50", "50", "net1"), wide.Pool)
	if got := add(t, s, owner("last", "last", "net1"), narrow); got != "10.0.0.51/25" {
		t.Errorf("got %s", got)
	}
}

func TestRequestedAddress(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	o := owner("c", "p", "net1")
	if got := add(t, s, o, want(c, "10.0.0.77")); got != "10.0.0.77/24" {
		t.Errorf("got %s", got)
	}
	if got := add(t, s, o, want(c, "10.0.0.77")); got != "10.0.0.77/24" {
		t.Errorf("again: got %s", got)
	}
	add(t, s, owner("w", "w", "net1"), want(claim(t, "10.0.0.0/16"), "10.0.0.99"))
	for addr, text := range map[string]string{
		"10.0.0.77":  "ns/p holds it",
		"10.0.1.1":   "it is not in 10.0.0.0/24",
		"10.0.0.255": "it is not between",
		"10.0.0.99":  "another pool of the same address space holds it",
	} {
		_, err := s.Allocate(testContext, owner("d", "d", "net1"), []ipam.Claim{want(c, addr)})
		if failure.KindOf(err) != failure.IPAM || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if _, err := s.Allocate(testContext, o, []ipam.Claim{want(c, "10.0.0.78")}); err == nil || !strings.Contains(err.Error(), "already holds 10.0.0.77") {
		t.Errorf("a second wish: %v", err)
	}
	write(t, file(s, "10.0.0.77.json"), "{")
	for range 2 { // sets it aside, finds it set aside
		_, err := s.Allocate(testContext, owner("d", "d", "net1"), []ipam.Claim{want(c, "10.0.0.77")})
		if failure.KindOf(err) != failure.IPAM || !strings.Contains(err.Error(), ": it is taken") {
			t.Errorf("an address whose record cannot be read: %v", err)
		}
	}
}

func TestGCFreesOnlyWhatIsGoneOfItsOwnNetwork(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	of := func(network, id string) ipam.Owner {
		o := owner(id, id, "net1")
		o.Network = network
		return o
	}
	s.now = func() time.Time { return time.Now().Add(-time.Hour) }
	for _, o := range []ipam.Owner{of("a", "kept"), of("a", "gone"), of("b", "foreign")} {
		add(t, s, o, c)
	}
	s.now = func() time.Time { return time.Now().Add(time.Hour) }
	add(t, s, of("a", "younger"), c)
	s.now = time.Now
	if err := s.GC(testContext, "a", nil, []ipam.Attachment{{ContainerID: "kept", IfName: "net1"}, {ContainerID: "gone", IfName: "net2"}}); err != nil {
		t.Fatal(err)
	}
	for id, held := range map[string]bool{"kept": true, "gone": false, "foreign": true, "younger": true} {
		_, err := s.Check(testContext, of("", id), []ipam.Pool{c.Pool})
		if (err == nil) != held {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := s.GC(testContext, "b", nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Check(testContext, of("", "foreign"), []ipam.Pool{c.Pool}); err == nil {
		t.Error("an empty list kept an attachment")
	}
}

func TestGCGoesOnAfterACorruptRecord(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	s.now = func() time.Time { return time.Now().Add(-time.Hour) }
	for _, id := range []string{"a", "b"} {
		add(t, s, owner(id, id, "net1"), c)
	}
	s.now = time.Now
	write(t, file(s, "10.0.0.1.json"), "{")
	err := s.GC(testContext, "net", nil, nil)
	if failure.KindOf(err) != failure.BadRecord || !strings.Contains(err.Error(), "10.0.0.1.json") {
		t.Errorf("got %v", err)
	}
	if got := add(t, s, owner("x", "x", "net1"), c); got != "10.0.0.2/24" {
		t.Errorf("the sound record was not freed, or the corrupt one was: %s", got)
	}
}

func TestCorruptRecordIsSetAsideAndItsAddressStaysTaken(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "cut": `{"version":1,"addre`, "other address": `{"version":1,"address":"10.0.0.9/24","containerID":"c"}`,
		"no container": `{"version":1,"address":"10.0.0.1/24"}`, "no version": `{"address":"10.0.0.1/24","containerID":"c"}`, "null": "null",
	} {
		for _, verb := range []string{"ADD", "DEL"} {
			t.Run(name+" at "+verb, func(t *testing.T) {
				s := New(t.TempDir())
				c := claim(t, "10.0.0.0/24")
				o := owner("c", "p", "net1")
				add(t, s, o, c)
				write(t, file(s, "10.0.0.1.json"), content)
				do := func() error { return s.Release(testContext, o, []ipam.Pool{c.Pool}) }
				if verb == "ADD" {
					do = func() error { _, err := s.Allocate(testContext, o, []ipam.Claim{c}); return err }
				}
				err := do()
				if failure.KindOf(err) != failure.BadRecord || !strings.Contains(err.Error(), file(s, "10.0.0.1.json")) {
					t.Fatalf("got %v", err)
				}
				aside, globErr := filepath.Glob(file(s, "10.0.0.1.json.corrupt-*"))
				if globErr != nil || len(aside) != 1 || !strings.Contains(err.Error(), aside[0]) {
					t.Fatalf("set aside: %v, named in %v", aside, err)
				}
				if data, err := os.ReadFile(aside[0]); err != nil || string(data) != content {
					t.Errorf("%s has %q, %v", aside[0], data, err)
				}
				if err := do(); err != nil {
					t.Errorf("%s again: %v", verb, err)
				}
				for i := range 20 {
					if got := add(t, s, owner(fmt.Sprint(i), fmt.Sprint(i), "net1"), c); got == "10.0.0.1/24" {
						t.Fatal("the address was handed out")
					}
				}
				if err := os.Remove(file(s, "10.0.0.1.json")); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(file(s, "map-10.0.0.0")); err != nil {
					t.Fatal(err)
				}
				if got := add(t, s, owner("after", "after", "net1"), c); got != "10.0.0.1/24" {
					t.Errorf("after the cure: %s", got)
				}
			})
		}
	}
}

func TestRecordOfANewerVersionIsLeftAlone(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	o := owner("c", "p", "net1")
	add(t, s, o, c)
	const newer = `{"version":2,"address":"10.0.0.1/24","containerID":"c"}`
	write(t, file(s, "10.0.0.1.json"), newer)
	if err := s.Release(testContext, o, []ipam.Pool{c.Pool}); failure.KindOf(err) != failure.BadRecord || !strings.Contains(err.Error(), "newer version") {
		t.Errorf("got %v", err)
	}
	if data, err := os.ReadFile(file(s, "10.0.0.1.json")); err != nil || string(data) != newer {
		t.Errorf("it was changed: %q, %v", data, err)
	}
}

func TestPoolThatContradictsTheConfigIsRefused(t *testing.T) {
	for _, content := range []string{
		`{"version":1,"range":"10.0.0.0/25"}`, `{"version":1,"range":"10.0.0.0/24","networkName":"x"}`, `{"version":2,"range":"10.0.0.0/24"}`, `{`, ``,
	} {
		s := New(t.TempDir())
		c := claim(t, "10.0.0.0/24")
		add(t, s, owner("c", "p", "net1"), c)
		write(t, file(s, "pool.json"), content)
		_, err := s.Allocate(testContext, owner("d", "d", "net1"), []ipam.Claim{c})
		if failure.KindOf(err) != failure.BadRecord || !strings.Contains(err.Error(), file(s, "pool.json")) {
			t.Errorf("%s: %v", content, err)
		}
	}
}

// Otherwise each ADD would read the records of all addresses before it.
func TestMapHasTheTakenAddresses(t *testing.T) {
	s, c := New(t.TempDir()), claim(t, "10.0.0.0/24")
	for i := range 20 {
		add(t, s, owner(fmt.Sprint(i), fmt.Sprint(i), "net1"), c)
	}
	del(t, s, owner("4", "4", "net1"), c.Pool)
	data, err := os.ReadFile(file(s, "map-10.0.0.0"))
	if err != nil || len(data) != ipam.PageBytes {
		t.Fatal(len(data), err)
	}
	page := ipam.ParsePage((*[ipam.PageBytes]byte)(data))
	for i := range 1000 {
		if want := i >= 1 && i <= 20 && i != 5; page.Taken(i) != want {
			t.Errorf("address %d: %t", i, !want)
		}
	}
}

func TestMapHealsItself(t *testing.T) {
	ones := strings.Repeat("\xff", ipam.PageBytes)
	for name, damage := range map[string]func(t *testing.T, path string){
		"missing":   func(t *testing.T, path string) { t.Helper(); os.Remove(path) },
		"empty":     func(t *testing.T, path string) { t.Helper(); write(t, path, "") },
		"too short": func(t *testing.T, path string) { t.Helper(); write(t, path, ones[:100]) },
		"too long":  func(t *testing.T, path string) { t.Helper(); write(t, path, ones+ones) },
		"all free":  func(t *testing.T, path string) { t.Helper(); write(t, path, strings.Repeat("\x00", ipam.PageBytes)) },
		"all taken": func(t *testing.T, path string) { t.Helper(); write(t, path, ones) },
	} {
		t.Run(name, func(t *testing.T) {
			s := New(t.TempDir())
			c := claim(t, "10.0.0.0/28")
			for i := range 10 {
				add(t, s, owner(fmt.Sprint(i), fmt.Sprint(i), "net1"), c)
			}
			damage(t, filepath.Join(s.path, "space", "10.0.0.0_28", "map-10.0.0.0"))
			for i := 10; i < 14; i++ {
				if got, want := add(t, s, owner(fmt.Sprint(i), fmt.Sprint(i), "net1"), c), fmt.Sprintf("10.0.0.%d/28", i+1); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			if _, err := s.Allocate(testContext, owner("x", "x", "net1"), []ipam.Claim{c}); failure.KindOf(err) != failure.IPAM {
				t.Errorf("a full pool: %v", err)
			}
			for i := range 14 {
				del(t, s, owner(fmt.Sprint(i), fmt.Sprint(i), "net1"), c.Pool)
			}
			checkEmpty(t, s)
		})
	}
}

// The other pool has addresses within the range and outside of it, in any order.
func TestStatusCountsWhatOtherPoolsHaveReserved(t *testing.T) {
	for _, sameHost := range []bool{false, true} {
		s := New(t.TempDir())
		c, wide, there := claim(t, "10.0.0.0/30"), claim(t, "10.0.0.0/16"), "10.0.0."
		if sameHost {
			c.SameHost = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/30"), netip.MustParsePrefix("10.1.0.0/30")}
			wide, there = claim(t, "10.1.0.0/16"), "10.1.0."
		}
		for i, host := range []int{11, 12, 13, 14, 1, 2, 15, 16, 17, 18} {
			if err := s.Status(testContext, []ipam.Claim{c}); i <= 5 && err != nil {
				t.Errorf("an address is free: %v", err)
			}
			add(t, s, owner(fmt.Sprint("x", i), fmt.Sprint("x", i), "net1"), want(wide, fmt.Sprint(there, host)))
		}
		if err := s.Status(testContext, []ipam.Claim{c}); failure.KindOf(err) != failure.NotAvailable {
			t.Errorf("all are reserved: %v", err)
		}
	}
}

func TestStatusReadsTheRecords(t *testing.T) {
	s, c := New(t.TempDir()), claim(t, "10.0.0.0/30")
	c.Exclusive = false
	for _, id := range []string{"a", "b"} {
		add(t, s, owner(id, id, "net1"), c)
	}
	if err := os.Remove(filepath.Join(s.path, "space", "10.0.0.0_30", "map-10.0.0.0")); err != nil {
		t.Fatal(err)
	}
	if err := s.Status(testContext, []ipam.Claim{c}); failure.KindOf(err) != failure.NotAvailable {
		t.Errorf("a full pool without a map: %v", err)
	}
}

func TestAllocationsNameOwnersAndWhatCannotBeRead(t *testing.T) {
	s, c := New(t.TempDir()), claim(t, "10.0.0.0/24")
	for _, id := range []string{"a", "b", "c", "d"} {
		add(t, s, owner(id, id, "net1"), c)
	}
	write(t, file(s, "0.json"), "{}")
	write(t, file(s, "10.0.0.2.json"), "{")
	write(t, file(s, "10.0.0.3.json"), "{")
	if _, err := s.Allocate(testContext, owner("c", "c", "net1"), []ipam.Claim{c}); err == nil {
		t.Fatal("the record was not set aside")
	}
	got, err := s.Allocations(testContext, c.Pool)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, a := range got {
		text = append(text, a.Addr.String()+" "+a.Owner.ContainerID)
	}
	if got, want := strings.Join(text, ", "), "10.0.0.1 a, 10.0.0.2 , 10.0.0.3 , 10.0.0.4 d"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestStatusSaysWhetherAnAddressIsLeft(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/30")
	for _, id := range []string{"a", "b"} {
		if err := s.Status(testContext, []ipam.Claim{c}); err != nil {
			t.Errorf("before %s: %v", id, err)
		}
		add(t, s, owner(id, id, "net1"), c)
	}
	err := s.Status(testContext, []ipam.Claim{claim(t, "10.9.0.0/24"), c})
	if failure.KindOf(err) != failure.NotAvailable || !strings.Contains(err.Error(), "Could not allocate IP in range") {
		t.Errorf("full: %v", err)
	}
	del(t, s, owner("a", "a", "net1"), c.Pool)
	if err := s.Status(testContext, []ipam.Claim{c}); err != nil {
		t.Errorf("after DEL: %v", err)
	}
	// The other pool holds the remaining addresses.
	add(t, s, owner("w", "w", "net1"), want(claim(t, "10.0.0.0/24"), "10.0.0.1"))
	if err := s.Status(testContext, []ipam.Claim{c}); failure.KindOf(err) != failure.NotAvailable {
		t.Errorf("reserved elsewhere: %v", err)
	}
}

func TestUnusableStateDirectory(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "file")
	write(t, blocked, "")
	for _, path := range []string{blocked, "relative", filepath.Join(blocked, "below")} {
		s := New(path)
		if _, err := s.Allocate(testContext, owner("c", "p", "net1"), []ipam.Claim{claim(t, "10.0.0.0/24")}); err == nil || failure.KindOf(err) == failure.Internal {
			t.Errorf("ADD in %s: %v", path, err)
		}
		if err := s.Status(testContext, []ipam.Claim{claim(t, "10.0.0.0/24")}); failure.KindOf(err) != failure.NotAvailable {
			t.Errorf("STATUS in %s: %v", path, err)
		}
	}
}

func TestContextBoundsTheWaitForALock(t *testing.T) {
	s := New(t.TempDir())
	c := claim(t, "10.0.0.0/24")
	add(t, s, owner("c", "p", "net1"), c)
	p, err := s.openPool(testContext, c.Pool, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if err := p.acquire(testContext); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(testContext, 20*time.Millisecond)
	defer cancel()
	if _, err := s.Allocate(ctx, owner("d", "d", "net1"), []ipam.Claim{c}); failure.KindOf(err) != failure.TryAgain {
		t.Errorf("got %v", err)
	}
}

func TestReboot(t *testing.T) {
	dir := testnet.OnDisk(t)
	s := New(dir)
	if d, err := statefile.Open(dir); err != nil || !d.Durable() {
		t.Fatalf("the directory does not outlive a reboot, %v", err)
	}
	c := claim(t, "10.0.0.0/24")
	for _, id := range []string{"a", "b"} {
		add(t, s, owner(id, id, "net1"), c)
	}
	s.bootID = filepath.Join(dir, "boot_id")
	write(t, s.bootID, "another boot\n")
	if got := add(t, s, owner("c", "c", "net1"), c); got != "10.0.0.1/24" {
		t.Errorf("addresses of the last boot are still taken: %s", got)
	}
	if got := add(t, s, owner("d", "d", "net1"), c); got != "10.0.0.2/24" {
		t.Errorf("the second use of this boot emptied it again: %s", got)
	}
}

func TestParallelAddsAndDels(t *testing.T) {
	s := New(t.TempDir())
	wide, narrow := claim(t, "10.0.0.0/16"), claim(t, "10.0.0.0/24")
	var mu sync.Mutex
	holder := map[string]int{}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 15 {
				o := owner(fmt.Sprint(i), fmt.Sprint(i), fmt.Sprint("net", n%3))
				c := []ipam.Claim{wide, narrow}[(i+n)%2]
				got, err := s.Allocate(testContext, o, []ipam.Claim{c})
				if err != nil {
					t.Error(err)
					return
				}
				text := got[0].Addr().String()
				mu.Lock()
				if was, taken := holder[text]; taken {
					t.Errorf("%s has two holders: %d and %d", text, was, i)
				}
				holder[text] = i
				mu.Unlock()
				mu.Lock()
				delete(holder, text)
				mu.Unlock()
				if err := s.Release(testContext, o, []ipam.Pool{c.Pool}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	checkEmpty(t, s)
}

func TestPoolDirectoriesNameTheirNetwork(t *testing.T) {
	for _, p := range []string{"10.0.0.0/24", "2001:db8::/64", "::/0", "0.0.0.0/0"} {
		prefix := netip.MustParsePrefix(p)
		if back, ok := poolPrefix(poolDir(prefix)); !ok || back != prefix {
			t.Errorf("%s became %v", p, back)
		}
	}
	for name, want := range map[string]bool{
		"10.0.0.1.json": true, "2001:db8::1.json": true,
		"2001:DB8::1.json": false, "2001:db8:0::1.json": false, "10.0.0.1": false, "x.json": false,
	} {
		if a, ok := recordAddr(name); ok != want {
			t.Errorf("%q is the record of %v: %t", name, a, ok)
		}
	}
	for _, name := range []string{"reserved", "10.0.0.1_24", "10.0.0.0/24", "", "x_24"} {
		if p, ok := poolPrefix(name); ok {
			t.Errorf("%q became %v", name, p)
		}
	}
}

func TestRecordSaysWhatAPersonWantsToKnow(t *testing.T) {
	s := New(t.TempDir())
	s.now = func() time.Time { return time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC) }
	add(t, s, owner("c1", "p", "net1"), claim(t, "10.0.0.0/24"))
	data, err := os.ReadFile(file(s, "by-pod/ns%2Fp@net1"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "version": 1,
  "address": "10.0.0.1/24",
  "network": "net",
  "containerID": "c1",
  "podref": "ns/p",
  "ifname": "net1",
  "since": "2026-05-04T03:02:01Z"
}
`
	if string(data) != want {
		t.Errorf("got %s", data)
	}
	for _, reserved := range []string{file(s, "by-attachment/c1@net1"), filepath.Join(s.path, "space", "reserved", "10.0.0.1")} {
		if same, err := os.ReadFile(reserved); err != nil || !reflect.DeepEqual(same, data) {
			t.Errorf("%s does not lead there: %v", reserved, err)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"address":"10.0.0.1/24","network":"n","containerID":"c","podref":"ns/p","ifname":"net1","since":"2026-05-04T03:02:01Z"}`))
	f.Add([]byte(`{"version":1,"address":"10.0.0.1/24","setAside":"x"}`))
	f.Add([]byte(`{"version":9}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		addr := netip.MustParseAddr("10.0.0.1")
		r, err := parseRecord(data, addr)
		if (r == nil) == (err == nil) {
			t.Fatalf("%v, %v", r, err)
		}
		if err == nil && (r.Version != recordVersion || r.SetAside == "" && r.ContainerID == "") {
			t.Errorf("accepted %+v", r)
		}
	})
}
