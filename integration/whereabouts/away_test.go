package whereabouts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/timing"
)

// outage is how long the API server is down: a minute with
// RAIL_CNI_FAULTS=full.
func outage() time.Duration {
	if os.Getenv("RAIL_CNI_FAULTS") == "full" {
		return time.Minute
	}
	return 10 * time.Second
}

const (
	awayNodes = 2

	// delGoal is for a DEL beside others. Ten times that is the kubelet's limit for a call
	// of its runtime.
	delGoal = 12 * time.Second
	// freedGoal is for the time until everything is free after the server's return: the agent
	// replays the journal every half minute.
	freedGoal = 45 * time.Second
)

// awayPods is the number of pods that end while there is no server.
var awayPods = need.Either(40, 100)

// TestAgentsAloneFreeWhatWasDeletedWhileTheServerWasAway ends pods on two nodes while there is
// no API server. Their DELs succeed, and when the server is back only the nodes' agents run.
// The Pods still exist in the API, so the DELs' journal frees the addresses, not the
// reconciler.
func TestAgentsAloneFreeWhatWasDeletedWhileTheServerWasAway(t *testing.T) {
	namespace := newNamespace(t)
	pods := namespace + "-pods"
	mustCreate(t, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": pods}})
	var nodes [awayNodes]*awayNode
	for i := range nodes {
		nodes[i] = newAwayNode(t, namespace)
	}
	var dels []func()
	var mu sync.Mutex
	var longest time.Duration // of the DELs
	for i := range awayPods {
		name := fmt.Sprint("pod-", i)
		mustCreate(t, "/api/v1/namespaces/"+pods+"/pods", map[string]any{
			"metadata": map[string]any{"name": name},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none"}}, "automountServiceAccountToken": false},
		})
		n := nodes[i%awayNodes]
		pod := testnet.NewNetns(t, "pod")
		call := testnet.Call{
			Plugin: "macvlan", Verb: "ADD", ContainerID: fmt.Sprintf("%064x", i), IfName: "net1", Netns: "/run/netns/" + pod.Name, Path: testnet.Bin(t),
			Args:   fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s", pods, name),
			Config: n.config(t, "1.0.0", `{"range":"10.0.0.0/16"}`, `"master":"ens1"`),
		}
		n.net.MustRun(call)
		dels = append(dels, func() {
			began := time.Now()
			if _, err := n.net.Run(call.With("DEL")); err != nil {
				t.Errorf("DEL of %s: %v", name, err)
			}
			mu.Lock()
			longest = max(longest, time.Since(began))
			mu.Unlock()
			pod.Kill()
		})
	}
	for _, n := range nodes {
		n.start(t, "run", "--metrics", "off", "--socket", "off")
		n.start(t, "ipam")
	}
	if entries, reserved := holders(t, namespace); len(entries) != awayPods || len(reserved) != awayPods {
		t.Fatalf("%d entries and %d reservations for %d pods", len(entries), len(reserved), awayPods)
	}

	plane.KillAPIServer()
	began := time.Now()
	var all sync.WaitGroup
	for _, del := range dels {
		all.Go(del)
	}
	all.Wait()
	deleted := time.Since(began)
	timing.Check(t, "the longest DEL", longest, delGoal)
	time.Sleep(time.Until(began.Add(outage())))
	journalled := 0
	for _, n := range nodes {
		if at := n.journalled(t); at > 0 {
			journalled += at
		} else {
			t.Errorf("node %s has nothing in its journal", n.net.Name)
		}
		if left := n.files(t, "state", "attachments", "*.json"); len(left) > 0 {
			t.Errorf("attachments that have not ended: %q", left)
		}
	}
	if err := plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	away, back := time.Since(began), time.Now()
	if entries, _ := holders(t, namespace); journalled < len(entries) {
		t.Errorf("%d addresses are held, and %d wait to be freed", len(entries), journalled)
	}
	for {
		entries, reserved := holders(t, namespace)
		waiting := 0
		for _, n := range nodes {
			waiting += n.journalled(t)
		}
		if len(entries)+len(reserved)+waiting == 0 {
			break
		}
		if took := time.Since(back); took > timing.Width*freedGoal {
			t.Fatalf("%v after the server's return %d entries, %d reservations and %d DELs in journals are left", took, len(entries), len(reserved), waiting)
		}
		time.Sleep(100 * time.Millisecond)
	}
	timing.Check(t, "the end of all addresses after the server's return", time.Since(back), freedGoal)
	t.Logf("%d DELs in %v, %d of them journalled; the server was away for %v",
		awayPods, deleted.Round(time.Millisecond), journalled, away.Round(time.Second))
	for _, n := range nodes {
		if d := n.net.Settled(n.before); d != "" {
			t.Errorf("node %s is not as it was:\n%s", n.net.Name, d)
		}
	}
}

// awayNode is a node with a netns of its own, in which the API server answers.
type awayNode struct {
	*node
	net    *testnet.Netns
	before string
}

func newAwayNode(t *testing.T, namespace string) *awayNode {
	t.Helper()
	n := &awayNode{node: newNode(t, namespace), net: testnet.NewNetns(t, "node")}
	n.net.NIC("ens1", testnet.NewNetns(t, "wire"))
	n.before = n.net.State()
	stop, err := plane.Reach("/run/netns/" + n.net.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return n
}

// start runs the agent with the node's state and credentials until the test's
// end, when it must end by itself.
func (n *awayNode) start(t *testing.T, command ...string) {
	t.Helper()
	args := append([]string{"netns", "exec", n.net.Name, filepath.Join(testnet.Bin(t), "rail-agent")}, command...)
	cmd := exec.Command("ip", append(args, "--state-dir", filepath.Join(n.dir, "state"), "--kubeconfig", filepath.Join(n.dir, "kubeconfig"))...)
	log, err := os.Create(filepath.Join(n.dir, command[0]+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // the exit code is checked next
		if err := cmd.Wait(); err != nil {
			t.Errorf("rail-agent %s: %v", command[0], err)
		}
		if text, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("rail-agent %s said: %s%v", command[0], text, err)
		}
		log.Close()
	})
}

func (n *awayNode) journalled(t *testing.T) int {
	t.Helper()
	return len(n.files(t, "state", "ipam-journal", "*.free"))
}

// files returns the node's files that match a pattern.
func (n *awayNode) files(t *testing.T, pattern ...string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(append([]string{n.dir}, pattern...)...))
	if err != nil {
		t.Fatal(err)
	}
	return found
}
