package whereabouts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/reconcile"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// faults is the number of faults of a run.
type faults struct {
	pairs    int // of ADD and DEL, at least: they go on until the last fault is over
	restarts int // of kube-apiserver, killed
	pauses   int // of etcd, 3 s each
}

// dose returns the faults of a sample, or all with RAIL_CNI_FAULTS=full.
func dose() faults {
	if os.Getenv("RAIL_CNI_FAULTS") == "full" {
		return faults{pairs: 500, restarts: 20, pauses: 5}
	}
	return faults{pairs: 60, restarts: 3, pauses: 1}
}

const (
	etcdPause  = 3 * time.Second
	faultNodes = 2
	faultCalls = 12 // concurrent calls
)

// TestNothingIsLostWhileServersDie runs pods while kube-apiserver is killed and
// etcd is paused again and again.
func TestNothingIsLostWhileServersDie(t *testing.T) {
	how := dose()
	namespace := newNamespace(t)
	var nodes [faultNodes]*node
	var confs [faultNodes]string
	for i := range nodes {
		nodes[i] = newNode(t, namespace)
		confs[i] = nodes[i].config(t, "1.0.0", `{"range":"10.0.0.0/16"}`, "")
	}
	held := &answers{holder: map[netip.Addr]string{}}
	watching := startAudit(t, nodes[0], held)

	var adds, dels spent
	var next, refused atomic.Int64
	suffered := make(chan struct{})
	binary := ours(t)
	pair := func(pod int) {
		id, args := identity(pod)
		c := call{binary: binary, verb: "ADD", id: id, ifname: "net1", args: args, stdin: confs[pod%faultNodes]}
		began := time.Now()
		out, err := c.run()
		adds.note(began, 0)
		if err != nil {
			refused.Add(1)
			adds.fail(lastLine(err))
			wantClear(t, err)
		} else if got, err := held.take(id, out); err != nil || len(got) != 1 {
			t.Errorf("ADD answers %s: %v", out, err)
		}
		time.Sleep(rand.N(300 * time.Millisecond))
		held.leave(id)
		c.verb = "DEL"
		began = time.Now()
		if _, err := c.run(); err != nil {
			t.Errorf("DEL: %v", err)
		}
		dels.note(began, 0)
	}
	began := time.Now()
	var wg sync.WaitGroup
	for range faultCalls {
		wg.Go(func() {
			for {
				pod := int(next.Add(1))
				select {
				case <-suffered:
					if pod > how.pairs {
						return
					}
				default:
				}
				pair(pod)
			}
		})
	}
	how.suffer(t)
	close(suffered)
	wg.Wait()
	t.Logf("%d restarts of kube-apiserver and %d pauses of etcd in %s", how.restarts, how.pauses, time.Since(began).Round(time.Second))
	t.Logf("ADD: %s", &adds)
	t.Logf("DEL: %s", &dels)
	t.Logf("%d ADDs failed", refused.Load())

	for _, n := range nodes {
		n.settle(t)
	}
	watching.stop(t)
	held.report(t)
	wantEmpty(t, namespace)
}

// suffer causes the faults, one after another.
func (f faults) suffer(t *testing.T) {
	t.Helper()
	every := max(1, f.restarts/max(1, f.pauses))
	for i := range f.restarts {
		time.Sleep(300*time.Millisecond + rand.N(time.Second))
		plane.KillAPIServer()
		time.Sleep(rand.N(500 * time.Millisecond))
		if err := plane.StartAPIServer(t.Context()); err != nil {
			t.Error(err)
			return
		}
		if i%every == every-1 {
			time.Sleep(rand.N(500 * time.Millisecond))
			if err := plane.PauseEtcd(); err != nil {
				t.Error(err)
			}
			time.Sleep(etcdPause)
			if err := plane.ResumeEtcd(); err != nil {
				t.Error(err)
			}
		}
	}
}

// wantClear fails the test unless the error names the server and the cure is to
// try again.
func wantClear(t *testing.T, err error) {
	t.Helper()
	var said *types.Error
	if !errors.As(err, &said) || said.Code < 5 || said.Code == types.ErrInternal || !strings.Contains(said.Msg, plane.Server()) {
		t.Errorf("not clear: %#v", err)
	}
}

// settle does the work of the next call or the agent: it replays the journal,
// and reconciles with the pods, of which there are none.
func (n *node) settle(t *testing.T) {
	t.Helper()
	client, waiting := n.settleJournal(t)
	found, err := reconcile.New(reconcile.Options{Client: client}).Once(t.Context())
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d DELs were in the journal, the reconciler found %d half or stale pairs", waiting, len(found))
	for _, f := range found {
		t.Logf("%s of %s: %s: %s", f.Kind, f.PodRef, f.Why, f.Outcome)
	}
}

