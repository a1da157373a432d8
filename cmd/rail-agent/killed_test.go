package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// TestAgentThatIsKilledAllTheTimeLosesNothing kills the agent a hundred times while pods are
// created, are deleted, and die. At the end every attachment must have ended, every address must be
// free, and the host must be as before.
func TestAgentThatIsKilledAllTheTimeLosesNothing(t *testing.T) {
	const kills, workers, patience = 100, 3, 15 * time.Second
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	before := l.node.State()
	var over atomic.Bool
	var added, ended, died atomic.Int64
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for i := 0; !over.Load(); i++ {
				l.onePod(fmt.Sprintf("w%d-%d", w, i), random.IntN(3) == 0, &added, &ended, &died)
			}
		})
	}
	random := rand.New(rand.NewPCG(2, 0))
	began := time.Now()
	for range kills {
		a := l.launch()
		// The agent is killed at a random moment, from before it has opened the ledger to the
		// middle of its work.
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		a.end(syscall.SIGKILL)
	}
	took := time.Since(began)
	over.Store(true)
	all.Wait()
	t.Logf("%d kills in %v, among %d ADDs, %d DELs, %d pods' deaths; %d records left for the last agent",
		kills, took.Round(time.Millisecond), added.Load(), ended.Load(), died.Load(), len(l.records()))
	if died.Load() == 0 || ended.Load() == 0 {
		t.Error("there was no load")
	}
	a := l.start()
	await(t, "the last records' end", patience, func() bool { return len(l.records()) == 0 })
	if d := l.node.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
	if code, body := a.get("/readyz"); code != http.StatusOK {
		t.Error(code, body)
	}
	// Every address is free again: a new pool assigns the lowest first.
	for i := range 3 {
		pod := testnet.NewNetns(t, fmt.Sprint("last", i))
		out := l.node.MustRun(l.call("macvlan", "ADD", "ens1", pod, "net1"))
		addressOf(t, out, fmt.Sprintf("10.9.0.%d/24", i+1))
	}
}

// onePod runs a pod with a macvlan and a lent veth. The pod ends either by DELs or by the death of
// its netns.
func (l *lab) onePod(name string, delete bool, added, ended, died *atomic.Int64) {
	pod := testnet.NewNetns(l.t, name)
	nic := "v" + name
	l.node.IP("link", "add", nic, "type", "veth", "peer", "name", nic+"p", "netns", pod.Name)
	calls := []testnet.Call{l.call("macvlan", "ADD", "ens1", pod, "net1"), l.call("host-device", "ADD", nic, pod, "net2")}
	for _, c := range calls {
		if _, err := l.node.Run(c); err != nil {
			l.t.Errorf("%s of %s: %v", c.Plugin, name, err)
		}
		added.Add(1)
	}
	if delete {
		for _, c := range calls {
			if _, err := l.node.Run(c.With("DEL")); err != nil {
				l.t.Errorf("DEL: %s of %s: %v", c.Plugin, name, err)
			}
			ended.Add(1)
		}
		l.node.IP("link", "del", nic)
	}
	pod.Kill()
	died.Add(1)
}
