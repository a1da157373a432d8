package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/deployments/kustomize/base"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/block"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// The addresses of a cluster of many nodes: one pod with eight rails on each node, all
// started at once. The nodes are directories, and their plugins are goroutines that use
// the stores' own code.

const (
	scaleRails = 8
	// scaleLimit is that of a run. 200 nodes on one pool, entry by entry, do not end.
	scaleLimit = 205 * time.Second
	// sandboxDeadline is the kubelet's for a sandbox: twice its runtimeRequestTimeout.
	sandboxDeadline = 4 * time.Minute
	addDeadline     = 2 * time.Minute // the plugin's
	delDeadline     = time.Minute     // the plugin's
	// againAfter is about the time after which a kubelet makes a sandbox again.
	againAfter    = time.Second
	scaleAccount  = "rail-cni-whereabouts"
	priorityLevel = "rail-cni-pools"
	priorityFile  = "deployments/kustomize/api-priority/priority.yaml"
)

// scaleLab is a control plane.
type scaleLab struct {
	plane *controlplane.Plane
	lease *lease
	dir   string // of the nodes' state
	runs  int
}

// newScaleLab starts a control plane with the chart's roles and its level of API priority.
func newScaleLab(ctx context.Context, p places) (*scaleLab, error) {
	dir := filepath.Join(p.disk, "plane")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	plane, err := controlplane.New(ctx, dir, controlplane.Options{Audit: true, Fsync: true})
	if err != nil {
		return nil, err
	}
	l := &scaleLab{plane: plane, dir: p.state}
	if l.lease, err = newLease(ctx, plane); err == nil {
		err = l.apply(ctx)
	}
	if err != nil {
		plane.Close()
		return nil, err
	}
	return l, nil
}

// apply makes the account's role and the level.
func (l *scaleLab) apply(ctx context.Context) error {
	text, err := base.Files.ReadFile("plugin.yaml")
	if err != nil {
		return err
	}
	const rbac, flow = "/apis/rbac.authorization.k8s.io/v1/", "/apis/flowcontrol.apiserver.k8s.io/v1/"
	paths := map[string]string{
		"ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts", "ClusterRole": rbac + "clusterroles",
		"RoleBinding": rbac + "namespaces/kube-system/rolebindings",
		"FlowSchema":  flow + "flowschemas", "PriorityLevelConfiguration": flow + "prioritylevelconfigurations",
	}
	levels, err := os.ReadFile(priorityFile)
	if err != nil {
		return fmt.Errorf("run it at the top of the tree: %w", err)
	}
	text = append(append(text, "---\n"...), levels...)
	for object := range bytes.SplitSeq(text, []byte("\n---\n")) {
		_, kind, _ := strings.Cut("\n"+string(object), "\nkind: ")
		kind, _, _ = strings.Cut(kind, "\n")
		code, answer, err := l.plane.Admin().Do(ctx, "POST", paths[kind], controlplane.YAML, object)
		if err != nil || code != 201 {
			return fmt.Errorf("making %s: %d %s (%w)", kind, code, answer, err)
		}
	}
	return nil
}

