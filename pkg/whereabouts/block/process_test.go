package block

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// processVar is set, to a [task] as JSON, in a process of this test binary that the model
// may kill.
const processVar = "RAIL_CNI_BLOCK_PROCESS"

// task is what a process does for a node: Verb is ADD, DEL, or KEEP for a pass of the
// keeper.
type task struct {
	Verb              string
	Owner             ipam.Owner // of ADD and DEL
	Space             string
	Prefix            netip.Prefix
	Kubeconfig, State string
	Node, Boot        string
	Passed            time.Duration // how far the node's clock is ahead of the real one
	Within            time.Duration // bound of ADD and KEEP
}

// runTask runs the task in text, and returns the exit code. It prints the address of an ADD,
// or the error.
func runTask(text string) (code int) {
	var k task
	err := json.Unmarshal([]byte(text), &k)
	if err == nil {
		err = k.run()
	}
	if err != nil {
		fmt.Print(err)
		return 1
	}
	return 0
}

func (k task) run() error {
	client, err := kube.Open(kube.Config{Kubeconfig: k.Kubeconfig, UserAgent: "test-process", RetryFor: RetryFor})
	if err != nil {
		return err
	}
	s, err := New(Options{Client: client, Kubeconfig: k.Kubeconfig, StateDir: k.State, Node: k.Node, Size: testSize})
	if err != nil {
		return err
	}
	defer s.Close()
	s.now = func() moment { return now() + moment(k.Passed) }
	s.self.Boot = k.Boot
	pool := ipam.Pool{Space: k.Space, Prefix: k.Prefix}
	ctx, cancel := context.WithTimeout(context.Background(), k.Within)
	defer cancel()
	switch k.Verb {
	case "ADD":
		rng, err := ipam.NewRange(ipam.RangeSpec{Prefix: k.Prefix})
		if err != nil {
			return err
		}
		got, err := s.Allocate(ctx, k.Owner, []ipam.Claim{{Pool: pool, Range: rng, Exclusive: true}})
		if err == nil {
			fmt.Print(got[0])
		}
		return err
	case "DEL":
		return s.Release(context.Background(), k.Owner, []ipam.Pool{pool})
	default:
		keeper := &Keeper{
			StateDirs: []string{k.State}, Log: slog.New(slog.DiscardHandler), now: s.now, boot: k.Boot,
			Open: func(string, string) (*kube.Client, error) { return client, nil },
		}
		return keeper.Pass(ctx)
	}
}

// victim is a process that a proxy kills at one of its requests.
type victim struct {
	process *os.Process
	left    atomic.Int32 // requests to pass before the kill
	after   bool         // kill once the server has answered, not before it gets the request
}

// kill kills the victim if its turn has come. after is true once the server has answered
// the request.
func (p *proxy) kill(after bool) {
	v := p.victim.Load()
	if v == nil || v.after != after || v.left.Add(-1) >= 0 {
		return
	}
	_ = v.process.Kill()
	panic(http.ErrAbortHandler)
}

// inProcess runs the verb in a process, and kills it at one of its first four requests, or
// one to two times [processStart] after its start. The process may end before that. It
// returns the output; if the process was killed, only an error.
func (w *world) inProcess(n *modelNode, verb string, o ipam.Owner) (output string, err error) {
	w.t.Helper()
	text, err := json.Marshal(task{
		Verb: verb, Owner: o, Space: w.claim.Pool.Space, Prefix: w.claim.Pool.Prefix, Kubeconfig: n.kubeconfig, State: n.state,
		Node: n.self.Node, Boot: n.self.Boot, Passed: w.passed, Within: modelWait,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), processVar+"="+string(text))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	if w.rnd.IntN(2) == 0 {
		v := &victim{process: cmd.Process, after: w.rnd.IntN(2) == 0}
		v.left.Store(w.rnd.Int32N(4))
		n.proxy.victim.Store(v)
		defer n.proxy.victim.Store(nil)
	} else {
		timer := time.AfterFunc(processStart+rand.N(processStart), func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
	}
	err = cmd.Wait()
	if err != nil && !cmd.ProcessState.Exited() {
		w.kills++
		return "", err
	}
	return out.String(), err
}
