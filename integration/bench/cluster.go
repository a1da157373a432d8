package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/controlplane"
)

// The addresses of the cluster: ADD and DEL of a macvlan through cnitool, with
// each IPAM plugin in turn, against a real API server.

// The IPAM plugins, in the order of the report.
const (
	hostLocal   = "host-local"
	whereabouts = "whereabouts v0.9.4"
	ours        = "ours"
	oursBoth    = "ours, with our macvlan"
	oursLocal   = "ours, local store"
	oursBlocks  = "ours, blocks"
)

var clusterPlugins = []string{hostLocal, whereabouts, ours, oursBoth, oursLocal, oursBlocks}

// knowsOneNode reports whether an IPAM plugin assigns addresses for one node alone.
func knowsOneNode(name string) bool { return name == hostLocal || name == oursLocal }

const (
	clusterNIC   = "rail0"
	clusterNodes = 10  // over which the pods of one row are spread
	clusterPods  = 100 // network namespaces; the largest number of pods that start at once
	clusterRange = "10.96.0.0/16"
	clusterBlock = 64 // addresses: more than the rows have pods on a node
	oneNode      = 1
)

// workload is a number of pods, how many of them start at once, and on how many
// nodes.
type workload struct {
	pods, together, nodes int
}

func (w workload) String() string {
	switch {
	case w == firsts:
		return fmt.Sprintf("the first on each of %d nodes", w.nodes)
	case w.together == 1:
		return fmt.Sprintf("%d, one after another", w.pods)
	case w.nodes > 1:
		return fmt.Sprintf("%d at once, on %d nodes", w.pods, w.nodes)
	}
	return fmt.Sprintf("%d at once", w.pods)
}

var (
	sequential = workload{10, 1, oneNode}
	twenty     = workload{20, 20, oneNode}
	fifty      = workload{50, 50, oneNode}
	spread     = workload{50, 50, clusterNodes}
	workloads  = []workload{sequential, twenty, fifty, spread}

	// firsts is measured once, of a plugin whose nodes have state of the pool: each makes
	// it by its first ADD.
	firsts = workload{clusterNodes, 1, clusterNodes}
)

// clusterLab is the node with a control plane beside it.
type clusterLab struct {
	o       options
	plane   *controlplane.Plane
	dir     string // on the file system of the output
	confs   string // <plugin>/<node>/net.conflist
	path    map[string]string
	cnitool string
}

// newClusterLab starts a control plane with the given etcd ("" is the newest)
// and writes the configurations.
func newClusterLab(ctx context.Context, o options, p places, etcd string) (*clusterLab, error) {
	dir, err := os.MkdirTemp(p.disk, "cluster-")
	if err != nil {
		return nil, err
	}
	planeDir := filepath.Join(dir, "plane")
	if err := os.Mkdir(planeDir, 0o700); err != nil {
		return nil, err
	}
	l := &clusterLab{o: o, dir: dir, confs: filepath.Join(dir, "confs"), cnitool: filepath.Join(p.bin, "cnitool")}
	if l.plane, err = controlplane.New(ctx, planeDir, controlplane.Options{Audit: true, Fsync: true, Etcd: etcd}); err != nil {
		return nil, err
	}
	peer := filepath.Join(p.peers, "kubernetes")
	l.path = map[string]string{
		hostLocal:   p.peers,
		whereabouts: peer + ":" + p.peers,
		oursBoth:    p.bin,
	}
	// Upstream's macvlan for all others, so that only the addresses differ.
	for _, name := range []string{ours, oursLocal, oursBlocks} {
		l.path[name] = filepath.Join(dir, "ours") + ":" + p.peers
	}
	return l, errors.Join(
		os.Mkdir(filepath.Join(dir, "ours"), 0o755),
		os.Symlink(filepath.Join(p.bin, "whereabouts"), filepath.Join(dir, "ours", "whereabouts")),
		l.configure(p),
	)
}

func (l *clusterLab) close() {
	l.plane.Close()
	_ = os.RemoveAll(l.dir)
}

