package collect_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/agent/local"
	"github.com/rail-cni/rail-cni/pkg/doctor"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// kubelets stands for the kubelets of all nodes. It runs a function instead of a program.
type kubelets struct {
	port int
	mu   sync.Mutex
	// runs has the function for each pod, by the pod's name. A function returns the output and the
	// status of the program.
	runs map[string]func(command []string) (out, status string)

	now, most int // programs at the same time
}

func newKubelets(t *testing.T) *kubelets {
	t.Helper()
	k := &kubelets{runs: map[string]func([]string) (string, string){}}
	k.port = controlplane.StartKubelet(t, func(pod string, command []string) (string, string) {
		k.mu.Lock()
		run := k.runs[pod]
		k.most = max(k.most, k.now+1)
		k.now++
		k.mu.Unlock()
		defer func() { k.mu.Lock(); k.now--; k.mu.Unlock() }()
		return run(command)
	})
	return k
}

// post makes an object, or patches its status.
func post(t *testing.T, plane *controlplane.Plane, method, path, kind string, body any) {
	t.Helper()
	code, answer, err := plane.Admin().Do(t.Context(), method, path, kind, body)
	if err != nil || code/100 != 2 {
		t.Fatalf("%s %s: %d %s, %v", method, path, code, answer, err)
	}
}

// node makes a node with a pod of rail-agent, which runs the function.
func (k *kubelets) node(t *testing.T, plane *controlplane.Plane, name, phase string, run func(command []string) (out, status string)) {
	t.Helper()
	pod := "rail-agent-" + name
	k.mu.Lock()
	k.runs[pod] = run
	k.mu.Unlock()
	post(t, plane, http.MethodPost, "/api/v1/nodes", "", map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]any{"feature.node.kubernetes.io/pci-15b3.present": "true"}}})
	post(t, plane, http.MethodPatch, "/api/v1/nodes/"+name+"/status", controlplane.MergePatch, map[string]any{"status": map[string]any{
		"addresses":       []map[string]any{{"type": "InternalIP", "address": "127.0.0.1"}},
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": k.port}},
		"allocatable":     map[string]any{"rdma/hca_gpu": "7"},
	}})
	post(t, plane, http.MethodPost, "/api/v1/namespaces/kube-system/pods", "", map[string]any{
		"metadata": map[string]any{"name": pod, "labels": map[string]any{"app.kubernetes.io/name": "rail-cni", "app.kubernetes.io/component": "agent"}},
		"spec": map[string]any{
			"nodeName": name, "automountServiceAccountToken": false,
			"containers": []map[string]any{{"name": "rail-agent", "image": "i", "args": []string{"run", "--state-dir=/run/rail-cni"}}},
		},
	})
	post(t, plane, http.MethodPatch, "/api/v1/namespaces/kube-system/pods/"+pod+"/status", controlplane.MergePatch, map[string]any{"status": map[string]any{"phase": phase}})
}

