package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/install/cluster"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

const (
	agents = "/apis/apps/v1/namespaces/kube-system/daemonsets/rail-agent"
	crds   = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// installed is a real API server on which rail-cni is installed. The test plays
// controllers, kubelets and agents.
type installed struct {
	t     *testing.T
	plane *controlplane.Plane
	u     cluster.Uninstaller

	mu   sync.Mutex
	said []string
}

func newInstalled(t *testing.T) *installed {
	t.Helper()
	c := &installed{t: t, plane: controlplane.Start(t, controlplane.Options{})}
	client, err := kube.Open(kube.Config{Kubeconfig: c.plane.AdminKubeconfig()})
	if err != nil {
		t.Fatal(err)
	}
	c.u = cluster.Uninstaller{Client: client, Namespace: "kube-system", Timeout: time.Hour, Report: func(line string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.said = append(c.said, line)
	}}
	for _, text := range c.objects() {
		var o struct {
			Kind     string
			Metadata struct{ Namespace string }
		}
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		c.do(http.MethodPost, collection(o.Kind, o.Metadata.Namespace), controlplane.YAML, []byte(text))
	}
	return c
}

func (c *installed) objects() []string {
	c.t.Helper()
	objects, err := cluster.Manifest{}.Objects()
	if err != nil {
		c.t.Fatal(err)
	}
	component, err := os.ReadFile("../../../deployments/kustomize/api-priority/priority.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	return append(objects, strings.Split(string(component), "\n---\n")...)
}

// collection returns the path of the objects of a kind.
func collection(kind, namespace string) string {
	const flow, admission = "/apis/flowcontrol.apiserver.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
	group := map[string]string{
		"ServiceAccount": "/api/v1", "DaemonSet": "/apis/apps/v1", "Deployment": "/apis/apps/v1", "Lease": "/apis/coordination.k8s.io/v1",
		"FlowSchema": flow, "PriorityLevelConfiguration": flow, "ValidatingAdmissionPolicy": admission, "ValidatingAdmissionPolicyBinding": admission,
	}[kind]
	if group == "" {
		group = "/apis/rbac.authorization.k8s.io/v1"
	}
	if namespace != "" {
		group += "/namespaces/" + namespace
	}
	return group + "/" + strings.Replace(strings.ToLower(kind)+"s", "policys", "policies", 1)
}

func (c *installed) do(method, path, contentType string, body any) []byte {
	c.t.Helper()
	code, answer, err := c.plane.Admin().Do(c.t.Context(), method, path, contentType, body)
	if err != nil || code >= http.StatusBadRequest {
		c.t.Fatal(method, path, code, string(answer), err)
	}
	return answer
}

func (c *installed) merge(path string, patch map[string]any) {
	c.t.Helper()
	c.do(http.MethodPatch, path, "application/merge-patch+json", patch)
}

// agentsAre sets the status of the DaemonSet: it has all agents, all of them are up to date, and
// the number ready of them are ready.
func (c *installed) agentsAre(ready, all int) {
	c.t.Helper()
	var d struct{ Metadata struct{ Generation int64 } }
	if err := json.Unmarshal(c.do(http.MethodGet, agents, "", nil), &d); err != nil {
		c.t.Fatal(err)
	}
	c.merge(agents+"/status", map[string]any{"status": map[string]any{
		"observedGeneration": d.Metadata.Generation, "desiredNumberScheduled": all, "updatedNumberScheduled": all, "numberReady": ready,
		"currentNumberScheduled": all, "numberMisscheduled": 0,
	}})
}

// agentOn makes the pod of a node's agent.
func (c *installed) agentOn(node string, ready bool) {
	c.t.Helper()
	const pods = "/api/v1/namespaces/kube-system/pods"
	c.do(http.MethodPost, pods, "", map[string]any{
		"metadata": map[string]any{"name": "rail-agent-" + node, "labels": map[string]any{
			"app.kubernetes.io/name": "rail-cni", "app.kubernetes.io/component": "agent",
		}},
		"spec": map[string]any{
			"nodeName": node, "serviceAccountName": "rail-cni-agent", "automountServiceAccountToken": false,
			"containers": []any{map[string]any{"name": "rail-agent", "image": "none"}},
		},
	})
	status := "False"
	if ready {
		status = "True"
	}
	c.merge(pods+"/rail-agent-"+node+"/status", map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status}}}})
}

// eventOf makes an Event of a node, like the Events of the node's agent.
func (c *installed) eventOf(node, reason, message string, age time.Duration) {
	c.t.Helper()
	c.do(http.MethodPost, "/api/v1/namespaces/default/events", "", map[string]any{
		"metadata":       map[string]any{"name": fmt.Sprintf("%s.%x", node, time.Now().UnixNano()), "namespace": "default"},
		"involvedObject": map[string]any{"kind": "Node", "name": node, "uid": node},
		"reason":         reason, "message": message, "type": "Warning", "lastTimestamp": time.Now().Add(-age).UTC().Format(time.RFC3339),
	})
}

