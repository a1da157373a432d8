package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/gpuplugin"
)

// Pods of a real cluster: from the first request until all are Ready, and from
// the request to delete them until all are gone.

// suite is a set of plugins, or none.
type suite struct {
	id, title string
	prefix    string // of the plugins' names in the node's directory
	subnet    string // of its addresses, the first two numbers
	one       bool   // one network for all rails
	blockSize int    // of the pools of that network, with one host part on all rails; 0 is entry by entry
}

var (
	noRails  = suite{id: "floor", title: "floor: no rail"}
	upstream = suite{id: "upstream", title: "upstream + whereabouts v0.9.4", subnet: "172.30"}
	ourSuite = suite{id: "ours", title: "ours", prefix: "rail-", subnet: "172.31"}
	suites   = []suite{noRails, upstream, ourSuite}

	oneNetwork = suite{id: "one", title: "ours, one network", prefix: "rail-", subnet: "172.28", one: true}
	oneBlocks  = suite{id: "blocks", title: "ours, one network, blocks", prefix: "rail-", subnet: "172.29", one: true, blockSize: 16}
)

// scene is a set of pods that start together.
type scene struct {
	id, title string
	plugin    string
	rails     []string // the NICs of the node, one for each rail of a pod
	pods      int
	limit     float64 // the goal for ours over upstream; 0 for none
	suites    []suite
	allocated bool // the kubelet allocates the NICs
}

var scenes = []scene{
	{"shared", "20 pods at once on 2 nodes, each with a macvlan rail", "macvlan", []string{"rail9"}, 20, 0.6, suites, false},
	lentScene,
	{
		"allocated", "one pod with 8 host-device rails that the kubelet allocates", "host-device", clusterRails[:8], 1, 0,
		append(suites[:3:3], oneNetwork, oneBlocks), true,
	},
}

// lentScene is the one whose CNI calls are measured alone.
var lentScene = scene{"lent", "one pod with 8 host-device rails", "host-device", clusterRails[:8], 1, 0.35, suites, false}

var clusterRails = []string{"rail1", "rail2", "rail3", "rail4", "rail5", "rail6", "rail7", "rail8", "rail9"}

// podLab is the cluster.
type podLab struct {
	*cluster.Cluster
	o       options
	logs    []string // of the nodes' containerds
	plugins []*gpuplugin.Plugin
}

// Close ends the device plugins and the cluster.
func (l *podLab) Close() error {
	var errs []error
	for _, p := range l.plugins {
		errs = append(errs, p.Close())
	}
	return errors.Join(append(errs, l.Cluster.Close())...)
}

const podsPath = "/api/v1/namespaces/default/pods"

