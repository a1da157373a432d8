package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/valuesets"
)

// The release, and its objects.
const (
	release = "rail-cni"
	ours    = "app.kubernetes.io/name=rail-cni"
	testPod = ours + ",app.kubernetes.io/component=test" // of "helm test"
)

// pluginDirs are those in which sets have the runtime's plugins. On the nodes of this test each is the
// directory that the runtime has.
var pluginDirs = []string{
	"/home/kubernetes/bin", "/var/lib/cni/bin", "/var/lib/rancher/k3s/data/cni", "/var/snap/microk8s/current/opt/cni/bin",
}

// places makes directories of the node that sets name, which are otherwise the machine's.
var places = `mkdir -p /run/sets/home /run/sets/work
mount -t overlay -o lowerdir=/home,upperdir=/run/sets/home,workdir=/run/sets/work overlay /home
mount -t tmpfs tmpfs /usr/local/bin
for dir in ` + strings.Join(pluginDirs, " ") + `; do
	mkdir -p $dir
	mount --bind /opt/cni/bin $dir
done`

// values are those of a release, with the chart's defaults.
type values struct {
	CNIBinDir, CNIConfDir string
	Plugins               struct {
		Names  []string
		Prefix string
	}
	Railctl struct {
		HostDir string
		Install bool
	}
	Reconcile  any
	Reconciler struct{ Replicas int }
	NodePools  []any
	Uninstall  struct{ Enabled bool }
}

// reconcilers returns the number of the reconciler's pods.
func (v *values) reconcilers() int {
	if r := fmt.Sprint(v.Reconcile); r != "deployment" && r != "true" {
		return 0
	}
	return v.Reconciler.Replicas
}

// ofSets is a cluster in which the chart is installed with one set of values after another.
type ofSets struct {
	*installing
	digest string // of the image
	kinds  string // that the API server lists
}

func beginSets(t *testing.T) *ofSets {
	t.Helper()
	need.Cluster(t)
	l := &ofSets{installing: &installing{v1: build(t, "devel", valuesets.Tag)}}
	digest, err := os.ReadFile(strings.TrimSuffix(l.v1.archive, ".tar") + ".digest")
	need.NoError(t, err)
	l.digest = strings.TrimSpace(string(digest))
	l.lab = &lab{Cluster: cluster.Start(t, cluster.Options{
		Multus: cluster.Thin, Hardware: true, ControlPlane: controlplane.Options{CRDs: valuesets.PrometheusOperator(t)},
	})}
	need.NoError(t, l.LoadImage(t.Context(), l.v1.archive))
	ctr, err := controlplane.Built("RAIL_CNI_RUNTIME", "tools", "runtime")
	need.NoError(t, err)
	for i, n := range l.Nodes() {
		const image = "localhost/rail-cni"
		tag := []string{"--namespace", "k8s.io", "images", "tag", image + ":devel", image + "@" + l.digest} // as a pull does
		_, err := n.Exec(t.Context(), append([]string{filepath.Join(ctr, "ctr")}, tag...)...)
		need.NoError(t, err)
		_, err = n.Exec(t.Context(), "sh", "-ec", places)
		need.NoError(t, err)
		l.kubectl(t, "label", "node", n.Name, "a=b", "gpu="+[]string{"a", "b"}[i])
		l.was = append(l.was, l.files(t, n))
	}
	certificate, err := l.ServingCertificate("rail-agent", "rail-agent")
	need.NoError(t, err)
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	need.NoError(t, errors.Join(os.WriteFile(crt, certificate.Certificate, 0o600), os.WriteFile(key, certificate.Key, 0o600)))
	l.kubectl(t, "--namespace", "kube-system", "create", "secret", "tls", "a", "--cert", crt, "--key", key)
	l.kinds = strings.Join(strings.Fields(l.kubectl(t, "api-resources", "--verbs=list", "--output=name")), ",")
	return l
}

