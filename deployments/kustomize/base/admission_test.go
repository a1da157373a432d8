package base_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// policed is a cluster with two Nodes, and node slices.
type policed struct{ *cluster }

func newPoliced(t *testing.T) *policed {
	t.Helper()
	c := &policed{newCluster(t)}
	for _, node := range []string{"node1", "node2"} {
		c.create("/api/v1/nodes", map[string]any{"metadata": map[string]any{"name": node}})
	}
	c.createCR("nodeslicepools", "NodeSlicePool", "net", map[string]any{
		"spec": map[string]any{"range": "10.1.0.0/16", "sliceSize": "/24"},
		"status": map[string]any{"allocations": []any{
			map[string]any{"nodeName": "node1", "sliceRange": "10.1.1.0/24"},
			map[string]any{"nodeName": "node2", "sliceRange": "10.1.2.0/24"},
			map[string]any{"nodeName": "", "sliceRange": "10.1.3.0/24"},
			map[string]any{"nodeName": "node2", "sliceRange": "fd00:1::/64"},
		}},
	})
	return c
}

// of returns a client with a token of an account, bound to a Node unless that
// is "".
func (c *policed) of(account, node string) (*controlplane.Client, controlplane.Credential) {
	c.t.Helper()
	credential := controlplane.Credential{Token: c.token(c.plane.Admin(), account, node, http.StatusCreated)}
	client, err := c.plane.Client(credential)
	if err != nil {
		c.t.Fatal(err)
	}
	return client, credential
}

// token requests a token, and fails the test if the status code is another one.
func (c *policed) token(by *controlplane.Client, account, node string, want int) string {
	c.t.Helper()
	return c.tokenFor(by, account, node, time.Hour, want)
}