// upstreamRole is the role in whereabouts' manifest, beside the rules that the
// account has for our plugin.
const upstreamRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: whereabouts-cni}
rules:
- {apiGroups: [whereabouts.cni.cncf.io], resources: ["*"], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: ["*"]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: whereabouts-cni}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: whereabouts-cni}
subjects: [{kind: ServiceAccount, name: rail-cni-whereabouts, namespace: kube-system}]
`

// newPodLab starts a cluster whose nodes have the plugins of both suites side by
// side, ours by prefixed names, and makes the networks.
func newPodLab(ctx context.Context, o options, dir string) (*podLab, error) {
	plugins, err := sideBySide(o, filepath.Join(dir, "plugins"))
	if err != nil {
		return nil, err
	}
	l := &podLab{o: o}
	clusterDir := filepath.Join(dir, "cluster")
	if err := os.Mkdir(clusterDir, 0o700); err != nil {
		return nil, err
	}
	l.Cluster, err = cluster.New(ctx, clusterDir, cluster.Options{
		Multus: cluster.Thin, Plugins: plugins, Rails: clusterRails, ControlPlane: controlplane.Options{Fsync: true},
	})
	if err != nil {
		return nil, err
	}
	for _, n := range l.Nodes() {
		l.logs = append(l.logs, filepath.Join(clusterDir, n.Name, "containerd.log"))
	}
	if err := l.Apply(ctx, []byte(upstreamRole)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := l.Apply(ctx, networks()); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := l.offerRails(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// sideBySide makes links to the plugins by the names in the nodes' directories.
func sideBySide(o options, dir string) (paths []string, err error) {
	for link, target := range map[string]string{
		"macvlan": filepath.Join(o.peers, "macvlan"), "host-device": filepath.Join(o.peers, "host-device"),
		"whereabouts":      filepath.Join(o.peers, "kubernetes", "whereabouts"),
		"rail-macvlan":     filepath.Join(o.bin, "macvlan"),
		"rail-host-device": filepath.Join(o.bin, "host-device"),
		"rail-whereabouts": filepath.Join(o.bin, "whereabouts"),
	} {
		if target, err = filepath.Abs(target); err != nil {
			return nil, err
		}
		paths = append(paths, filepath.Join(dir, link))
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(target, filepath.Join(dir, link))); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// networks returns the NetworkAttachmentDefinitions of each scene, for each suite.
func networks() []byte {
	var items []any
	for _, sc := range scenes {
		for _, s := range sc.suites[1:] {
			rails := sc.rails
			if s.one {
				rails = rails[:1]
			}
			for _, rail := range rails {
				meta := map[string]any{"name": s.networkName(sc, rail)}
				if sc.allocated {
					meta["annotations"] = map[string]any{"k8s.v1.cni.cncf.io/resourceName": s.resource(rail)}
				}
				items = append(items, map[string]any{
					"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
					"metadata": meta, "spec": map[string]any{"config": encoded(s.network(sc, rail))},
				})
			}
		}
	}
	return []byte(encoded(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}))
}

// encoded returns the JSON of maps, lists and strings, which cannot fail.
func encoded(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (s suite) networkName(sc scene, rail string) string {
	if s.one {
		return s.id + "-" + sc.id
	}
	return strings.Join([]string{s.id, sc.id, rail}, "-")
}

// network returns the CNI configuration of a rail.
func (s suite) network(sc scene, rail string) map[string]any {
	third := slices.Index(clusterRails, rail)
	if sc.allocated {
		third += 100 // other pools than those of the other scenes
	}
	ipam := map[string]any{"type": s.prefix + "whereabouts", "range": fmt.Sprintf("%s.%d.0/24", s.subnet, third)}
	conf := map[string]any{"cniVersion": "1.0.0", "name": s.networkName(sc, rail), "type": s.prefix + sc.plugin, "ipam": ipam}
	switch {
	case s.one:
		conf["rail"], ipam["range"] = "auto", s.subnet+".${rail}.0/24"
		if s.blockSize > 0 {
			ipam["block_size"], ipam["sameHost"] = s.blockSize, true
		}
	case sc.allocated: // Multus adds the address of the NIC
	case sc.plugin == "macvlan":
		conf["master"], conf["mode"] = rail, "bridge"
	default:
		conf["device"] = rail
	}
	return conf
}

// pod returns a pod of a scene on a node. It ends as soon as it gets a signal.
// scheduler finds the node, "" is the cluster's default scheduler.
func pod(name string, s suite, sc scene, node *cluster.Node, scheduler string) map[string]any {
	annotations, limits := map[string]any{}, map[string]int{}
	if s != noRails {
		var names []string
		for _, rail := range sc.rails {
			names = append(names, s.networkName(sc, rail))
			if sc.allocated {
				limits[s.resource(rail)]++
			}
		}
		annotations[nadv1.NetworkAttachmentAnnot] = strings.Join(names, ",")
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "annotations": annotations},
		"spec": map[string]any{
			"schedulerName":                 scheduler,
			"nodeSelector":                  map[string]any{"kubernetes.io/hostname": node.Name},
			"terminationGracePeriodSeconds": 5,
			"containers": []any{map[string]any{
				"name": "c", "image": cluster.ToolsImage, "command": []string{"/bin/sh", "-c", "trap 'exit 0' TERM; sleep 86400 & wait"},
				"resources": map[string]any{"limits": limits},
			}},
		},
	}
}

// seen is the status of a pod that a watch reported.
type seen struct {
	Metadata struct {
		Name        string
		Annotations map[string]string
	}
	Status struct {
		Conditions []struct{ Type, Status string }
	}
}

func (p *seen) ready() bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c struct{ Type, Status string }) bool { return c.Type == "Ready" && c.Status == "True" })
}

// attached returns the number of the pod's interfaces with an address, as
// Multus reports them.
func (p *seen) attached() (n int) {
	var entries []nadv1.NetworkStatus
	if json.Unmarshal([]byte(p.Metadata.Annotations[nadv1.NetworkStatusAnnot]), &entries) != nil {
		return 0
	}
	for _, e := range entries {
		if len(e.IPs) > 0 {
			n++
		}
	}
	return n
}

// until calls do and returns how long it took until is held for each of n pods,
// in seconds, in the order of the pods' success.
func (l *podLab) until(ctx context.Context, n int, do func() error, is func(kind string, p *seen) (bool, error)) (took []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	code, answer, err := l.Admin().Get(ctx, podsPath+"?limit=1")
	if err := errors.Join(answered(code, answer, err), json.Unmarshal(answer, &list)); err != nil {
		return nil, err
	}
	done, began := make(chan error, 1), time.Now()
	go func() { done <- do() }()
	are := map[string]bool{}
	var failed error
	err = l.Admin().Watch(ctx, podsPath+"?resourceVersion="+list.Metadata.ResourceVersion, func(kind string, object json.RawMessage) bool {
		now := time.Now()
		var p seen
		if failed = json.Unmarshal(object, &p); failed != nil || are[p.Metadata.Name] {
			return failed == nil
		}
		if are[p.Metadata.Name], failed = is(kind, &p); are[p.Metadata.Name] {
			took = append(took, now.Sub(began).Seconds())
		}
		return failed == nil && len(took) < n
	})
	return took, errors.Join(err, failed, <-done)
}

// start starts the pods of a scene.
func (l *podLab) start(ctx context.Context, s suite, sc scene, pods int) ([]float64, error) {
	want := 1
	if s != noRails {
		want += len(sc.rails)
	}
	create := func() error {
		errs := make(chan error, pods)
		for i := range pods {
			p := pod(fmt.Sprintf("%s-%s-%d", s.id, sc.id, i), s, sc, l.Node(i%len(l.Nodes())), "")
			go func() { errs <- answered(l.Admin().Create(ctx, podsPath, p)) }()
		}
		var err error
		for range pods {
			err = errors.Join(err, <-errs)
		}
		return err
	}
	return l.until(ctx, pods, create, func(_ string, p *seen) (bool, error) {
		if !p.ready() {
			return false, nil
		}
		if got := p.attached(); got != want {
			return false, fmt.Errorf("%s is ready with %d addresses, not %d", p.Metadata.Name, got, want)
		}
		return true, nil
	})
}

// stop deletes all pods.
func (l *podLab) stop(ctx context.Context, pods int) ([]float64, error) {
	return l.until(ctx, pods, func() error { return answered(l.Admin().Delete(ctx, podsPath)) },
		func(kind string, _ *seen) (bool, error) { return kind == "DELETED", nil })
}

// answered returns an error if the answer is a refusal.
func answered(code int, answer []byte, err error) error {
	if err == nil && code/100 != 2 {
		err = fmt.Errorf("%d %s: %s", code, http.StatusText(code), answer)
	}
	return err
}

// podTimes holds the times of pods in one direction: start or deletion.
type podTimes struct {
	All     []float64 `json:"allSeconds"`  // of each round, until the last pod
	Each    []float64 `json:"eachSeconds"` // of each pod
	Sandbox []float64 `json:"sandboxMs"`   // of each pod's sandbox, as containerd reports
	CPU     []float64 `json:"cpuSeconds"`  // of each round, of all processes of the cluster
	Failed  int       `json:"failedCalls"` // of containerd's, which the kubelet then makes again, later
}

// add adds the times of other.
func (t *podTimes) add(other podTimes) {
	t.All, t.Each, t.Sandbox = append(t.All, other.All...), append(t.Each, other.Each...), append(t.Sandbox, other.Sandbox...)
	t.CPU, t.Failed = append(t.CPU, other.CPU...), t.Failed+other.Failed
}

// podResult holds the times of one suite's pods of a scene.
type podResult struct {
	Start  podTimes `json:"start"`
	Delete podTimes `json:"delete"`

	Disturbed int `json:"disturbedTurns"` // in which a kubelet removed sandboxes
}

// maxTurns is the number of tries of a turn. The last one counts in any case.
const maxTurns = 5

// turn starts and deletes the pods of one suite, and adds their times to r. It discards a
// turn in which a kubelet removed sandboxes of deleted pods, and makes another. A kubelet
// does that once a minute, with two DELs for each sandbox.
func (l *podLab) turn(ctx context.Context, s suite, sc scene, pods int, r *podResult) error {
	for try := 1; ; try++ {
		var got podResult
		disturbed, err := l.once(ctx, s, sc, pods, &got)
		if err != nil {
			return err
		}
		if disturbed {
			fmt.Fprintln(os.Stderr, "    disturbed: a kubelet removed sandboxes of deleted pods")
			r.Disturbed++
		}
		if !disturbed || try == maxTurns {
			r.Start.add(got.Start)
			r.Delete.add(got.Delete)
			return nil
		}
	}
}

// once starts and deletes the pods, and reports whether a kubelet removed sandboxes
// meanwhile.
func (l *podLab) once(ctx context.Context, s suite, sc scene, pods int, r *podResult) (disturbed bool, err error) {
	if err := l.quiet(ctx, l.o.settle); err != nil {
		return false, err
	}
	began := time.Now()
	inStart, err := l.measured(&r.Start, func() ([]float64, error) { return l.start(ctx, s, sc, pods) })
	if err != nil {
		return false, fmt.Errorf("%s, %s: start: %w", sc.id, s.id, err)
	}
	time.Sleep(l.o.settle)
	inDelete, err := l.measured(&r.Delete, func() ([]float64, error) { return l.stop(ctx, pods) })
	if err != nil {
		return false, fmt.Errorf("%s, %s: delete: %w", sc.id, s.id, err)
	}
	for _, log := range l.logs {
		text, err := os.Open(log)
		if err != nil {
			return false, err
		}
		err = errors.Join(r.sandboxes(text, began), text.Close())
		if err != nil {
			return false, err
		}
	}
	return inStart || inDelete, nil
}

// quiet brings the nodes into the state in which each turn begins: all NICs up,
// with carrier, and a pause for the kernel's and the kubelets' work on the pods
// before.
func (l *podLab) quiet(ctx context.Context, pause time.Duration) error {
	time.Sleep(pause)
	for _, n := range l.Nodes() {
		for _, rail := range clusterRails {
			if _, err := n.Exec(ctx, "ip", "link", "set", rail, "up"); err != nil {
				return err
			}
		}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		down := ""
		for _, n := range l.Nodes() {
			out, err := n.Exec(ctx, "ip", "-o", "link", "show", "type", "veth")
			if err != nil {
				return err
			}
			for line := range strings.Lines(out) {
				if strings.Contains(line, ": rail") && !strings.Contains(line, " state UP ") {
					down += n.Name + ": " + line
				}
			}
		}
		if down == "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("NICs do not come up:\n%s", down)
		}
	}
}

// benchPods measures on a cluster, and reports.
func benchPods(o options) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := scenesOf(o.scenes)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.out, "pods-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	a, err := machine()
	if err != nil {
		return err
	}
	a.Label, a.Rounds = o.label, o.rounds
	if a.Against, err = against("the plugins of %s with %s, on a real cluster", o.peers, "host-device", "kubernetes/whereabouts"); err != nil {
		return err
	}
	a.State = "2 nodes, Multus thin; all files of the nodes on tmpfs; etcd on disk, with fsync"
	l, err := newPodLab(ctx, o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	r := &podReport{about: a, results: map[string]map[string]*podResult{}, scenes: chosen}
	if r.versions, err = l.versions(ctx); err != nil {
		return err
	}
	for _, sc := range r.scenes {
		r.results[sc.id] = map[string]*podResult{}
		for _, s := range sc.suites {
			r.results[sc.id][s.id] = &podResult{}
			// The first pod of a network makes the pool, which happens once.
			if _, err := l.once(ctx, s, sc, min(sc.pods, len(l.Nodes())), &podResult{}); err != nil {
				return err
			}
		}
	}
	for round := range o.rounds {
		for _, sc := range r.scenes {
			for i := range sc.suites {
				s := sc.suites[(i+round)%len(sc.suites)]
				fmt.Fprintf(os.Stderr, "  round %d of %d: %s, %s\n", round+1, o.rounds, sc.title, s.title)
				if err := l.turn(ctx, s, sc, sc.pods, r.results[sc.id][s.id]); err != nil {
					return err
				}
			}
		}
	}
	if r.has(lentScene) {
		if r.calls, err = l.callRows(lentScene); err != nil {
			return err
		}
		if err := l.measureCalls(ctx, r.calls, callRounds); err != nil {
			return err
		}
	}
	if r.about.LoadAfter, err = loadAverage(); err != nil {
		return err
	}
	return r.publish(o.out)
}

func (l *podLab) versions(ctx context.Context) (string, error) {
	etcd, apiserver, err := l.Versions(ctx)
	return fmt.Sprintf("Kubernetes %s, etcd %s", apiserver, etcd), err
}