// TestChartIsInstalledWithEachSetOfValues installs the chart with each set, attaches rails to pods, and
// uninstalls it. With each set the agents and the reconciler must get ready, the files be where the set
// has them, the pods reach each other, and nothing be left.
func TestChartIsInstalledWithEachSetOfValues(t *testing.T) {
	l := beginSets(t)
	for _, set := range valuesets.All {
		t.Run(set.Name, func(t *testing.T) {
			began := time.Now()
			t.Cleanup(func() { l.clear(t) })
			v := l.install(t, &set)
			after := func() time.Duration { return time.Since(began).Round(100 * time.Millisecond) }
			installed := after()
			l.wantReady(t, v)
			l.wantFiles(t, v)
			l.wantRails(t, v)
			if more := ofSet[set.Name]; more != nil {
				more(t, l)
			}
			used := after()
			l.uninstall(t, v)
			t.Logf("installed after %v, used after %v, uninstalled after %v", installed, used, after())
		})
	}
	for name := range ofSet {
		if !slices.ContainsFunc(valuesets.All, func(s valuesets.Set) bool { return s.Name == name }) {
			t.Errorf("there is no set %q", name)
		}
	}
}

// install installs the chart with a set, and returns the values of the release.
func (l *ofSets) install(t *testing.T, set *valuesets.Set) *values {
	t.Helper()
	args := []string{"install", release, chart, "--wait"}
	for _, arg := range valuesets.Args(chart, slices.Concat(set.Values, set.Here)...) {
		args = append(args, strings.ReplaceAll(arg, valuesets.NoDigest, l.digest))
	}
	l.helm(t, args...)
	v := &values{}
	text := l.must(t, testnet.Tool(t, "helm", "tools"), "get", "values", release, "--all", "--output", "json", "--namespace", "kube-system")
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatal(err)
	}
	return v
}

// wantReady fails the test unless helm's test finds an agent on each node, and the reconcilers.
func (l *ofSets) wantReady(t *testing.T, v *values) {
	t.Helper()
	said := l.helm(t, "test", release, "--logs")
	wanted := []string{"address pools in kube-system: "}
	if n := len(v.NodePools); n == 0 {
		wanted = append(wanted, "agent: 2 of 2 nodes are ready")
	} else {
		wanted = append(wanted, "agent-a: 1 of 1 nodes are ready", "agent-b-2: 1 of 1 nodes are ready")
	}
	if n := v.reconcilers(); n > 0 {
		wanted = append(wanted, fmt.Sprintf("reconciler: %d of %d pods are ready", n, n))
	}
	for _, want := range wanted {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in %s", want, said)
		}
	}
	for component, want := range map[string]int{"agent": len(l.Nodes()), "reconciler": v.reconcilers()} {
		if have := l.pods(t, component); len(have) != want {
			t.Errorf("%d pods of the %s, not %d: %q", len(have), component, want, have)
		}
	}
}

// pods returns the names of the pods of a component.
func (l *ofSets) pods(t *testing.T, component string) []string {
	t.Helper()
	return l.names(t, "pods", ours+",app.kubernetes.io/component="+component)
}

// names returns the names of the objects of a kind in the release's namespace.
func (l *ofSets) names(t *testing.T, kind, selector string) []string {
	t.Helper()
	const names = "jsonpath={.items[*].metadata.name}"
	return strings.Fields(l.kubectl(t, "--namespace", "kube-system", "get", kind, "--selector", selector, "--output", names))
}

// wantFiles fails the test unless each node has the plugins of the values and no others, what
// whereabouts finds the API server by, and railctl.
func (l *ofSets) wantFiles(t *testing.T, v *values) {
	t.Helper()
	for i, n := range l.Nodes() {
		added := map[string]bool{}
		for line := range strings.Lines(testnet.Tree(t, n.Path(v.CNIBinDir))) {
			if !strings.Contains(l.was[i], line) {
				path, _, _ := strings.Cut(line, " ")
				added[strings.TrimPrefix(path, "/")] = true
			}
		}
		wantSame := func(path, program string) {
			t.Helper()
			want, err := os.ReadFile(filepath.Join(l.v1.bin, program))
			have, haveErr := os.ReadFile(n.Path(path))
			if err := errors.Join(err, haveErr); err != nil || string(have) != string(want) {
				t.Errorf("%s: %s is not %s: %v", n.Name, path, program, err)
			}
		}
		for _, name := range v.Plugins.Names {
			wantSame(filepath.Join(v.CNIBinDir, v.Plugins.Prefix+name), name)
			delete(added, v.Plugins.Prefix+name)
		}
		for name := range added {
			t.Errorf("%s: %s has %s too", n.Name, v.CNIBinDir, name)
		}
		for _, name := range []string{"whereabouts.conf", "whereabouts.kubeconfig", "nodename"} {
			if _, err := os.Stat(n.Path(filepath.Join(v.CNIConfDir, "whereabouts.d", name))); err != nil {
				t.Errorf("%s: %v", n.Name, err)
			}
		}
		if path := filepath.Join("/usr/local/bin", "railctl"); v.Railctl.HostDir != "" && v.Railctl.Install {
			wantSame(path, "railctl")
		} else if _, err := os.Stat(n.Path(path)); err == nil {
			t.Errorf("%s has %s", n.Name, path)
		}
	}
}