// configure writes a network of each plugin for each node.
func (l *clusterLab) configure(p places) error {
	flat := filepath.Join(l.dir, "whereabouts.conf") // whereabouts requires this file
	if err := os.WriteFile(flat, []byte("{}"), 0o600); err != nil {
		return err
	}
	for name := range l.path {
		for node := range clusterNodes {
			state := fmt.Sprint(p.state, "-node", node) // beside it: in a state directory it would be refused
			conf := map[string]any{
				"cniVersion": "1.0.0", "name": space(name),
				"plugins": []any{map[string]any{
					"type": "macvlan", "master": clusterNIC, "mode": "bridge", "stateDir": state,
					"ipam": clusterIPAM(name, l.plane.AdminKubeconfig(), flat),
				}},
			}
			data, err := json.Marshal(conf)
			if err != nil {
				return err
			}
			dir := l.confDir(name, node)
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(state, 0o700)); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, "net.conflist"), data, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// clusterIPAM returns the ipam config of a plugin.
func clusterIPAM(name, kubeconfig, flat string) map[string]any {
	ipam := map[string]any{"type": "whereabouts", "range": clusterRange, "network_name": space(name)}
	switch name {
	case hostLocal:
		return map[string]any{
			"type": hostLocal, "dataDir": "/run/host-local",
			"ranges": []any{[]any{map[string]any{"subnet": clusterRange}}},
		}
	case oursLocal:
		ipam["store"] = "local"
		return ipam
	case oursBlocks:
		ipam["block_size"] = clusterBlock
	}
	ipam["configuration_path"] = flat
	ipam["kubernetes"] = map[string]any{"kubeconfig": kubeconfig}
	return ipam
}

// space returns the namespace of one plugin's pools and networks.
func space(name string) string {
	return map[string]string{
		hostLocal: "host-local", whereabouts: "theirs", ours: "ours", oursBoth: "ours-both", oursLocal: "ours-local", oursBlocks: "ours-blocks",
	}[name]
}

func (l *clusterLab) confDir(name string, node int) string {
	return filepath.Join(l.confs, space(name), fmt.Sprint(node))
}

func podNetns(i int) string { return filepath.Join(netnsDir, fmt.Sprint("pod", i)) }

// call runs cnitool for one pod, and returns how long that took, and the CPU time of
// cnitool and the plugins.
func (l *clusterLab) call(name, verb string, pod, node int) (took, cpu time.Duration, err error) {
	cmd := exec.Command(l.cnitool, verb, space(name), podNetns(pod))
	cmd.Env = []string{
		"CNI_PATH=" + l.path[name], "NETCONFPATH=" + l.confDir(name, node), "CNI_IFNAME=" + ifName,
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-%d", pod),
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", nodeFileEnv(), fmt.Sprint("NODENAME=node-", node),
	}
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took = time.Since(began)
	if err != nil {
		return 0, 0, fmt.Errorf("%s, cnitool %s: %w: %s", name, verb, err, message(out))
	}
	return took, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// serverCPU returns the CPU time of etcd and kube-apiserver so far, in milliseconds.
// They are the only children of this process between two calls of plugins.
func serverCPU() (float64, error) {
	pids, err := children()
	if err != nil {
		return 0, err
	}
	for i := range pids {
		pids[i] = "/proc/" + pids[i] + "/stat"
	}
	seconds, err := sumCPU(pids)
	return 1000 * seconds, err
}

// clusterResult is what one verb of a workload cost.
type clusterResult struct {
	each     []float64 // milliseconds of each call
	wall     []float64 // milliseconds of each round
	requests []float64 // of each round, for each call
	// CPU time for each call of each round, in milliseconds: of cnitool and the plugins,
	// and of etcd and kube-apiserver.
	plugins, servers []float64
}

// verb runs one verb of w and adds to r.
func (l *clusterLab) verb(ctx context.Context, name, verb string, w workload, r *clusterResult) error {
	before, err := serverCPU()
	if err != nil {
		return err
	}
	began := time.Now()
	took, cpu := make([]float64, w.pods), make([]time.Duration, w.pods)
	errs := make([]error, w.pods)
	slots := make(chan struct{}, w.together)
	var wg sync.WaitGroup
	for i := range w.pods {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			var t time.Duration
			t, cpu[i], errs[i] = l.call(name, verb, i, i%w.nodes)
			took[i] = milliseconds(t)
			<-slots
		}()
	}
	wg.Wait()
	wall := milliseconds(time.Since(began))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	after, err := serverCPU()
	if err != nil {
		return err
	}
	var plugins time.Duration
	for _, t := range cpu {
		plugins += t
	}
	r.plugins = append(r.plugins, milliseconds(plugins)/float64(w.pods))
	r.servers = append(r.servers, (after-before)/float64(w.pods))
	n, err := l.requests(ctx, began)
	r.each, r.wall = append(r.each, took...), append(r.wall, wall)
	r.requests = append(r.requests, float64(n)/float64(w.pods))
	return err
}

// requests returns the number of requests since a time, without the server's
// own.
func (l *clusterLab) requests(ctx context.Context, since time.Time) (int, error) {
	all, err := l.plane.Requests(ctx, since)
	n := 0
	for _, r := range all {
		if !strings.HasPrefix(r.User, "system:") {
			n++
		}
	}
	return n, err
}

// clusterRun holds the measurements with one etcd.
type clusterRun struct {
	versions string
	add, del map[string]map[workload]*clusterResult
}

// measure measures each workload rounds times with each plugin, in turn, and in another
// order in each round.
func (l *clusterLab) measure(ctx context.Context, names []string, ws []workload, rounds int) (*clusterRun, error) {
	etcd, apiserver, err := l.plane.Versions(ctx)
	if err != nil {
		return nil, err
	}
	r := &clusterRun{
		versions: fmt.Sprintf("etcd %s, kube-apiserver %s", etcd, apiserver),
		add:      map[string]map[workload]*clusterResult{}, del: map[string]map[workload]*clusterResult{},
	}
	for _, name := range names {
		r.add[name], r.del[name] = map[workload]*clusterResult{}, map[workload]*clusterResult{}
		for _, w := range ws {
			r.add[name][w], r.del[name][w] = &clusterResult{}, &clusterResult{}
		}
		if err := l.first(ctx, name, r); err != nil {
			return nil, err
		}
	}
	for round := range rounds {
		for _, w := range ws {
			fmt.Fprintf(os.Stderr, "  %s, round %d of %d: %s\n", r.versions, round+1, rounds, w)
			for _, i := range order(len(names), round) {
				name := names[i]
				if w.nodes > 1 && knowsOneNode(name) {
					continue
				}
				if err := l.both(ctx, name, w, r.add[name][w], r.del[name][w]); err != nil {
					return nil, err
				}
			}
		}
	}
	return r, nil
}

// first makes the pool of a plugin, which happens once in a pool's life, and the first
// ADD of each node if that differs from those after it.
func (l *clusterLab) first(ctx context.Context, name string, r *clusterRun) error {
	if name != oursBlocks {
		return l.both(ctx, name, workload{1, 1, oneNode}, &clusterResult{}, &clusterResult{})
	}
	r.add[name][firsts], r.del[name][firsts] = &clusterResult{}, &clusterResult{}
	return l.both(ctx, name, firsts, r.add[name][firsts], r.del[name][firsts])
}

func (l *clusterLab) both(ctx context.Context, name string, w workload, add, del *clusterResult) error {
	if err := l.verb(ctx, name, "add", w, add); err != nil {
		return err
	}
	return l.verb(ctx, name, "del", w, del)
}

// benchCluster measures, inside the node, and reports.
func benchCluster(o options) error {
	ctx := context.Background()
	p, err := findPlaces(o)
	if err != nil {
		return err
	}
	defer os.RemoveAll(p.disk)
	a, err := machine()
	if err != nil {
		return err
	}
	a.Label, a.Rounds = o.label, o.rounds
	if a.Against, err = against("%s and %s, on a real API server", o.peers, "kubernetes/whereabouts", "host-local"); err != nil {
		return err
	}
	a.State = "state of the node's plugins on tmpfs; etcd on disk, with fsync"
	if err := clusterNode(); err != nil {
		return err
	}
	report := &clusterReport{about: a}
	for _, etcd := range append([]string{""}, o.etcds...) {
		if err := report.measure(ctx, o, p, etcd); err != nil {
			return err
		}
	}
	if report.about.LoadAfter, err = loadAverage(); err != nil {
		return err
	}
	return report.publish(o.out)
}

// clusterNode makes the NIC and the pods.
func clusterNode() error {
	// libcni's cache is below it; on tmpfs, as the plugins' own state.
	const cache = "/var/lib"
	if err := unix.Mount("tmpfs", cache, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mounting %s for the node: %w", cache, err)
	}
	if err := addNIC(clusterNIC); err != nil {
		return err
	}
	if err := readyNICs(map[string]string{clusterNIC: "192.0.2.1/24"}); err != nil {
		return err
	}
	for i := range clusterPods {
		if err := ip("netns", "add", filepath.Base(podNetns(i))); err != nil {
			return err
		}
	}
	return nil
}

func (r *clusterReport) measure(ctx context.Context, o options, p places, etcd string) error {
	l, err := newClusterLab(ctx, o, p, etcd)
	if err != nil {
		return err
	}
	defer l.close()
	run, err := l.measure(ctx, clusterPlugins, workloads, o.rounds)
	if err != nil {
		return err
	}
	r.runs = append(r.runs, run)
	if etcd != "" {
		return nil // the pictures are of the newest only
	}
	if r.wall, err = l.wallOverParallelism(ctx, clusterPlugins); err != nil {
		return err
	}
	r.fill, err = l.addOverFill(ctx, []string{whereabouts, ours})
	return err
}

// wallOverParallelism returns, by plugin, the wall time of ADD for each number
// of pods that start at once, in seconds.
func (l *clusterLab) wallOverParallelism(ctx context.Context, names []string) (map[string][]point, error) {
	lines := map[string][]point{}
	for _, n := range []int{1, 2, 5, 10, 20, 50, clusterPods} {
		fmt.Fprintf(os.Stderr, "  picture: %d at once\n", n)
		for _, name := range names {
			add := &clusterResult{}
			if err := l.both(ctx, name, workload{n, n, oneNode}, add, &clusterResult{}); err != nil {
				return nil, err
			}
			lines[name] = append(lines[name], point{float64(n), add.wall[0] / 1000})
		}
	}
	return lines, nil
}

// addOverFill returns, by plugin, the median time of an ADD for each number of
// addresses in use, in milliseconds.
func (l *clusterLab) addOverFill(ctx context.Context, names []string) (map[string][]point, error) {
	lines := map[string][]point{}
	for _, n := range []int{0, 1000, 2500, 5000, 7500, 10000} {
		fmt.Fprintf(os.Stderr, "  picture: %d addresses handed out\n", n)
		for _, name := range names {
			if err := l.fillPool(ctx, name, n); err != nil {
				return nil, err
			}
			add := &clusterResult{}
			if err := l.both(ctx, name, workload{5, 1, oneNode}, add, &clusterResult{}); err != nil {
				return nil, err
			}
			lines[name] = append(lines[name], point{float64(n), median(add.each)})
		}
	}
	return lines, nil
}

// fillPool adds n entries of other pods to the plugin's pool, from the lowest
// address on.
func (l *clusterLab) fillPool(ctx context.Context, name string, n int) error {
	const pools = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools/"
	entries := make(map[string]any, n)
	for i := range n {
		entries[fmt.Sprint(i+1)] = map[string]any{"id": fmt.Sprintf("%064x", i), "podref": fmt.Sprint("default/other-", i), "ifname": ifName}
	}
	path := pools + space(name) + "-" + strings.ReplaceAll(clusterRange, "/", "-")
	patch := map[string]any{"spec": map[string]any{"allocations": entries}}
	code, answer, err := l.plane.Admin().Patch(ctx, path, "application/merge-patch+json", patch)
	if err == nil && code != 200 {
		err = fmt.Errorf("filling %s: %d %s", path, code, answer)
	}
	return err
}