// args returns the arguments of the agents.
func (c *installed) args() string {
	c.t.Helper()
	var d struct {
		Spec struct {
			UpdateStrategy struct{ RollingUpdate struct{ MaxUnavailable any } }
			Template       struct {
				Spec struct {
					Containers []struct{ Args []string }
				}
			}
		}
	}
	if err := json.Unmarshal(c.do(http.MethodGet, agents, "", nil), &d); err != nil {
		c.t.Fatal(err)
	}
	return strings.Join(d.Spec.Template.Spec.Containers[0].Args, " ") + fmt.Sprint(" unavailable=", d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable)
}

// left returns the number of objects that are left.
func (c *installed) left() int {
	c.t.Helper()
	n := 0
	seen := map[string]bool{}
	for _, kind := range []string{
		"ServiceAccount", "DaemonSet", "Deployment", "Lease", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "FlowSchema", "PriorityLevelConfiguration",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	} {
		path := collection(kind, "")
		if seen[path] {
			continue
		}
		seen[path] = true
		var list struct{ Items []json.RawMessage }
		if err := json.Unmarshal(c.do(http.MethodGet, path+"?labelSelector=app.kubernetes.io/name=rail-cni", "", nil), &list); err != nil {
			c.t.Fatal(err)
		}
		n += len(list.Items)
	}
	return n
}

// lines returns the reports since the last call.
func (c *installed) lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := c.said
	c.said = nil
	return said
}

// begin runs the uninstaller concurrently with the test.
func (c *installed) begin(ctx context.Context) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- c.u.Run(ctx) }()
	return ended
}

func (c *installed) await(what string, done func() bool) {
	c.t.Helper()
	for began := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			c.t.Fatalf("still waiting for %s after a minute", what)
		}
	}
}

func (c *installed) refuses(want string) {
	c.t.Helper()
	if err := c.u.Run(c.t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		c.t.Errorf("the error is %v, and lacks %q", err, want)
	}
	if said := c.lines(); len(said) > 0 || strings.Contains(c.args(), "--uninstall") {
		c.t.Errorf("it did something: %q, %s", said, c.args())
	}
}

// TestUninstall uninstalls one cluster. Its steps build on each other.
func TestUninstall(t *testing.T) {
	c := newInstalled(t)
	all := len(c.objects())
	for _, step := range []struct {
		name string
		do   func(c *installed, all int)
	}{
		{"refuses another namespace than that of the agents", testOtherNamespace},
		{"refuses what helm has installed", testInstalledByHelm},
		{"waits for every node, and deletes nothing meanwhile", testWaitsForNodes},
		{"tells and awaits the DaemonSet of each node pool", testNodePools},
		{"by force it has all agents go, and deletes the objects", testForceAndDelete},
		{"again it finds nothing", testAgain},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			c.t = t
			step.do(c, all)
		}) {
			break
		}
	}
}

func testOtherNamespace(c *installed, all int) {
	c.u.Namespace = "default"
	c.refuses("is not in the namespace default, but in kube-system; name its namespace with --namespace kube-system")
	c.u.Namespace = "kube-system"
	if left := c.left(); left != all {
		c.t.Errorf("%d of %d objects are left", left, all)
	}
}

func testInstalledByHelm(c *installed, _ int) {
	annotate := func(value any) {
		c.merge(agents, map[string]any{"metadata": map[string]any{"annotations": map[string]any{
			"meta.helm.sh/release-name": value, "meta.helm.sh/release-namespace": value,
		}}})
	}
	annotate("rails")
	c.refuses("helm uninstall rails --namespace rails")
	annotate(nil)
}

func testWaitsForNodes(c *installed, all int) {
	c.agentsAre(2, 2) // as they are before they notice
	c.agentOn("node1", true)
	c.agentOn("node2", false)
	c.agentOn("node3", false)
	c.eventOf("node1", "NotUninstalled", "of a node that is done", time.Minute)
	c.eventOf("node2", "NotUninstalled", "an older reason", time.Hour)
	c.eventOf("node2", "NotUninstalled", "default/web-0 has ens1", time.Minute)
	c.eventOf("node2", "PluginReplaced", "another Event", 0)
	c.eventOf("node3", "NotUninstalled", "default/web-1 has ens2", 2*time.Minute)
	c.eventOf("node-earlier", "NotUninstalled", "of an earlier uninstallation", 0)
	time.Sleep(time.Second) // what the server's times tell apart
	c.agentOn("node-earlier", false)
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	ended := c.begin(ctx)
	var said []string
	c.await("the nodes' reasons", func() bool { said = append(said, c.lines()...); return len(said) > 0 })
	if want := []string{"node2: default/web-0 has ens1\nnode3: default/web-1 has ens2"}; !slices.Equal(said, want) {
		c.t.Errorf("it said %q, not %q", said, want)
	}
	c.agentsAre(1, 3)
	c.eventOf("node3", "NotUninstalled", "default/web-2 has ens2", 0)
	c.await("the new reason", func() bool { said = c.lines(); return len(said) > 0 })
	if want := []string{"node2: default/web-0 has ens1\nnode3: default/web-2 has ens2"}; !slices.Equal(said, want) {
		c.t.Errorf("it said %q, not %q", said, want)
	}
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "2 of 3 nodes are not done after 1h0m0s") {
		c.t.Errorf("the error is %v", err)
	}
	if args := c.args(); strings.Count(args, "--uninstall") != 1 || strings.Contains(args, "--force") || !strings.HasSuffix(args, "unavailable=100%") {
		c.t.Errorf("the agents have %s", args)
	}
	if left := c.left(); left != all {
		c.t.Errorf("%d of %d objects are left", left, all)
	}
}

