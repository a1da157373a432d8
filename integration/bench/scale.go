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
	"github.com/rail-cni/rail-cni/pkg/whereabouts/store"
)

// The addresses of a cluster of many nodes: one pod with eight rails on each node, all
// started at once. The nodes are directories, and their plugins are goroutines that use
// the store's own code.

const (
	scaleRails = 8
	scaleLimit = 8 * time.Minute // of a run
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

// scaleCase is a number of nodes, and the configuration of their cluster.
type scaleCase struct {
	Nodes  int `json:"nodes"`
	Pools  int `json:"pools"`  // one for each rail, or one for all
	Shares int `json:"shares"` // of the priority level, see [scaleLab.level]
	Seats  int `json:"seats"`  // patches that the server works on at once, by these shares
}

// line returns the name of the case without the number of nodes.
func (c scaleCase) line() string {
	if c.Pools == 1 {
		return fmt.Sprintf("one pool, %d seats", c.Seats)
	}
	return fmt.Sprintf("a pool per rail, %d seats", c.Seats)
}

// scaleLab is a control plane and the nodes' access to it.
type scaleLab struct {
	plane       *controlplane.Plane
	kubeconfigs []string // of each node
	dir         string   // of the nodes' state
	runs        int
}

// newScaleLab starts a control plane with the chart's roles and its level of API priority.
// Each node has a certificate of its own for the plugin's account: by one credential all
// nodes of this process would share a connection.
func newScaleLab(ctx context.Context, p places, nodes int) (*scaleLab, error) {
	dir := filepath.Join(p.disk, "plane")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	plane, err := controlplane.New(ctx, dir, controlplane.Options{Audit: true, Fsync: true})
	if err != nil {
		return nil, err
	}
	l := &scaleLab{plane: plane, dir: p.state}
	if err := errors.Join(l.apply(ctx), l.admit(nodes)); err != nil {
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

// admit writes the nodes' kubeconfigs.
func (l *scaleLab) admit(nodes int) error {
	for range nodes {
		c, err := l.plane.CertificateFor("system:serviceaccount:kube-system:"+scaleAccount, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		if err != nil {
			return err
		}
		path, err := l.plane.Kubeconfig(c, controlplane.Form{})
		if err != nil {
			return err
		}
		l.kubeconfigs = append(l.kubeconfigs, path)
	}
	return nil
}

// scaleRun is one run of a case.
type scaleRun struct {
	lab   *scaleLab
	c     scaleCase
	name  string // of the address space
	began time.Time

	mu        sync.Mutex
	given     []float64 // seconds until each address, in their order
	ready     []float64 // of each pod
	sandboxes int       // that failed
	lastError error
}

// claim returns the claim of one rail.
func (r *scaleRun) claim(rail int) (ipam.Claim, error) {
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rail % r.c.Pools), 0, 0}), 16)
	rng, err := ipam.NewRange(ipam.RangeSpec{Prefix: prefix})
	return ipam.Claim{Pool: ipam.Pool{Space: r.name, Prefix: prefix}, Range: rng, Exclusive: true}, err
}

// call does what one call of the plugin does.
func (r *scaleRun) call(node, rail int, limit time.Time, pod ipam.Owner, do func(context.Context, *store.Store, ipam.Claim) error) error {
	ctx, cancel := context.WithDeadline(context.Background(), limit)
	defer cancel()
	c, err := r.claim(rail)
	if err != nil {
		return err
	}
	kubeconfig, dir := r.lab.kubeconfigs[node], r.stateDir(node)
	client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig, UserAgent: "node", RetryFor: store.RetryFor})
	if err != nil {
		return err
	}
	s, err := store.New(store.Options{
		Client: client, Kubeconfig: kubeconfig, StateDir: dir, JournalDir: filepath.Join(dir, "journal"),
	})
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, s, c), s.Close())
}

func (r *scaleRun) stateDir(node int) string {
	return filepath.Join(r.lab.dir, r.name, fmt.Sprint(node))
}

// owner returns the attachment of one rail.
func owner(pod, sandbox, rail int) ipam.Owner {
	return ipam.Owner{ContainerID: fmt.Sprintf("%032x%032x", pod+1, sandbox+1), IfName: fmt.Sprint("net", rail+1), PodRef: fmt.Sprintf("default/trainer-worker-%d", pod), Network: "rails"}
}

