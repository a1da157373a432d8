package whereabouts

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
)

// railsOfNode is the number of rails of each node here.
const railsOfNode = 8

// onRail returns the ipam object of a network with sameHost on a rail, with further keys, as
// the plugin in front writes it.
func onRail(rail int, keys string) string {
	var ranges []string
	for i := range railsOfNode {
		ranges = append(ranges, fmt.Sprintf(`"10.%d.0.0/22"`, i))
	}
	return fmt.Sprintf(`{"range":"10.%d.0.0/22","gateway":"10.%d.0.1","sameHost":true,"railRanges":[%s]%s}`, rail, rail, strings.Join(ranges, ","), keys)
}

// A railPods starts pods with an interface on each rail, and kills plugins at random moments.
type railPods struct {
	t     *testing.T
	nodes []*node
	keys  string // of the ipam objects, beside those of onRail
	held  *answers

	containers, killed, again, pods atomic.Int64
}

// call returns the call for a container's interface on a rail.
func (r *railPods) call(verb string, pod, container, rail int) call {
	n := pod % len(r.nodes)
	_, args := identity(pod)
	return call{
		binary: ours(r.t), verb: verb, id: fmt.Sprintf("%064x", container), ifname: fmt.Sprint("net", rail+1), args: args, node: fmt.Sprint("node", n),
		stdin: r.nodes[n].config(r.t, "1.1.0", onRail(rail, r.keys), ""),
	}
}

// fuse returns after what time to kill the next plugin, 0 for not at all.
func fuse(one, of int) time.Duration {
	if rand.IntN(of) >= one {
		return 0
	}
	return time.Millisecond + rand.N(150*time.Millisecond)
}

// start starts a pod: sandbox after sandbox, until one has an address on each rail.
func (r *railPods) start(pod int) (container int, ok bool) {
	for range 30 {
		container := int(r.containers.Add(1))
		if r.sandbox(pod, container) {
			r.pods.Add(1)
			return container, true
		}
		r.end(pod, container)
	}
	r.t.Errorf("pod %d did not start", pod)
	return 0, false
}

// sandbox reports whether a container has got its addresses.
func (r *railPods) sandbox(pod, container int) bool {
	var got [railsOfNode]netip.Addr
	add := func(rail int) bool {
		c := r.call("ADD", pod, container, rail)
		out, ended, err := c.runFused(fuse(1, 30))
		switch {
		case err != nil:
			r.again.Add(1)
			if !strings.Contains(err.Error(), "the host part of") {
				r.t.Errorf("pod %d, rail %d: %v", pod, rail, err)
			}
			return false
		case !ended:
			r.killed.Add(1)
			return false
		}
		all, err := r.held.take(c.id, out)
		if err != nil || len(all) != 1 {
			r.t.Error(all, err)
			return false
		}
		got[rail] = all[0]
		return true
	}
	whole := true
	if pod%4 == 0 { // a runtime may attach interfaces at once
		var wg sync.WaitGroup
		var failed atomic.Bool
		for rail := range railsOfNode {
			wg.Go(func() {
				if !add(rail) {
					failed.Store(true)
				}
			})
		}
		wg.Wait()
		whole = !failed.Load()
	} else {
		for rail := 0; rail < railsOfNode && whole; rail++ {
			whole = add(rail)
		}
	}
	first := netip.Addr{}
	for rail, addr := range got {
		if !addr.IsValid() {
			continue
		}
		b := addr.As4()
		if int(b[1]) != rail || b[2] == 0 && b[3] <= 1 {
			r.t.Errorf("pod %d has %s on rail %d", pod, addr, rail)
		}
		b[1] = 0
		if host := netip.AddrFrom4(b); !first.IsValid() {
			first = host
		} else if host != first {
			r.t.Errorf("pod %d has the addresses %s", pod, got)
		}
	}
	return whole
}

// end ends a container. Some of the plugins are killed, and called again.
func (r *railPods) end(pod, container int) {
	for rail := range railsOfNode {
		c := r.call("DEL", pod, container, rail)
		r.held.leave(c.id)
		for limit := fuse(1, 20); ; limit = 0 {
			_, ended, err := c.runFused(limit)
			if err != nil {
				r.t.Errorf("DEL of pod %d, rail %d: %v", pod, rail, err)
			}
			if ended {
				break
			}
			r.killed.Add(1)
		}
	}
}