func testNodePools(c *installed, _ int) {
	var d map[string]any
	if err := json.Unmarshal(c.do(http.MethodGet, agents, "", nil), &d); err != nil {
		c.t.Fatal(err)
	}
	labels := map[string]any{"app.kubernetes.io/name": "rail-cni", "rail-cni.io/node-pool": "h100"}
	d["metadata"] = map[string]any{"name": "rail-agent-h100", "labels": map[string]any{"app.kubernetes.io/name": "rail-cni"}}
	delete(d, "status")
	spec := d["spec"].(map[string]any)            //nolint:errcheck // a test
	template := spec["template"].(map[string]any) //nolint:errcheck // a test
	spec["selector"] = map[string]any{"matchLabels": labels}
	template["metadata"] = map[string]any{"labels": labels}
	pod := template["spec"].(map[string]any)                   //nolint:errcheck // a test
	container := pod["containers"].([]any)[0].(map[string]any) //nolint:errcheck // a test
	container["args"] = []any{"run"}
	c.do(http.MethodPost, strings.TrimSuffix(agents, "/rail-agent"), "", d)
	pool := strings.TrimSuffix(agents, "rail-agent") + "rail-agent-h100"

	c.agentsAre(3, 3) // the other is not observed yet
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	c.u.NodesOnly, c.u.Agents = true, []string{"rail-agent", "rail-agent-h100", "rail-agent-gone"}
	defer func() { c.u.NodesOnly, c.u.Agents = false, nil }()
	ended := c.begin(ctx)
	c.await("the agents of the pool to be told", func() bool { return strings.Contains(string(c.do(http.MethodGet, pool, "", nil)), `"--uninstall"`) })
	c.merge(pool+"/status", map[string]any{"status": map[string]any{
		"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 1, "currentNumberScheduled": 2, "numberMisscheduled": 0,
	}})
	c.agentOn("node4", false)
	c.eventOf("node4", "NotUninstalled", "default/web-3 has ens1", 0)
	var said []string
	c.await("the reason of the pool's node", func() bool {
		said = append(said, c.lines()...)
		return strings.Contains(strings.Join(said, "\n"), "node4: default/web-3 has ens1")
	})
	c.merge(pool+"/status", map[string]any{"status": map[string]any{"numberReady": 2}})
	if err := <-ended; err != nil {
		c.t.Error(err)
	}
	if said := c.lines(); !slices.Contains(said, "uninstalled on 5 of 5 nodes") {
		c.t.Errorf("it said %q", said)
	}
	c.do(http.MethodDelete, pool, "", nil)
}

func testForceAndDelete(c *installed, all int) {
	c.u.Force = true
	ended := c.begin(c.t.Context())
	c.await("the agents to be told", func() bool { return strings.Contains(c.args(), "--force") })
	if args := c.args(); strings.Count(args, "--uninstall") != 1 {
		c.t.Errorf("the agents have %s", args)
	}
	c.lines()
	c.agentsAre(3, 3)
	if err := <-ended; err != nil {
		c.t.Fatal(err)
	}
	said := c.lines()
	if want := []string{"uninstalled on 3 of 3 nodes", fmt.Sprintf("deleted %d objects", all), "the CustomResourceDefinitions and the address pools were not deleted"}; len(said) < 3 || !slices.Equal(said[len(said)-3:], want) {
		c.t.Errorf("it said %q, not %q", said, want)
	}
	if left := c.left(); left != 0 {
		c.t.Errorf("%d objects are left", left)
	}
	if n := c.definitions(); n != 3 {
		c.t.Errorf("%d definitions are left, not 3", n)
	}
}

// definitions returns the number of whereabouts' CustomResourceDefinitions.
func (c *installed) definitions() int {
	return strings.Count(string(c.do(http.MethodGet, crds, "", nil)), `.whereabouts.cni.cncf.io","uid"`)
}

func testAgain(c *installed, _ int) {
	c.u.Definitions = true
	if err := c.u.Run(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	want := []string{
		"there is no DaemonSet rail-agent in the namespace kube-system, so no node was changed",
		"deleted 0 objects", "deleted whereabouts' CustomResourceDefinitions and all address pools",
	}
	if said := c.lines(); !slices.Equal(said, want) {
		c.t.Errorf("it said %q, not %q", said, want)
	}
	c.await("the definitions' end", func() bool { return c.definitions() == 0 })
}
