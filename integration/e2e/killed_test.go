package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// nothingIsLost kills kubelets, containerd and rail-agent at random, and starts
// them again, while pods with all rails come and go.
func nothingIsLost(t *testing.T, l *lab) {
	rounds := 1
	switch {
	case os.Getenv("RAIL_CNI_E2E") == "full":
		rounds = 50
	case need.Full():
		rounds = 4
	}
	seed := need.Seed()
	t.Logf("%d rounds, seed %d", rounds, seed)
	random := rand.New(rand.NewPCG(seed, 0))

	agent := filepath.Join(testnet.Bin(t), "rail-agent")
	var victims []victim
	for _, n := range l.Nodes() {
		start := func(ctx context.Context) error { return startAgent(ctx, n, agent) }
		if err := start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.KillDaemon("rail-agent") })
		victims = append(victims,
			victim{"kubelet of " + n.Name, n.KillKubelet, n.StartKubelet},
			victim{"containerd of " + n.Name, n.KillContainerd, n.StartContainerd},
			victim{"rail-agent of " + n.Name, func() { n.KillDaemon("rail-agent") }, start},
		)
	}
	networks := "rdma-net-ipam"
	for k := range 8 {
		networks += fmt.Sprintf(",roce-net-%d", k+1)
	}
	kills := 0
	for round := range rounds {
		pods := []pod{{fmt.Sprintf("round-%d-1", round), 0, networks}, {fmt.Sprintf("round-%d-2", round), 1, networks}}
		kills += whileKilling(t, random, victims, func() { l.run(t, pods...) })
		for _, p := range pods {
			if entries := l.status(t, p.name); len(entries) != 10 {
				t.Errorf("network-status of %s: %+v", p.name, entries)
			}
		}
		if got := len(l.held(t)); got != 2*9*len(pods) {
			t.Errorf("%d entries and reservations for %d pods: %v", got, len(pods), l.held(t))
		}
		kills += whileKilling(t, random, victims, func() { l.delete(t, pods[0].name, pods[1].name) })
		// The kubelet may have to try again, while the agent works at once.
		var left []string
		for deadline := time.Now().Add(time.Minute); ; {
			if left = l.left(t); len(left) == 0 {
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("after round %d and %d kills this is left:\n%s", round, kills, strings.Join(left, "\n"))
			}
		}
	}
	t.Logf("%d kills", kills)
}

// victim is a daemon to kill.
type victim struct {
	name  string
	kill  func()
	start func(context.Context) error
}

// killsAtMost bounds the kills during one action, so that it completes even if
// everything is slow.
const killsAtMost = 5

// whileKilling kills one daemon after another until the work is done, starts
// each again after a moment, and returns the number of kills. All run at the
// end.
func whileKilling(t *testing.T, random *rand.Rand, victims []victim, work func()) int {
	t.Helper()
	done, killed := make(chan struct{}), make(chan int)
	pause := func(most time.Duration) (over bool) {
		select {
		case <-done:
			return true
		case <-time.After(time.Duration(random.Int64N(int64(most)))):
			return false
		}
	}
	go func() {
		kills := 0
		for ; kills < killsAtMost && !pause(4*time.Second); kills++ {
			v := victims[random.IntN(len(victims))]
			v.kill()
			pause(time.Second)
			if err := v.start(context.Background()); err != nil {
				t.Errorf("%s after it was killed: %v", v.name, err)
			}
		}
		killed <- kills
	}()
	kills := 0
	func() {
		defer func() { // also if the work fails the test, which ends this goroutine
			close(done)
			kills = <-killed
		}()
		work()
	}()
	return kills
}

// startAgent starts a node's rail-agent, and waits until it has examined
// everything.
func startAgent(ctx context.Context, n *cluster.Node, binary string) error {
	socket := n.Path("/run/rail-cni/agent.sock")
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	return n.StartDaemon(ctx, "rail-agent", nil, []string{binary, "run"}, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/readyz", nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("it is not ready: %s", answer.Status)
		}
		return nil
	})
}