// tokenFor is token for one that lives so long.
func (c *policed) tokenFor(by *controlplane.Client, account, node string, life time.Duration, want int) string {
	c.t.Helper()
	spec := map[string]any{"expirationSeconds": int64(life.Seconds())}
	if node != "" {
		spec["boundObjectRef"] = map[string]any{"apiVersion": "v1", "kind": "Node", "name": node}
	}
	code, answer, err := by.Create(c.t.Context(), "/api/v1/namespaces/kube-system/serviceaccounts/"+account+"/token",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
	if err != nil || code != want {
		c.t.Errorf("a token of %s bound to %q: %d, %v: %s", account, node, code, err, answer)
	}
	_, token, _ := strings.Cut(string(answer), `"token":"`)
	token, _, _ = strings.Cut(token, `"`)
	return token
}

func TestAdmissionPolicyKeepsANodeToItsOwn(t *testing.T) {
	c := newPoliced(t)
	admin := c.plane.Admin()
	one, credential := c.of("rail-cni-whereabouts", "node1")
	two, _ := c.of("rail-cni-whereabouts", "node2")
	unbound, _ := c.of("rail-cni-whereabouts", "")
	reconciler, _ := c.of("rail-cni-reconciler", "")

	// The policies take effect some time after they are made.
	pool := func(name, spec string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool","metadata":{"name":%q},"spec":{"range":%q,"allocations":{}}}`, name, spec)
	}
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		code, _, err := unbound.Create(t.Context(), crs+"ippools?dryRun=All", pool("probe", "10.0.0.0/24"))
		slice, _, err2 := two.Create(t.Context(), crs+"ippools?dryRun=All", pool("node1-10.1.1.0-24", "10.1.1.0/24"))
		if err == nil && err2 == nil && code != http.StatusCreated && slice != http.StatusCreated {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("the policies have no effect: %d, %v, %d, %v", code, err, slice, err2)
		}
	}

	// The plugin still works on node1.
	kubeconfig := c.kubeconfigOf(credential)
	const shared, slice = `"range":"10.0.0.0/24"`, `"range":"10.1.0.0/16","node_slice_size":"/24"`
	c.plugin("ADD", "shared", kubeconfig, shared, "")
	c.plugin("ADD", "sliced", kubeconfig, slice, "")
	c.plugin("ADD", "more", kubeconfig, shared, "")
	c.plugin("ADD", "blocks", kubeconfig, `"range":"10.8.0.0/16","block_size":16`, "")
	c.plugin("DEL", "more", kubeconfig, shared, "")

	const (
		sharedPool, slicePool = crs + "ippools/10.0.0.0-24", crs + "ippools/node1-10.1.1.0-24"
		entry                 = `{"spec":{"allocations":{"77":{"id":"c","podref":"default/p","ifname":"net1"}}}}`
		ok, denied            = http.StatusOK, http.StatusUnprocessableEntity
	)
	const (
		blockPool = crs + "ippools/rail-cni-block-10.9.1.0-28"
		divided   = `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool","metadata":{"name":"10.9.0.0-16","annotations":{"rail-cni/block-size":"16"}},"spec":{"range":"10.9.0.0/16 in blocks of 16","allocations":{}}}`
	)
	holder := func(node string) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{"rail-cni/node":%q,"rail-cni/claim":"c"}}}`, node)
	}
	block := func(node string) string {
		return fmt.Sprintf(`{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool","metadata":{"name":"rail-cni-block-10.9.1.0-28","annotations":{"rail-cni/node":%q,"rail-cni/claim":"c"}},"spec":{"range":"10.9.1.0/28","allocations":{}}}`, node)
	}
	for _, r := range []struct {
		what        string
		by          *controlplane.Client
		method      string
		path, body  string
		want        int
		wantMessage string
	}{
		{"an entry of its own slice", one, "PATCH", slicePool, entry, ok, ""},
		{"an entry of another's slice", two, "PATCH", slicePool, entry, denied, "slice of another node"},
		{"another's slice of a named network", two, "POST", crs + "ippools", string(pool("blue-node1-10.1.1.0-24", "10.1.1.0/24")), denied, "slice of another node"},
		{"another's slice of IPv6", one, "POST", crs + "ippools", string(pool("node2-fd00-1---64", "fd00:1::/64")), denied, "slice of another node"},
		{"its own slice of IPv6", two, "POST", crs + "ippools", string(pool("node2-fd00-1---64", "fd00:1::/64")), http.StatusCreated, ""},
		{"an entry of a shared pool", two, "PATCH", sharedPool, entry, ok, ""},
		{"an entry, by a token of no node", unbound, "PATCH", sharedPool, entry, denied, "not bound to a Node"},
		{"a reservation's end, by a token of no node", unbound, "DELETE", crs + "overlappingrangeipreservations/10.0.0.1", "", denied, "not bound to a Node"},
		{"a reservation's end", two, "DELETE", crs + "overlappingrangeipreservations/10.0.0.1", "", ok, ""},
		{"another range", one, "PATCH", sharedPool, `{"spec":{"range":"10.0.0.0/8"}}`, denied, "does not change"},
		{"a finalizer", one, "PATCH", sharedPool, `{"metadata":{"finalizers":["example.com/never"]}}`, denied, "finalizers"},
		{"an owner", one, "PATCH", sharedPool, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node1","uid":"1-2"}]}}`, denied, "owners"},
		{"a pool with a finalizer", one, "POST", crs + "ippools", strings.Replace(string(pool("new", "10.9.0.0/24")), `"name":"new"`, `"name":"new","finalizers":["example.com/never"]`, 1), denied, "finalizers"},
		{"a block of its own", one, "POST", crs + "ippools", block("node1"), http.StatusCreated, ""},
		{"a block for another node", two, "POST", crs + "ippools", strings.Replace(block("node1"), "10.9.1.0", "10.9.2.0", 1), denied, "another node's"},
		{"an entry of another's block", two, "PATCH", blockPool, entry, denied, "another node's"},
		{"taking another's block", two, "PATCH", blockPool, holder("node2"), denied, "another node's"},
		{"returning a block", one, "PATCH", blockPool, holder(""), ok, ""},
		{"taking a block that nobody holds", two, "PATCH", blockPool, holder("node2"), ok, ""},
		{"a divided pool", one, "POST", crs + "ippools", divided, http.StatusCreated, ""},
		{"the end of its division", two, "PATCH", crs + "ippools/10.9.0.0-16", `{"metadata":{"annotations":null}}`, denied, "stays divided"},
		{"an entry, by the reconciler", reconciler, "PATCH", slicePool, entry, ok, ""},
		{"a finalizer, by an administrator", admin, "PATCH", sharedPool, `{"metadata":{"finalizers":[]}}`, ok, ""},
	} {
		code, answer, err := r.by.Do(t.Context(), r.method, r.path, map[string]string{"PATCH": controlplane.MergePatch}[r.method], []byte(r.body))
		if err != nil || code != r.want || !strings.Contains(string(answer), r.wantMessage) {
			t.Errorf("%s: %d, %v: %s", r.what, code, err, answer)
		}
	}

	agent, _ := c.of("rail-cni-agent", "node1")
	c.token(agent, "rail-cni-whereabouts", "node1", http.StatusCreated)
	c.token(agent, "rail-cni-whereabouts", "node2", denied)
	c.token(agent, "rail-cni-whereabouts", "", denied)
	c.tokenFor(agent, "rail-cni-whereabouts", "node1", 24*time.Hour, http.StatusCreated)
	c.tokenFor(agent, "rail-cni-whereabouts", "node1", 24*time.Hour+time.Second, denied)
	c.tokenFor(agent, "rail-cni-whereabouts", "node1", 87600*time.Hour, denied)
	anywhere, _ := c.of("rail-cni-agent", "")
	c.token(anywhere, "rail-cni-whereabouts", "", denied)
}

