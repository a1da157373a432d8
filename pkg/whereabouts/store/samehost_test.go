package store

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/pooltest"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

const testRails = 4

// onRail returns the claim of an address on a rail.
func onRail(t testing.TB, space string, rail int) ipam.Claim {
	t.Helper()
	c := pooltest.Claim(t, space, fmt.Sprintf("10.%d.0.0/24", rail))
	for i := range testRails {
		c.SameHost = append(c.SameHost, netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", i)))
	}
	return c
}

// railPod returns the interface of a pod on a rail.
func railPod(pod, rail int) ipam.Owner {
	o := pooltest.Pod(pod)
	o.IfName = fmt.Sprint("net", rail)
	return o
}

// addRails adds a pod on the rails, and returns its host part.
func (n *node) addRails(space string, pod int, rails ...int) int {
	n.t.Helper()
	host := -1
	for _, rail := range rails {
		b := n.add(railPod(pod, rail), onRail(n.t, space, rail))[0].Addr().As4()
		if host < 0 {
			host = int(b[3])
		}
		if int(b[1]) != rail || int(b[3]) != host {
			n.t.Errorf("pod %d on rail %d has %v, and the host part %d elsewhere", pod, rail, b, host)
		}
	}
	return host
}

func (n *node) delRails(space string, pod int) {
	n.t.Helper()
	for rail := range testRails {
		n.del(railPod(pod, rail), onRail(n.t, space, rail).Pool)
	}
}

func railPools(t testing.TB, space string) (pools []ipam.Pool) {
	for rail := range testRails {
		pools = append(pools, onRail(t, space, rail).Pool)
	}
	return pools
}

func TestHostPartIsEnteredInThePoolOfEachRail(t *testing.T) {
	n := newNode(t)
	host := n.addRails("rails", 0, 0, 1, 2, 3)
	for rail, pool := range railPools(t, "rails") {
		want := map[string]api.Entry{fmt.Sprint(host): api.NewEntry(railPod(0, rail))}
		if got := entries(t, pool); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("rail %d: %v, want %v", rail, got, want)
		}
	}
	if got := reservations(t, "rails"); len(got) != testRails {
		t.Errorf("reservations: %v", got)
	}
	// The rails after the first ask for it without a look at the others.
	began := time.Now()
	n.addRails("rails", 1, 0)
	first := len(pooltest.RequestsSince(t, plane, began))
	began = time.Now()
	n.addRails("rails", 1, 1)
	if later := len(pooltest.RequestsSince(t, plane, began)); later != 3 || first != later+2*testRails {
		t.Errorf("%d requests for the first rail, %d for the next: want 3, and a look at the pools and reservations of %d rails before", first, later, testRails)
	}
	n.delRails("rails", 0)
	n.delRails("rails", 1)
	wantEmpty(t, railPools(t, "rails")...)
}

func TestHostPartThatIsTakenOnOneRailIsNotChosen(t *testing.T) {
	n := newNode(t)
	taken := map[int]bool{}
	for i := range 100 {
		a := n.add(pooltest.Pod(1000+i), pooltest.Claim(t, "taken", fmt.Sprintf("10.%d.0.0/24", i%testRails)))[0].Addr().As4()
		taken[int(a[3])] = true
	}
	// Another pool of the address space has a reservation.
	for i := 26; i < 254; i += 2 {
		createReservation(t, fmt.Sprintf("taken-10.3.0.%d", i), pooltest.Pod(2000))
		taken[i] = true
	}
	for pod := range 4 {
		if host := n.addRails("taken", pod, pod, (pod+3)%testRails, 3-pod); taken[host] {
			t.Errorf("pod %d has the host part %d, which is taken on a rail", pod, host)
		} else {
			taken[host] = true
		}
	}
}

func TestHostPartThatIsTakenMeanwhileEndsTheSandbox(t *testing.T) {
	n := newNode(t)
	host := n.addRails("meanwhile", 0, 0, 1)
	other := pooltest.Claim(t, "meanwhile", "10.2.0.0/24")
	other.Want = netip.MustParseAddr(fmt.Sprintf("10.2.0.%d", host))
	n.add(pooltest.Pod(9), other)
	_, err := n.Allocate(pooltest.Context(t), railPod(0, 2), []ipam.Claim{onRail(t, "meanwhile", 2)})
	if failure.KindOf(err) != failure.TryAgain || !strings.Contains(err.Error(), "default/pod-9 holds it") || !strings.Contains(err.Error(), "next sandbox") {
		t.Errorf("%v", err)
	}
	n.delRails("meanwhile", 0)
	if again := n.addRails("meanwhile", 0, 0, 1, 2, 3); again == host {
		t.Errorf("the next sandbox has the same host part, %d", again)
	}
}

func TestRequestedAddressWithAnotherHostPartIsRefused(t *testing.T) {
	n := newNode(t)
	host := n.addRails("wanted", 0, 0)
	c := onRail(t, "wanted", 1)
	c.Want = netip.MustParseAddr(fmt.Sprintf("10.1.0.%d", host+1))
	if got, err := n.Allocate(pooltest.Context(t), railPod(0, 1), []ipam.Claim{c}); failure.KindOf(err) != failure.IPAM || !strings.Contains(fmt.Sprint(err), "asks for 10.1.0.") {
		t.Errorf("got %v, %v", got, err)
	}
	n.delRails("wanted", 0)
	wantEmpty(t, railPools(t, "wanted")...)
}