// wantRails fails the test unless pods on both nodes get their rails, and reach each other by them.
func (l *ofSets) wantRails(t *testing.T, v *values) {
	t.Helper()
	prefix := v.Plugins.Prefix
	network := func(name, plugin, keys, subnet string) {
		l.nad(t, name, `{"cniVersion": "1.0.0", "name": "`+name+`", "type": "`+prefix+plugin+`", `+keys+`,
			"ipam": {"type": "`+prefix+`whereabouts", "range": "`+subnet+`"}}`)
	}
	network("shared", "macvlan", `"master": "ens2f0", "mtu": 9000`, "10.44.0.0/24")
	networks, rails := "shared", 1
	if slices.Contains(v.Plugins.Names, "host-device") {
		network("whole", "host-device", `"device": "ens12np0"`, "10.45.0.0/24")
		networks, rails = "shared,whole", 2
	}
	l.run(t, pod{name: "a", node: 0, networks: networks}, pod{name: "b", node: 1, networks: networks})
	there := l.interfaces(t, "b")
	for i := 1; i <= rails; i++ {
		name := fmt.Sprintf("net%d", i)
		address, _, _ := strings.Cut(there[name].ipv4(), "/")
		l.exec(t, "a", "ping", "-c1", "-W5", "-s", "8972", "-I", name, address)
	}
}

// uninstall uninstalls the release, and fails the test if anything is left.
func (l *ofSets) uninstall(t *testing.T, v *values) {
	t.Helper()
	if v.Uninstall.Enabled { // it waits for the pods
		l.kubectl(t, "delete", "pod", "a", "b", "--wait=false")
	} else {
		l.delete(t, "a", "b")
	}
	l.helm(t, "uninstall", release, "--wait")
	if !v.Uninstall.Enabled {
		l.wantFiles(t, v) // the nodes are as they were
		l.uninstallNodes(t)
	}
	l.kubectl(t, "--namespace", "kube-system", "delete", "pod", "--selector", testPod, "--now") // as the guide says
	left := ""
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) { // pods end after their DaemonSet
		left = l.kubectl(t, "get", l.kinds, "--all-namespaces", "--selector", ours, "--output", "name", "--ignore-not-found")
		if left == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("there is left: %s", left)
		}
	}
	l.wantAsBefore(t)
	for _, n := range l.Nodes() {
		for _, dir := range []string{filepath.Join(v.CNIConfDir, "whereabouts.d"), "/usr/local/bin/railctl"} {
			if _, err := os.Lstat(n.Path(dir)); err == nil {
				t.Errorf("%s: %s is left", n.Name, dir)
			}
		}
		// Not all of these exist.
		found, _ := n.Exec(t.Context(), "find", "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/device-plugins",
			"/run/cdi", "/var/snap", "-name", "*rail*")
		if left := strings.TrimSpace(found); left != "" {
			t.Errorf("%s: there is left: %s", n.Name, left)
		}
		for _, r := range l.records(t, n) {
			t.Errorf("%s: a record is left, of %s", n.Name, r.Holder())
		}
	}
	for _, left := range l.held(t) {
		t.Errorf("an address is left: %s", left)
	}
	if conditions := l.conditions(t); strings.Contains(conditions, "Rail") {
		t.Errorf("conditions of the Nodes are left: %s", conditions)
	}
}

// uninstallNodes does on each node what the chart left undone.
func (l *ofSets) uninstallNodes(t *testing.T) {
	t.Helper()
	for _, n := range l.Nodes() {
		if out, err := n.Command(context.Background(), filepath.Join(l.v1.bin, "rail-agent"), "uninstall").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", n.Name, err, out)
		}
	}
}

