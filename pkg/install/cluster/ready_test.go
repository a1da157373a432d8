package cluster_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/pkg/install/cluster"
)

const reconciler = "/apis/apps/v1/namespaces/kube-system/deployments/rail-cni-reconciler"

// TestReadyWhenAllNodesAreAndTheReconciler: the check that "helm test" runs must name everything
// that is not ready, and must succeed when everything is ready.
func TestReadyWhenAllNodesAreAndTheReconciler(t *testing.T) {
	c := newInstalled(t)
	check := cluster.Checker{
		Client: c.u.Client, Namespace: "kube-system", Reconciler: "rail-cni-reconciler", Pools: "kube-system", Timeout: time.Second, Report: c.u.Report,
	}
	refused := func(what string, want ...string) {
		t.Helper()
		err := check.Run(t.Context())
		if err == nil {
			t.Fatalf("%s: it is ready", what)
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: no %q in: %v", what, part, err)
			}
		}
	}
	c.agentsAre(0, 0)
	refused("no node", "no node has an agent", "Deployment rail-cni-reconciler: 0 of 1 pods are ready")
	c.agentsAre(1, 2)
	c.agentOn("a", true)
	c.agentOn("b", false)
	refused("a node", "DaemonSet rail-agent: 1 of 2 nodes are ready", "not ready: b;")
	c.agentsAre(2, 2)

	c.merge(reconciler+"/status", map[string]any{"status": map[string]any{
		"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
	}})
	if err := check.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	said := strings.Join(c.said, "\n")
	c.mu.Unlock()
	if want := "DaemonSet rail-agent: 2 of 2 nodes are ready\nDeployment rail-cni-reconciler: 1 of 1 pods are ready\naddress pools in kube-system: 0"; said != want {
		t.Errorf("it said %q, not %q", said, want)
	}

	check.Timeout, check.Agents = time.Second, []string{"rail-agent", "rail-agent-h100"}
	refused("a DaemonSet that is missing", "has 1 of rail-agent, rail-agent-h100")
	check.Agents, check.Reconciler = nil, "gone"
	refused("no Deployment", "gone")
	check.Reconciler = ""
	c.do(http.MethodDelete, crds+"/ippools.whereabouts.cni.cncf.io", "", nil)
	for range 60 { // the API server goes on serving a definition for a moment
		if check.Run(t.Context()) != nil {
			break
		}
		time.Sleep(500 * time.Millisecond)
	}
	refused("no definitions", "apply the CRD")
}