// level sets the shares of the priority level, and returns the number of its seats
// once the server uses them.
func (l *scaleLab) level(ctx context.Context, shares int) (int, error) {
	patch := map[string]any{"spec": map[string]any{"limited": map[string]any{"nominalConcurrencyShares": shares}}}
	code, answer, err := l.plane.Admin().Patch(ctx, "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/"+priorityLevel, controlplane.MergePatch, patch)
	if err != nil || code != 200 {
		return 0, fmt.Errorf("giving %s %d shares: %d %s (%w)", priorityLevel, shares, code, answer, err)
	}
	// The default levels have 245 shares of 600 requests (kube-apiserver's
	// --max-requests-inflight and --max-mutating-requests-inflight).
	want := math.Ceil(600 * float64(shares) / float64(245+shares))
	for {
		_, text, err := l.plane.Metrics(ctx)
		if err != nil || metric(text, "apiserver_flowcontrol_nominal_limit_seats", priorityLevel) == want {
			return int(want), err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// scaleStore is a store that the plugin opens for one call.
type scaleStore interface {
	ipam.Store
	Close() error
}

// scaleRun is one run of a case: its nodes, which begin without state or connection.
type scaleRun struct {
	lab         *scaleLab
	c           scaleCase
	name        string   // of the address space
	kubeconfigs []string // of each node, and of one more that makes the pools
	bursts      int
}

// newRun makes the nodes of a case, and its pools.
func (l *scaleLab) newRun(ctx context.Context, c scaleCase) (*scaleRun, error) {
	seats, err := l.level(ctx, c.Shares)
	if err != nil {
		return nil, err
	}
	c.Seats = seats
	l.runs++
	r := &scaleRun{lab: l, c: c, name: fmt.Sprint("run-", l.runs)}
	if err := r.admit(c.Nodes + 1); err != nil {
		return nil, err
	}
	return r, r.makePools()
}

// admit writes the nodes' kubeconfigs. Each node has a certificate of its own for the
// plugin's account: by one credential all nodes of this process would share a connection.
func (r *scaleRun) admit(nodes int) error {
	plane := r.lab.plane
	for range nodes {
		c, err := plane.CertificateFor("system:serviceaccount:kube-system:"+scaleAccount, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		if err != nil {
			return err
		}
		path, err := plane.Kubeconfig(c, controlplane.Form{})
		if err != nil {
			return err
		}
		r.kubeconfigs = append(r.kubeconfigs, path)
	}
	return nil
}

// makePools makes the pools, or what divides them into blocks: once in a pool's life.
func (r *scaleRun) makePools() error {
	node := r.c.Nodes
	for pool := range r.c.Pools {
		err := r.call(node, pool, time.Now().Add(addDeadline), func(ctx context.Context, s scaleStore, c ipam.Claim) error {
			if r.c.Block > 0 {
				return s.Status(ctx, []ipam.Claim{c})
			}
			o := owner(node, 0, pool)
			_, err := s.Allocate(ctx, o, []ipam.Claim{c})
			return errors.Join(err, s.Release(ctx, o, []ipam.Pool{c.Pool}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// claim returns the claim of one rail.
func (r *scaleRun) claim(rail int) (ipam.Claim, error) {
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rail % r.c.Pools), 0, 0}), 16)
	rng, err := ipam.NewRange(ipam.RangeSpec{Prefix: prefix})
	return ipam.Claim{Pool: ipam.Pool{Space: r.name, Prefix: prefix}, Range: rng, Exclusive: true}, err
}

// call does what one call of the plugin does.
func (r *scaleRun) call(node, rail int, limit time.Time, do func(context.Context, scaleStore, ipam.Claim) error) error {
	ctx, cancel := context.WithDeadline(context.Background(), limit)
	defer cancel()
	c, err := r.claim(rail)
	if err != nil {
		return err
	}
	s, err := r.open(node)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, s, c), s.Close())
}

// open opens a node's store.
func (r *scaleRun) open(node int) (scaleStore, error) {
	kubeconfig, dir, retryFor := r.kubeconfigs[node], r.stateDir(node), store.RetryFor
	if r.c.Block > 0 {
		retryFor = block.RetryFor
	}
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, UserAgent: "node", RetryFor: retryFor})
	if err != nil {
		return nil, err
	}
	if r.c.Block > 0 {
		return block.New(block.Options{
			Client: client, Kubeconfig: kubeconfig, StateDir: dir, Node: fmt.Sprint("node-", node), Size: r.c.Block,
		})
	}
	return store.New(store.Options{
		Client: client, Kubeconfig: kubeconfig, StateDir: dir, JournalDir: filepath.Join(dir, "journal"),
	})
}

func (r *scaleRun) stateDir(node int) string {
	return filepath.Join(r.lab.dir, r.name, fmt.Sprint(node))
}

// owner returns the attachment of one rail.
func owner(pod, sandbox, rail int) ipam.Owner {
	return ipam.Owner{ContainerID: fmt.Sprintf("%032x%032x", pod+1, sandbox+1), IfName: fmt.Sprint("net", rail+1), PodRef: fmt.Sprintf("default/trainer-worker-%d", pod), Network: "rails"}
}

// burst is a pod on each node of a run, all started at once.
type burst struct {
	*scaleRun
	began time.Time
	last  []int // sandbox of each node

	mu        sync.Mutex
	given     []float64 // seconds until each address, in their order
	ready     []float64 // of each pod
	sandboxes int       // that failed
	lastError error
}

// newBurst returns the next burst of the run. Its sandboxes are others than those before.
func (r *scaleRun) newBurst() *burst {
	const maxSandboxes = 1000 // sandboxes of a pod
	b := &burst{scaleRun: r, last: make([]int, r.c.Nodes)}
	for node := range b.last {
		b.last[node] = r.bursts * maxSandboxes
	}
	r.bursts++
	return b
}

// pod starts a pod of a node, as the kubelet and Multus do.
func (b *burst) pod(ctx context.Context, node int) {
	for ; ctx.Err() == nil; b.last[node]++ {
		deadline, over := time.Now().Add(sandboxDeadline), func() bool { return ctx.Err() != nil }
		if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
			deadline, over = end, func() bool { return !time.Now().Before(end) }
		}
		err := b.sandbox(node, deadline)
		b.mu.Lock()
		if err == nil {
			b.ready = append(b.ready, time.Since(b.began).Seconds())
		} else if !over() {
			b.sandboxes++
			b.lastError = err
		}
		b.mu.Unlock()
		if err == nil || over() {
			return
		}
		_ = b.end(node)
		time.Sleep(againAfter)
	}
}

// sandbox asks for the addresses of all rails, one after the other.
func (b *burst) sandbox(node int, deadline time.Time) error {
	for rail := range scaleRails {
		limit, o := time.Now().Add(addDeadline), owner(node, b.last[node], rail)
		for _, end := range []time.Time{deadline, store.Deadline(b.stateDir(node), "", o)} {
			if !end.IsZero() && end.Before(limit) {
				limit = end
			}
		}
		err := b.call(node, rail, limit, func(ctx context.Context, s scaleStore, c ipam.Claim) error {
			_, err := s.Allocate(ctx, o, []ipam.Claim{c})
			return err
		})
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.given = append(b.given, time.Since(b.began).Seconds())
		b.mu.Unlock()
	}
	return nil
}

// end releases the addresses of a node's last sandbox.
func (b *burst) end(node int) error {
	var errs []error
	for rail := range scaleRails {
		errs = append(errs, b.call(node, rail, time.Now().Add(delDeadline), func(ctx context.Context, s scaleStore, c ipam.Claim) error {
			return s.Release(ctx, owner(node, b.last[node], rail), []ipam.Pool{c.Pool})
		}))
	}
	return errors.Join(errs...)
}

// scaleResult is what a burst measured.
type scaleResult struct {
	scaleCase
	Ready     []float64 `json:"readySeconds"` // of each pod, in order
	Given     []float64 `json:"addressSeconds"`
	Renewals  []float64 `json:"renewalSeconds"` // of kube-controller-manager's lease
	Unrenewed int       `json:"failedRenewals"`
	Sandboxes int       `json:"failedSandboxes"`
	Patches   int       `json:"patches"` // of pools and blocks
	Creates   int       `json:"creates"` // of any object
	Gets      int       `json:"gets"`    // and lists, of any object
	// Refused is the number of patches by each code but 200: 409 after the server's own
	// tries, 422 if a test of the patch fails.
	Refused  map[int]int `json:"refusedByCode"`
	TooMany  int         `json:"answers429"`
	Tries    float64     `json:"tries"`    // of the server to write a pool
	InFlight float64     `json:"inFlight"` // patches, on average
	WAL      float64     `json:"etcdBytes"`
	CPU      [3]float64  `json:"cpuSeconds"` // kube-apiserver, etcd, the nodes
}

// run makes a case, and starts a pod on each of its nodes at once. With blocks it ends all
// pods then, and starts others: a node has blocks by then.
func (l *scaleLab) run(ctx context.Context, c scaleCase, limit time.Duration) ([]*scaleResult, error) {
	r, err := l.newRun(ctx, c)
	if err != nil {
		return nil, err
	}
	b := r.newBurst()
	first, err := b.measure(ctx, limit)
	if err != nil || c.Block == 0 {
		return []*scaleResult{first}, err
	}
	for node := range c.Nodes {
		if err := b.end(node); err != nil {
			return nil, err
		}
	}
	r.c.Again = true
	again, err := r.newBurst().measure(ctx, limit)
	return []*scaleResult{first, again}, err
}

// measure starts the pods and waits until all are ready, or limit is over.
func (b *burst) measure(ctx context.Context, limit time.Duration) (*scaleResult, error) {
	before, err := b.lab.counters(ctx)
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b.began = time.Now()
	renewals, failed := b.lab.lease.during(ctx, func() {
		var all sync.WaitGroup
		for node := range b.c.Nodes {
			all.Go(func() { b.pod(within, node) })
		}
		all.Wait()
	})
	after, err := b.lab.counters(ctx)
	if err != nil {
		return nil, err
	}
	result := &scaleResult{
		scaleCase: b.c, Ready: b.ready, Given: b.given, Renewals: renewals, Unrenewed: failed, Sandboxes: b.sandboxes, Tries: after.tries - before.tries, WAL: after.wal - before.wal,
		CPU: [3]float64{after.apiserver - before.apiserver, after.etcd - before.etcd, after.self - before.self},
	}
	if b.lastError != nil {
		fmt.Fprintln(os.Stderr, "  the last error:", b.lastError)
	}
	return result, result.count(ctx, b.lab.plane, b.began)
}

// count reads the nodes' requests from the server's audit log.
func (r *scaleResult) count(ctx context.Context, plane *controlplane.Plane, since time.Time) error {
	requests, err := plane.Requests(ctx, since)
	r.Refused = map[int]int{}
	var busy time.Duration
	for _, q := range requests {
		if q.UserAgent != "node" {
			continue
		}
		if q.Code == 429 {
			r.TooMany++
		}
		switch q.Verb {
		case "create":
			r.Creates++
		case "get", "list":
			r.Gets++
		}
		if q.Verb != "patch" || q.Resource != "ippools" {
			continue
		}
		r.Patches++
		if q.Code != 200 {
			r.Refused[q.Code]++
		}
		busy += q.Latency
	}
	r.InFlight = busy.Seconds() / max(r.last(), 0.001)
	return err
}

// last returns the seconds until the last address.
func (r *scaleResult) last() float64 {
	if len(r.Given) == 0 {
		return 0
	}
	return r.Given[len(r.Given)-1]
}

// counters are counters of the servers and of this process.
type counters struct{ tries, wal, apiserver, etcd, self float64 }

func (l *scaleLab) counters(ctx context.Context) (c counters, err error) {
	etcd, apiserver, err := l.plane.Metrics(ctx)
	if err != nil {
		return c, err
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return c, err
	}
	c.self = time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
	c.wal = metric(etcd, "etcd_disk_wal_write_bytes_total")
	c.etcd, c.apiserver = metric(etcd, "process_cpu_seconds_total"), metric(apiserver, "process_cpu_seconds_total")
	c.tries = metric(apiserver, "etcd_request_duration_seconds_count", `operation="update"`, "ippools")
	return c, nil
}

// metric returns the sum of a metric's values with these labels.
func metric(text, name string, labels ...string) (sum float64) {
lines:
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.HasPrefix(rest, "{") && !strings.HasPrefix(rest, " ") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue lines
			}
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err == nil {
			sum += value
		}
	}
	return sum
}