func TestHostPartIsFoundWithoutNotes(t *testing.T) {
	n := newNode(t)
	host := n.addRails("unnoted", 0, 2)
	forget := func() {
		t.Helper()
		names, err := n.notes.dir.List(noteSuffix)
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			if err := n.notes.dir.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	forget()
	if got := n.addRails("unnoted", 0, 0, 1, 3); got != host {
		t.Errorf("host part %d, and %d on the other rails", host, got)
	}
	for _, noted := range []bool{true, false} {
		if !noted {
			forget()
		}
		_, err := n.Allocate(pooltest.Context(t), railPod(0, 9), []ipam.Claim{onRail(t, "unnoted", 1)})
		if failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), "net9 of default/pod-0 is on the rail of net1") {
			t.Errorf("two interfaces on one rail: %v", err)
		}
	}
	n.delRails("unnoted", 0)
	wantEmpty(t, railPools(t, "unnoted")...)
}

func TestConcurrentPodsOfNodesHaveHostPartsOfTheirOwn(t *testing.T) {
	nodes := []*node{newNode(t), newNode(t)}
	var mu sync.Mutex
	pods := map[int]int{} // by host part
	pooltest.Parallel(12, func(pod int) {
		n := nodes[pod%2]
		var hosts [testRails]int
		pooltest.Parallel(testRails, func(rail int) {
			got, err := n.Allocate(pooltest.Context(t), railPod(pod, rail), []ipam.Claim{onRail(t, "at-once", rail)})
			if err != nil {
				if failure.KindOf(err) != failure.TryAgain { // another node was quicker
					t.Error(err)
				}
				return
			}
			hosts[rail] = int(got[0].Addr().As4()[3])
		})
		mu.Lock()
		defer mu.Unlock()
		for _, host := range hosts {
			if host == 0 {
				continue
			}
			if other, some := pods[host]; some && other != pod && (other-pod)%2 == 0 {
				t.Errorf("pods %d and %d of one node have the host part %d", other, pod, host)
			}
			pods[host] = pod
		}
		for rail, host := range hosts {
			if host != 0 && hosts[0] != 0 && host != hosts[0] {
				t.Errorf("pod %d has %d on rail 0, and %d on rail %d", pod, hosts[0], host, rail)
			}
		}
	})
	for pod := range 12 {
		nodes[pod%2].delRails("at-once", pod)
	}
	wantEmpty(t, railPools(t, "at-once")...)
}

func TestNewSandboxOfAPodKeepsItsHostPart(t *testing.T) {
	n := newNode(t)
	host := n.addRails("sandbox", 0, 0, 1, 2, 3)
	next := func(rail int) ipam.Owner {
		o := railPod(0, rail)
		o.ContainerID = strings.Repeat("f", 64)
		return o
	}
	for _, rail := range []int{2, 0, 1, 3} { // no DEL has come
		if got := n.add(next(rail), onRail(t, "sandbox", rail))[0].Addr().As4(); int(got[3]) != host {
			t.Errorf("rail %d: %v, want the host part %d", rail, got, host)
		}
	}
	n.delRails("sandbox", 0) // late
	for rail, pool := range railPools(t, "sandbox") {
		if got := entries(t, pool)[fmt.Sprint(host)]; got != api.NewEntry(next(rail)) {
			t.Errorf("rail %d: %+v", rail, got)
		}
		n.del(next(rail), pool)
	}
	wantEmpty(t, railPools(t, "sandbox")...)
}

func TestChoiceOfAKilledProcessIsForgotten(t *testing.T) {
	n := newNode(t)
	dir, err := n.dir.Sub(hostsDir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	path := filepath.Join(dir.Path(), statefile.Name(railPod(5, 0).ContainerID, "net0", "0.0.0.5")+hostSuffix)
	leave := func() {
		t.Helper()
		text := fmt.Sprintf(`{"host":{"Space":"killed-rails","Node":%q,"Prefix":"0.0.0.0/24"},"address":"0.0.0.5","owner":{"ContainerID":%q,"IfName":"net0"}}`, ipam.HostNode, railPod(5, 0).ContainerID)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := onRail(t, "killed-rails", 0)
	leave()
	n.del(railPod(5, 0), c.Pool)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after the DEL: %v", err)
	}
	leave()
	n.addRails("killed-rails", 6, 0)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after another pod's ADD: %v", err)
	}
	// One of a process that lives counts.
	leave()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	posted, err := dir.Post(filepath.Base(path), data)
	if err != nil {
		t.Fatal(err)
	}
	all, err := choices(dir, ipam.HostPool(c.Pool))
	if err != nil || len(all) != 1 || all[0].Addr.String() != "0.0.0.5" {
		t.Errorf("%+v, %v", all, err)
	}
	if got := n.add(railPod(5, 1), onRail(t, "killed-rails", 1)); got[0].String() != "10.1.0.5/24" {
		t.Errorf("%s, while another rail is about to take the host part 5", got)
	}
	_ = posted.UnlockAndRemove()
}

func TestPoolsOfRailsThatAreDividedAreRefused(t *testing.T) {
	n := newNode(t)
	if err := api.GuardRail(pooltest.Context(t), n.client, onRail(t, "mixed", 3).Pool, 16); err != nil {
		t.Fatal(err)
	}
	_, err := n.Allocate(pooltest.Context(t), railPod(0, 0), []ipam.Claim{onRail(t, "mixed", 0)})
	if failure.KindOf(err) != failure.InvalidConfig || !strings.Contains(err.Error(), "mixed-10.3.0.0-24 is divided into blocks") {
		t.Errorf("%v", err)
	}
}