// An agent that may patch pods and the status of Nodes annotates the pods of its own node, and sets
// its condition on its own Node, and changes nothing else.
func TestAdmissionPolicyKeepsAnAgentToItsAnnotationAndItsCondition(t *testing.T) {
	c := newPoliced(t)
	for _, file := range []string{"../annotation/role.yaml", "../node-condition/role.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for object := range bytes.SplitSeq(text, []byte("---\n")) {
			c.apply(object, map[string]map[string]bool{})
		}
	}
	for _, node := range []string{"node1", "node2", ""} {
		spec := map[string]any{"containers": []any{map[string]any{"name": "c", "image": "good"}}}
		if node != "" {
			spec["nodeName"] = node
		}
		c.create("/api/v1/namespaces/default/pods", map[string]any{
			"metadata": map[string]any{"name": "on-" + node + "x", "annotations": map[string]any{"a": "b"}, "labels": map[string]any{"l": "m"}}, "spec": spec,
		})
	}
	for _, node := range []string{"node1", "node2"} {
		code, answer, err := c.plane.Admin().Patch(t.Context(), "/api/v1/nodes/"+node+"/status", controlplane.MergePatch, map[string]any{"status": map[string]any{
			"addresses": []any{map[string]any{"type": "InternalIP", "address": "192.0.2.1"}}, "capacity": map[string]any{"cpu": "8"},
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}, map[string]any{"type": "MemoryPressure", "status": "False"}},
		}})
		if err != nil || code != http.StatusOK {
			t.Fatal(code, string(answer), err)
		}
	}
	agent, _ := c.of("rail-cni-agent", "node1")
	anywhere, _ := c.of("rail-cni-agent", "")
	const (
		pods, nodes     = "/api/v1/namespaces/default/pods/on-", "/api/v1/nodes/"
		merge, strategy = controlplane.MergePatch, "application/strategic-merge-patch+json"
		rails           = `{"metadata":{"annotations":{"rail-cni.io/rails":"{}"}}}`
		condition       = `{"status":{"conditions":[{"type":"RailNetworkReady","status":"True","reason":"r"}]}}`
		gone            = `{"status":{"conditions":[{"type":"RailNetworkReady","$patch":"delete"}]}}`
		ok, denied      = http.StatusOK, http.StatusUnprocessableEntity
	)
	// The policies take effect some time after they are made.
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		pod, _, err := agent.Do(t.Context(), "PATCH", pods+"node2x?dryRun=All", merge, []byte(rails))
		node, _, err2 := agent.Do(t.Context(), "PATCH", nodes+"node2/status?dryRun=All", strategy, []byte(condition))
		if err == nil && err2 == nil && pod == denied && node == denied {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("the policies have no effect: %d, %v, %d, %v", pod, err, node, err2)
		}
	}
	for _, r := range []struct {
		what        string
		by          *controlplane.Client
		path, kind  string
		body        string
		want        int
		wantMessage string
	}{
		{"the annotation", agent, pods + "node1x", merge, rails, ok, ""},
		{"another value of it", agent, pods + "node1x", merge, `{"metadata":{"annotations":{"rail-cni.io/rails":"[]"}}}`, ok, ""},
		{"its end", agent, pods + "node1x", merge, `{"metadata":{"annotations":{"rail-cni.io/rails":null}}}`, ok, ""},
		{"the annotation of a pod of another node", agent, pods + "node2x", merge, rails, denied, "not on the agent's node"},
		{"the annotation of a pod without a node", agent, pods + "x", merge, rails, denied, "not on the agent's node"},
		{"the annotation, by a token of no node", anywhere, pods + "node1x", merge, rails, denied, "not on the agent's node"},
		{"the same of a pod without a node", anywhere, pods + "x", merge, rails, denied, "not on the agent's node"},
		{"another annotation", agent, pods + "node1x", merge, `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/networks":"x"}}}`, denied, "the annotation rail-cni.io/rails only"},
		{"another value of another", agent, pods + "node1x", merge, `{"metadata":{"annotations":{"a":"c"}}}`, denied, "the annotation rail-cni.io/rails only"},
		{"the end of another", agent, pods + "node1x", merge, `{"metadata":{"annotations":{"a":null,"rail-cni.io/rails":"x"}}}`, denied, "the annotation rail-cni.io/rails only"},
		{"a label", agent, pods + "node1x", merge, `{"metadata":{"labels":{"l":"n"}}}`, denied, "nothing of a pod but its annotation"},
		{"the end of all labels", agent, pods + "node1x", merge, `{"metadata":{"labels":null}}`, denied, "nothing of a pod but its annotation"},
		{"a finalizer", agent, pods + "node1x", merge, `{"metadata":{"finalizers":["example.com/never"]}}`, denied, "nothing of a pod but its annotation"},
		{"an owner", agent, pods + "node1x", merge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node1","uid":"1-2"}]}}`, denied, "nothing of a pod but its annotation"},
		{"an image", agent, pods + "node1x", strategy, `{"spec":{"containers":[{"name":"c","image":"evil"}]}}`, denied, "nothing of a pod but its annotation"},
		{"an image on another node", agent, pods + "node2x", strategy, `{"spec":{"containers":[{"name":"c","image":"evil"}]}}`, denied, "not on the agent's node"},
		{"a pod, by an administrator", c.plane.Admin(), pods + "node2x", strategy, `{"metadata":{"labels":{"l":"n"}},"spec":{"containers":[{"name":"c","image":"better"}]}}`, ok, ""},

		{"the condition", agent, nodes + "node1/status", strategy, condition, ok, ""},
		{"another status of it", agent, nodes + "node1/status", strategy, strings.Replace(condition, "True", "False", 1), ok, ""},
		{"its end", agent, nodes + "node1/status", strategy, gone, ok, ""},
		{"the condition of another Node", agent, nodes + "node2/status", strategy, condition, denied, "not the agent's"},
		{"the condition, by a token of no node", anywhere, nodes + "node1/status", strategy, condition, denied, "not the agent's"},
		{"another condition", agent, nodes + "node1/status", strategy, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, denied, "RailNetworkReady only"},
		{"a new condition", agent, nodes + "node1/status", strategy, `{"status":{"conditions":[{"type":"Other","status":"True"}]}}`, denied, "RailNetworkReady only"},
		{"the end of a condition", agent, nodes + "node1/status", strategy, strings.Replace(gone, "RailNetworkReady", "Ready", 1), denied, "RailNetworkReady only"},
		{"an address", agent, nodes + "node1/status", merge, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]}}`, denied, "nothing of its Node but its condition"},
		{"the end of the addresses", agent, nodes + "node1/status", merge, `{"status":{"addresses":null}}`, denied, "nothing of its Node but its condition"},
		{"a resource", agent, nodes + "node1/status", merge, `{"status":{"capacity":{"example.com/gpu":"8"}}}`, denied, "nothing of its Node but its condition"},
		{"the kubelet's port", agent, nodes + "node1/status", merge, `{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":1}}}}`, denied, "nothing of its Node but its condition"},
		{"a label of its Node", agent, nodes + "node1/status", merge, `{"metadata":{"labels":{"role":"gpu"}}}`, denied, "nothing of its Node but its condition"},
		{"an address of another Node", agent, nodes + "node2/status", merge, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]}}`, denied, "not the agent's"},
		{"a Node, by an administrator", c.plane.Admin(), nodes + "node2/status", merge, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]}}`, ok, ""},
	} {
		code, answer, err := r.by.Do(t.Context(), "PATCH", r.path, r.kind, []byte(r.body))
		if err != nil || code != r.want || !strings.Contains(string(answer), r.wantMessage) {
			t.Errorf("%s: %d, %v: %s", r.what, code, err, answer)
		}
	}
	// No expression of the policies has a defect that the server knows of.
	for _, name := range []string{"pools", "slices", "tokens", "annotation", "condition"} {
		_, answer, err := c.plane.Admin().Get(t.Context(), "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/rail-cni-"+name)
		if err != nil || strings.Contains(string(answer), "expressionWarnings") || !strings.Contains(string(answer), "failurePolicy") {
			t.Errorf("%s: %v: %s", name, err, answer)
		}
	}
}