// conditions returns the types of the conditions of all Nodes.
func (l *ofSets) conditions(t *testing.T) string {
	t.Helper()
	return l.kubectl(t, "get", "nodes", "--output", "jsonpath={.items[*].status.conditions[*].type}")
}

// clear removes what a test that failed has left, so that it affects no others.
func (l *ofSets) clear(t *testing.T) {
	if !t.Failed() {
		return
	}
	ctx, home := context.Background(), filepath.Join(l.v1.bin, "..")
	logs, _ := l.Kubectl(ctx, "--namespace", "kube-system", "logs", "--selector", ours, "--prefix", "--tail=30")
	t.Log(logs)
	_, _ = l.Kubectl(ctx, "delete", "pod", "a", "b", "--ignore-not-found", "--wait", patience)
	_, _ = l.Kubectl(ctx, "--namespace", "kube-system", "delete", "pod", "--selector", testPod, "--now")
	helm := l.toolCommand(ctx, home, testnet.Tool(t, "helm", "tools"),
		"uninstall", release, "--namespace", "kube-system", "--ignore-not-found", "--no-hooks", "--wait")
	if out, err := helm.CombinedOutput(); err != nil {
		t.Logf("%v\n%s", err, out)
	}
	for _, n := range l.Nodes() {
		_, _ = n.Exec(ctx, filepath.Join(l.v1.bin, "rail-agent"), "uninstall", "--force")
	}
}

// ofSet are further checks of sets, by the name of the set.
var ofSet = map[string]func(*testing.T, *ofSets){
	"logs for a collector": func(t *testing.T, l *ofSets) {
		for _, pod := range append(l.pods(t, "agent"), l.pods(t, "reconciler")...) {
			for line := range strings.Lines(l.kubectl(t, "--namespace", "kube-system", "logs", pod)) {
				if !json.Valid([]byte(line)) {
					t.Errorf("%s: %s", pod, line)
				}
			}
		}
	},
	"more of everything for the agents": func(t *testing.T, l *ofSets) {
		for _, n := range l.Nodes() {
			found, err := n.Exec(t.Context(), "sh", "-c",
				`for p in /proc/[0-9]*; do grep -qx rail-agent $p/comm && tr '\0' '\n' <$p/environ; done`)
			if !strings.Contains(found, "GOMEMLIMIT=64MiB\n") {
				t.Errorf("%s: the agent has another environment: %s (%v)", n.Name, found, err)
			}
		}
	},
	"condition of Nodes": func(t *testing.T, l *ofSets) {
		for began := time.Now(); strings.Count(l.conditions(t), "RailNetworkReady") < len(l.Nodes()); time.Sleep(200 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("the conditions are %s", l.conditions(t))
			}
		}
	},
	"dashboards": func(t *testing.T, l *ofSets) {
		if maps := l.names(t, "configmaps", "grafana_dashboard=1"); len(maps) != 4 {
			t.Errorf("dashboards: %q", maps)
		}
	},
	"metrics for Prometheus": func(t *testing.T, l *ofSets) { l.wantSecureMetrics(t, 9500) },
	"Prometheus Operator": func(t *testing.T, l *ofSets) {
		l.wantSecureMetrics(t, 9400)
		for _, kind := range []string{"podmonitors", "prometheusrules"} {
			if names := l.names(t, kind, "release=prom"); !slices.Equal(names, []string{"rail-cni"}) {
				t.Errorf("%s: %q", kind, names)
			}
		}
	},
}

// wantSecureMetrics fails the test unless agents and reconciler serve their metrics by HTTPS on the
// address of their pods, and for accounts only. The API server's proxy passes on no credentials.
func (l *ofSets) wantSecureMetrics(t *testing.T, port int) {
	t.Helper()
	for _, pod := range append(l.pods(t, "agent"), l.pods(t, "reconciler")...) {
		path := fmt.Sprintf("/api/v1/namespaces/kube-system/pods/https:%s:%d/proxy/metrics", pod, port)
		code, answer, err := l.Admin().Get(t.Context(), path)
		if err != nil || code != http.StatusUnauthorized {
			t.Errorf("%s: %d, %v: %.200s", pod, code, err, answer)
		}
	}
}
