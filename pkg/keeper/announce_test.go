package keeper

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// A link can be down for days: it is looked at less and less often.
func TestLinksThatStayDownAreLookedAtLessAndLess(t *testing.T) {
	k, r := newStuckKeeper(t)
	a := newAnnouncer(k)
	now := time.Now()
	if next := a.scan(now); next != now.Add(slow) || len(a.late) != 0 {
		t.Errorf("without such a link: next look after %v", next.Sub(now))
	}
	r.Phase, r.Link = ledger.Lent, &ledger.Link{}
	if err := k.node.Ledger.Put(r); err != nil {
		t.Fatal(err)
	}
	began, looks := now, 0
	for ; now.Before(began.Add(time.Hour)); looks++ {
		next := a.scan(now)
		age := now.Sub(began)
		if pause := next.Sub(now); pause < firstLinkCheck || pause > max(firstLinkCheck, min(age/linkCheckRatio, slow)) {
			t.Fatalf("after %v the next look is %v later", age, pause)
		}
		if again := a.scan(now.Add(time.Millisecond)); !again.Equal(next) {
			t.Errorf("a changed record makes it look %v later", again.Sub(next))
		}
		now = next
	}
	if looks > 250 {
		t.Errorf("%d looks in an hour", looks)
	}
	if err := k.node.Ledger.Remove(r); err != nil {
		t.Fatal(err)
	}
	if a.scan(now); len(a.late) != 0 {
		t.Error("it remembers an attachment that has ended")
	}
}

// A DaemonSet of the user's own may have the capabilities of an earlier version.
func TestAgentWithoutTheCapabilityToAnnounceSaysSoOnce(t *testing.T) {
	k, r := newStuckKeeper(t)
	pod, wire := testnet.NewNetns(t, "pod"), testnet.NewNetns(t, "wire")
	pod.NIC("net1", wire)
	l, err := link.ByName(pod.Netns, "net1")
	if err != nil {
		t.Fatal(err)
	}
	r.Phase, r.Link, r.MAC, r.Addresses = ledger.Lent, &ledger.Link{}, l.MAC.String(), []string{"10.9.0.1/24"}
	r.Child.PodIndex, r.Netns = l.Index, ledger.Netns{ID: pod.ID, Path: "/run/netns/" + pod.Name}
	if err := k.node.Ledger.Put(r); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	a := newAnnouncer(k)
	a.log = slog.New(slog.NewTextHandler(&said, nil))
	now := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and the thread ends with the goroutine
		dropNetRaw(t)
		a.scan(now)
		a.scan(now.Add(slow))
	}()
	<-done
	if text := said.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "NET_RAW") {
		t.Errorf("it said: %s", text)
	}
}

// dropNetRaw takes CAP_NET_RAW from the calling thread.
func dropNetRaw(t *testing.T) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	sets[0].Effective &^= 1 << unix.CAP_NET_RAW
	if err == nil {
		err = unix.Capset(&header, &sets[0])
	}
	if err != nil {
		t.Error(err)
	}
}