// prints returns a program that prints the facts of a node with a rail.
func prints(t *testing.T, mtu int) func([]string) (string, string) {
	t.Helper()
	rail := 0
	text, err := json.Marshal(&fact.Facts{
		Schema: fact.Schema, Node: "somebody-else", Cluster: &fact.Cluster{},
		NICs:    &fact.NICs{List: fact.Known([]fact.NIC{{Name: "ens1", Rail: &rail, MTU: fact.Known(mtu, "test")}}, "test")},
		Pods:    []fact.Pod{{Namespace: "default", Name: "web-0"}, {Namespace: "default", Name: "gone"}},
		Configs: &fact.Configs{Files: fact.Known([]fact.Config{{Kind: fact.NodeFile, Name: "/etc/rail-cni/node.yaml", Text: "rails: auto"}}, "test")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(command []string) (string, string) {
		if !slices.Equal(command, []string{"/rail-agent", "facts", "--state-dir=/run/rail-cni"}) {
			t.Errorf("it runs %q", command)
		}
		return string(text), controlplane.ExecSuccess
	}
}

func TestFactsOfAllNodes(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	furnish(t, plane)
	k := newKubelets(t)
	k.node(t, plane, "node-b", "Running", prints(t, 9000))
	partial := prints(t, 9000)
	k.node(t, plane, "node-c", "Running", func(command []string) (string, string) {
		time.Sleep(local.FactsTime) // some of its sources hang
		return partial(command)
	})
	k.node(t, plane, "node-d", "Running", prints(t, 1500))
	k.node(t, plane, "broken", "Running", func([]string) (string, string) { return "{", controlplane.ExecSuccess })
	k.node(t, plane, "fails", "Running", func([]string) (string, string) { return "", controlplane.ExecFailure })
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	k.node(t, plane, "hangs", "Running", func([]string) (string, string) { <-release; return "", controlplane.ExecSuccess })
	k.node(t, plane, "begins", "Pending", nil)
	post(t, plane, http.MethodPost, "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools", "", map[string]any{
		"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool", "metadata": map[string]any{"name": "10.1.0.0-24"},
		"spec": map[string]any{"range": "10.1.0.0/24", "allocations": map[string]any{
			"7": map[string]any{"id": "c1", "podref": "default/web-0", "ifname": "net1"},
			"8": map[string]any{"id": "c2", "podref": "default/left", "ifname": "net1"},
		}},
	})
	// Pods in other namespaces must not be able to provide facts about a node.
	post(t, plane, http.MethodPost, "/api/v1/namespaces/default/pods", "", map[string]any{
		"metadata": map[string]any{"name": "forged", "labels": map[string]any{"app.kubernetes.io/name": "rail-cni", "app.kubernetes.io/component": "agent"}},
		"spec":     map[string]any{"nodeName": "node-a", "automountServiceAccountToken": false, "containers": []map[string]any{{"name": "c", "image": "i"}}},
	})
	client, err := kube.Open(kube.Config{Kubeconfig: plane.AdminKubeconfig(), Namespace: "kube-system"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := collect.Cluster(t.Context(), collect.ClusterOptions{Client: client, AgentNamespace: "kube-system", Version: "v7"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range f.Cluster.Nodes {
		names = append(names, n.Node)
		if n.Cluster != nil || n.Kubelet.Allocatable.Value["rdma/hca_gpu"] != 7 || len(n.Kubelet.Labels.Value) != 1 {
			t.Errorf("%s: %+v", n.Node, n.Kubelet)
		}
		if c := n.Configs; !c.Files.OK() || len(c.Files.Value) != 1 || !c.NADs.OK() || len(c.NADs.Value) != 1 || c.NADs.Value[0].Name != "default/roce-net1" {
			t.Errorf("%s: %+v", n.Node, c)
		}
		if !n.Configs.Requests.OK() || !n.Configs.Networks.OK() || !slices.Contains(n.Configs.Networks.Value["pods"], "10.244.0.0/24") {
			t.Errorf("%s: %+v, %+v", n.Node, n.Configs.Networks, n.Configs.Requests)
		}
		if s := n.Pods[0].Status; s.Value != `[{"name": "x"}]` || n.Pods[1].Status.OK() || n.Pods[1].Status.Error == "" {
			t.Errorf("%s: %+v", n.Node, n.Pods)
		}
	}
	if !slices.Equal(names, []string{"node-b", "node-c", "node-d"}) {
		t.Errorf("nodes: %q", names)
	}
	silent := f.Cluster.Silent
	for name, why := range map[string]string{"broken": "facts: ", "fails": "exit code 1", "hangs": "no answer within", "begins": "Pending"} {
		if !strings.Contains(silent.Value[name], why) {
			t.Errorf("%s: %q, not %q", name, silent.Value[name], why)
		}
	}
	if len(silent.Value) != 4 {
		t.Errorf("silent: %q", silent.Value)
	}
	if leases := f.Cluster.Leases; !leases.OK() || !slices.Equal(leases.Value, []fact.Lease{
		{Pool: "10.1.0.0-24", Address: "10.1.0.7", Pod: "default/web-0", Container: "c1", IfName: "net1"},
		{Pool: "10.1.0.0-24", Address: "10.1.0.8", Pod: "default/left", Container: "c2", IfName: "net1"},
	}) {
		t.Errorf("leases: %+v", leases)
	}
	if pods := f.Cluster.Pods; !pods.OK() || !slices.Contains(pods.Value, "default/web-0") {
		t.Errorf("pods: %+v", pods)
	}
	if r := f.Cluster.Requests; !r.OK() || !slices.Equal(r.Value["default/web-0"], []string{"k8s.v1.cni.cncf.io/network"}) {
		t.Errorf("requests for networks: %+v", r)
	}
	for _, r := range rule.Judge(rule.Select(doctor.Rules(), rule.ClusterScope), f) {
		switch want := map[string]int{"CLUSTER-MTU": 1, "CLUSTER-SILENT": 4, "IPAM-LEASE": 1}[r.ID]; {
		case len(r.Findings) != want:
			t.Errorf("%s: %+v", r.ID, r.Findings)
		case r.ID == "CLUSTER-MTU" && r.Findings[0].Object != "node node-d":
			t.Errorf("%+v", r.Findings)
		}
	}

	t.Run("without rights", func(t *testing.T) {
		nobody, err := plane.ServiceAccount(t.Context(), "default", "nobody")
		var kubeconfig string
		if err == nil {
			kubeconfig, err = plane.Kubeconfig(nobody, controlplane.Form{})
		}
		if err != nil {
			t.Fatal(err)
		}
		client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := collect.Cluster(t.Context(), collect.ClusterOptions{Client: client, AgentNamespace: "kube-system"}); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Error(err)
		}
	})
	t.Run("without agents", func(t *testing.T) {
		if _, err := collect.Cluster(t.Context(), collect.ClusterOptions{Client: client, AgentNamespace: "other"}); err == nil || !strings.Contains(err.Error(), "--agent-namespace") {
			t.Error(err)
		}
	})
}

// TestNodesAreAskedAtTheSameTime logs the time for 64 nodes. Reading the facts of each node takes
// as long as on a usual node.
func TestNodesAreAskedAtTheSameTime(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	k := newKubelets(t)
	facts := prints(t, 9000)
	for i := range 64 {
		k.node(t, plane, fmt.Sprintf("node-%02d", i), "Running", func(command []string) (string, string) {
			time.Sleep(1100 * time.Millisecond)
			return facts(command)
		})
	}
	client, err := kube.Open(kube.Config{Kubeconfig: plane.AdminKubeconfig(), Namespace: "kube-system"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var answered atomic.Int64
	f, err := collect.Cluster(t.Context(), collect.ClusterOptions{Client: client, AgentNamespace: "kube-system", Done: func(int, int) { answered.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	t.Logf("64 nodes, %d at the same time: %v", k.most, time.Since(began))
	if len(f.Cluster.Nodes) != 64 || len(f.Cluster.Silent.Value) != 0 || answered.Load() != 64 {
		t.Errorf("%d nodes, silent: %q", len(f.Cluster.Nodes), f.Cluster.Silent.Value)
	}
	if k.most < 2 || k.most > 32 {
		t.Errorf("%d at the same time", k.most)
	}
}