// pod starts a pod of a node, as the kubelet and Multus do.
func (r *scaleRun) pod(ctx context.Context, node int) {
	for sandbox := 0; ctx.Err() == nil; sandbox++ {
		deadline, over := time.Now().Add(sandboxDeadline), func() bool { return ctx.Err() != nil }
		if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
			deadline, over = end, func() bool { return !time.Now().Before(end) }
		}
		err := r.sandbox(node, sandbox, deadline)
		r.mu.Lock()
		if err == nil {
			r.ready = append(r.ready, time.Since(r.began).Seconds())
		} else if !over() {
			r.sandboxes++
			r.lastError = err
		}
		r.mu.Unlock()
		if err == nil || over() {
			return
		}
		for rail := range scaleRails {
			o := owner(node, sandbox, rail)
			_ = r.call(node, rail, time.Now().Add(delDeadline), o, func(ctx context.Context, s *store.Store, c ipam.Claim) error {
				return s.Release(ctx, o, []ipam.Pool{c.Pool})
			})
		}
		time.Sleep(againAfter)
	}
}

// sandbox asks for the addresses of all rails, one after the other.
func (r *scaleRun) sandbox(node, sandbox int, deadline time.Time) error {
	for rail := range scaleRails {
		limit, o := time.Now().Add(addDeadline), owner(node, sandbox, rail)
		for _, end := range []time.Time{deadline, store.Deadline(r.stateDir(node), "", o)} {
			if !end.IsZero() && end.Before(limit) {
				limit = end
			}
		}
		err := r.call(node, rail, limit, o, func(ctx context.Context, s *store.Store, c ipam.Claim) error {
			_, err := s.Allocate(ctx, o, []ipam.Claim{c})
			return err
		})
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.given = append(r.given, time.Since(r.began).Seconds())
		r.mu.Unlock()
	}
	return nil
}

// scaleResult is what a run measured.
type scaleResult struct {
	scaleCase
	Ready     []float64  `json:"readySeconds"` // of each pod, in order
	Given     []float64  `json:"addressSeconds"`
	Sandboxes int        `json:"failedSandboxes"`
	Patches   int        `json:"patches"`
	Refused   int        `json:"refused"` // patches that lost their address to another node
	TooMany   int        `json:"answers429"`
	Tries     float64    `json:"tries"`    // of the server to write a pool
	InFlight  float64    `json:"inFlight"` // patches, on average
	WAL       float64    `json:"etcdBytes"`
	CPU       [3]float64 `json:"cpuSeconds"` // kube-apiserver, etcd, the nodes
}

// run starts a pod on each node at once and waits until all are ready, or limit is over.
func (l *scaleLab) run(ctx context.Context, c scaleCase, limit time.Duration) (*scaleResult, error) {
	seats, err := l.level(ctx, c.Shares)
	if err != nil {
		return nil, err
	}
	c.Seats = seats
	l.runs++
	r := &scaleRun{lab: l, c: c, name: fmt.Sprint("run-", l.runs)}
	for pool := range c.Pools { // a pool is made once in its life
		o := owner(c.Nodes, 0, pool)
		err := r.call(0, pool, time.Now().Add(addDeadline), o, func(ctx context.Context, s *store.Store, c ipam.Claim) error {
			_, err := s.Allocate(ctx, o, []ipam.Claim{c})
			return errors.Join(err, s.Release(ctx, o, []ipam.Pool{c.Pool}))
		})
		if err != nil {
			return nil, err
		}
	}
	before, err := l.counters(ctx)
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r.began = time.Now()
	var all sync.WaitGroup
	for node := range c.Nodes {
		all.Go(func() { r.pod(within, node) })
	}
	all.Wait()
	after, err := l.counters(ctx)
	if err != nil {
		return nil, err
	}
	result := &scaleResult{
		scaleCase: c, Ready: r.ready, Given: r.given, Sandboxes: r.sandboxes, Tries: after.tries - before.tries, WAL: after.wal - before.wal,
		CPU: [3]float64{after.apiserver - before.apiserver, after.etcd - before.etcd, after.own - before.own},
	}
	if r.lastError != nil {
		fmt.Fprintln(os.Stderr, "  the last error:", r.lastError)
	}
	return result, result.count(ctx, l.plane, r.began)
}

// count reads the patches from the server's audit log.
func (r *scaleResult) count(ctx context.Context, plane *controlplane.Plane, since time.Time) error {
	requests, err := plane.Requests(ctx, since)
	var busy time.Duration
	for _, q := range requests {
		if q.Code == 429 && q.UserAgent == "node" {
			r.TooMany++
		}
		if q.Verb != "patch" || q.Resource != "ippools" {
			continue
		}
		r.Patches++
		if q.Code != 200 {
			r.Refused++
		}
		busy += q.Latency
	}
	r.InFlight = busy.Seconds() / r.last()
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
type counters struct{ tries, wal, apiserver, etcd, own float64 }

func (l *scaleLab) counters(ctx context.Context) (c counters, err error) {
	etcd, apiserver, err := l.plane.Metrics(ctx)
	if err != nil {
		return c, err
	}
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		return c, err
	}
	c.own = time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()
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