// settleJournal replays the journal, and returns the number of DELs in it.
func (n *node) settleJournal(t *testing.T) (client *kube.Client, waiting int) {
	t.Helper()
	client, err := kube.Open(kube.Config{Kubeconfig: filepath.Join(n.dir, "kubeconfig"), UserAgent: "settle"})
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(n.dir, "state")
	journal := filepath.Join(state, "ipam-journal")
	files, err := filepath.Glob(filepath.Join(journal, "*"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.New(store.Options{Client: client, Kubeconfig: filepath.Join(n.dir, "kubeconfig"), StateDir: state, JournalDir: journal})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if left, err := s.Replay(t.Context()); err != nil || left != 0 {
		t.Errorf("the journal keeps %d: %v", left, err)
	}
	return client, len(files)
}

// audit watches the pools of a namespace through the API. Read it after it has
// stopped.
type audit struct {
	held    *answers
	holders map[string]map[netip.Addr]api.Entry // by pool
	wrong   []string
	added   int // entries seen to appear
	gaps    int // holes in the history: a server died

	cancel context.CancelFunc
	done   chan struct{}
}

func startAudit(t *testing.T, n *node, held *answers) *audit {
	t.Helper()
	open := func() (*kube.Client, error) {
		return kube.Open(kube.Config{Kubeconfig: filepath.Join(n.dir, "kubeconfig"), UserAgent: "audit", Timeout: 2 * time.Second})
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &audit{held: held, holders: map[string]map[netip.Addr]api.Entry{}, cancel: cancel, done: make(chan struct{})}
	began := make(chan struct{})
	go a.run(ctx, n.namespace, open, began)
	<-began
	return a
}

// run watches until ctx ends, and calls open after the first list. It lists
// again if a connection broke.
func (a *audit) run(ctx context.Context, namespace string, open func() (*kube.Client, error), began chan<- struct{}) {
	defer close(a.done)
	begin := sync.OnceFunc(func() { close(began) })
	all := api.Pools(namespace)
	version := ""
	var client *kube.Client
	for ctx.Err() == nil {
		if version == "" {
			var err error
			if client, err = open(); err != nil {
				continue
			}
			look, cancel := context.WithTimeout(ctx, 3*time.Second)
			v, err := client.List(look, all, kube.ListOptions{}, func(item []byte) error { return a.see(item, true) })
			cancel()
			if err != nil {
				continue
			}
			version = v
			begin()
		}
		err := client.Watch(ctx, all, kube.ListOptions{ResourceVersion: version, Timeout: time.Second}, func(e kube.Event) error {
			var o object
			if err := json.Unmarshal(e.Object, &o); err != nil {
				return err
			}
			version = o.Metadata.ResourceVersion
			if e.Type != "ADDED" && e.Type != "MODIFIED" {
				return nil
			}
			return a.see(e.Object, false)
		})
		if err != nil {
			version = ""
			a.gaps++
		}
	}
}

// see compares a pool with its previous state. After a hole in the history it
// is unknown whether an address was free in between.
func (a *audit) see(data []byte, hole bool) error {
	p, err := api.ParsePool(data)
	if err != nil {
		return err
	}
	now := map[netip.Addr]api.Entry{}
	for key, e := range p.Entries {
		addr, err := p.Addr(key)
		if err != nil {
			return err
		}
		now[addr] = e
		if was, held := a.holders[p.Name][addr]; !held {
			a.added++
		} else if was.PodRef != e.PodRef && !hole {
			a.wrong = append(a.wrong, fmt.Sprintf("%s went from %s to %s without having been free", addr, was.PodRef, e.PodRef))
		}
	}
	for addr, was := range a.holders[p.Name] {
		if now[addr].ContainerID != was.ContainerID && a.held.holds(addr, was.ContainerID) {
			a.wrong = append(a.wrong, fmt.Sprintf("%s was taken from %s, which holds it", addr, was.PodRef))
		}
	}
	a.holders[p.Name] = now
	return nil
}

// holds reports whether an ADD of id has answered with addr, and its DEL has
// not begun.
func (a *answers) holds(addr netip.Addr, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holder[addr] == id
}

// stop ends the audit and fails the test for each violation.
func (a *audit) stop(t *testing.T) {
	t.Helper()
	a.cancel()
	<-a.done
	for _, w := range a.wrong {
		t.Error(w)
	}
	t.Logf("the audit saw %d entries come, with %d holes in the history", a.added, a.gaps)
	if a.added == 0 {
		t.Error("the audit saw nothing")
	}
}