// Options by which an agent gets power over the cluster are refused where no policy limits it.
func TestOptionsThatNeedRightsNeedThePolicies(t *testing.T) {
	helm := testnet.Tool(t, "helm", "tools")
	for _, option := range []string{"annotatePods=true", "nodeFile.publish.annotation=true", "doctor.nodeCondition=true"} {
		for _, c := range []struct {
			args []string
			want bool
		}{
			{nil, true},
			{[]string{"--kube-version", "1.31.0"}, true},
			{[]string{"--kube-version", "1.31.0", "--set", "admissionPolicy=false"}, false},
			{[]string{"--kube-version", "1.30.9"}, false}, // has the API, and binds no tokens to Nodes
			{[]string{"--kube-version", "1.30.9", "--set", "admissionPolicy=true"}, true},
		} {
			out, err := exec.Command(helm, append([]string{"template", "rail-cni", chart, "--set", option}, c.args...)...).CombinedOutput()
			if made := err == nil; made != c.want || made != strings.Contains(string(out), "name: rail-cni-condition") || !made && !strings.Contains(string(out), "admissionPolicy") {
				t.Errorf("%s %q: %v\n%s", option, c.args, err, out)
			}
		}
	}
	// An overlay for an older API server has the rest of the base.
	overlay := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(overlay, filepath.Dir(here)) // kustomize takes no absolute path
	if err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + filepath.Join(up, "base") + "]\ncomponents: [" + filepath.Join(up, "no-admission-policy") + "]\n"
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	have := decoded(t, bytes.Split(run(t, testnet.Tool(t, "controlplane/kubectl", "cluster-binaries"), "kustomize", overlay), []byte("\n---\n")))
	var objects [][]byte
	for _, text := range rendered(t, "--set", "admissionPolicy=false", "--set", "apiPriority.enabled=false") {
		objects = append(objects, bytes.Split([]byte(text), []byte("\n---\n"))...)
	}
	wantEqual(t, have, decoded(t, objects))
	// Without one of the options nothing is refused, and there are policies where they work.
	for version, want := range map[string]bool{"1.24.0": false, "1.30.9": false, "1.31.0": true, "1.36.3": true} {
		out := run(t, helm, "template", "rail-cni", chart, "--kube-version", version)
		if strings.Contains(string(out), "ValidatingAdmissionPolicy") != want || strings.Contains(string(out), "rail-cni-slices") {
			t.Errorf("Kubernetes %s: policies are %v", version, !want)
		}
	}
}