// gc runs GC for all networks of all nodes: no attachment is valid.
func (r *railPods) gc() {
	for n := range r.nodes {
		for rail := range railsOfNode {
			c := r.call("GC", n, 0, rail)
			var conf map[string]json.RawMessage
			if err := json.Unmarshal([]byte(c.stdin), &conf); err != nil {
				r.t.Fatal(err)
			}
			conf["cni.dev/valid-attachments"] = json.RawMessage(`[]`)
			text, err := json.Marshal(conf)
			if err != nil {
				r.t.Fatal(err)
			}
			c.stdin = string(text)
			if _, err := c.run(); err != nil {
				r.t.Errorf("GC: %v", err)
			}
		}
	}
}

// localRecords returns the addresses in the nodes' local stores.
func (r *railPods) localRecords() []string {
	var all []string
	for _, n := range r.nodes {
		found, err := filepath.Glob(filepath.Join(n.dir, "state", "ipam", "space*", "10.*", "10.*.json"))
		if err != nil {
			r.t.Error(err)
		}
		all = append(all, found...)
	}
	return all
}

// writes returns how many requests of the nodes have changed the namespace's objects.
func (r *railPods) writes(began time.Time) (total int, tally map[string]int) {
	all, err := plane.Requests(r.t.Context(), began)
	if err != nil {
		r.t.Fatal(err)
	}
	var changed []controlplane.Request
	for _, q := range all {
		switch q.Verb {
		case "create", "update", "patch", "delete":
			if q.Namespace == r.nodes[0].namespace && strings.HasPrefix(q.UserAgent, "rail-cni") {
				changed = append(changed, q)
			}
		}
	}
	return len(changed), controlplane.Tally(changed)
}

// An attachment from before the network had sameHost ends, and no new one begins.
func TestSameHostIsRefusedOnPoolsThatAllNodesShare(t *testing.T) {
	namespace := newNamespace(t)
	n := newNode(t, namespace)
	id, args := identity(0)
	c := call{binary: ours(t), verb: "ADD", id: id, ifname: "net1", args: args, stdin: n.config(t, "1.1.0", `{"range":"10.0.0.0/22"}`, "")}
	if _, err := c.run(); err != nil {
		t.Fatal(err)
	}
	c.stdin = n.config(t, "1.1.0", onRail(0, ""), "")
	for _, verb := range []string{"ADD", "STATUS"} {
		c.verb = verb
		if _, err := c.run(); err == nil || !strings.Contains(err.Error(), `has "sameHost"`) || !strings.Contains(err.Error(), `give the network a "block_size"`) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	c.verb = "DEL"
	if _, err := c.run(); err != nil {
		t.Error(err)
	}
	if entries, reserved := holders(t, namespace); len(entries)+len(reserved) > 0 {
		t.Errorf("after the DEL: %v, %v", entries, reserved)
	}
}

// TestPodHasOneHostPartOnAllRails starts many pods with eight rails at once on two nodes, and
// kills plugins at random moments. Half of the pods end by DEL, the others by GC.
func TestPodHasOneHostPartOnAllRails(t *testing.T) {
	pods := need.Either(12, 50)
	for _, tc := range []struct {
		name, keys string
		nodes      int
		most       int // API writes for each pod that starts
	}{
		{name: "files of a node", keys: `,"store":"local"`, nodes: 1, most: 0},
		{name: "blocks", keys: `,"block_size":16`, nodes: 2, most: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			namespace := newNamespace(t)
			r := &railPods{t: t, keys: tc.keys, held: &answers{holder: map[netip.Addr]string{}}}
			for range tc.nodes {
				r.nodes = append(r.nodes, newNode(t, namespace))
			}
			began := time.Now()
			var wg sync.WaitGroup
			containers := make([]int, pods)
			for pod := range pods {
				wg.Go(func() { containers[pod], _ = r.start(pod) })
			}
			wg.Wait()
			took := time.Since(began)
			total, tally := r.writes(began)
			perPod := float64(total) / float64(max(1, r.pods.Load()))
			t.Logf("%d pods with %d rails in %s: %d plugins killed, %d ADDs refused for another sandbox; %.2f API writes for each pod: %v",
				r.pods.Load(), railsOfNode, took.Round(time.Millisecond), r.killed.Load(), r.again.Load(), perPod, tally)
			if perPod > float64(tc.most) {
				t.Errorf("%.2f API writes for each pod, want at most %d", perPod, tc.most)
			}
			for pod := 0; pod < pods; pod += 2 {
				wg.Go(func() { r.end(pod, containers[pod]) })
			}
			wg.Wait()
			r.gc()
			r.held.report(t)
			if left := r.localRecords(); len(left) > 0 {
				t.Errorf("left over: %q", left)
			}
			entries, reserved := holders(t, namespace)
			for _, left := range append(entries, reserved...) {
				t.Errorf("left over: %s", left)
			}
		})
	}
}
