package base_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// policed is a cluster with the chart's admission policies, and two Nodes.
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
	text := run(t, testnet.Tool(t, "helm", "tools"), "template", "rail-cni", chart, "--namespace", "kube-system", "--set", "admissionPolicy=true", "--show-only", "templates/admission.yaml")
	for _, object := range bytes.Split(bytes.TrimPrefix(bytes.TrimSpace(text), []byte("---\n")), []byte("\n---\n")) {
		c.apply(object, map[string]map[string]bool{})
	}
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
	spec := map[string]any{"expirationSeconds": 3600}
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
	anywhere, _ := c.of("rail-cni-agent", "")
	c.token(anywhere, "rail-cni-whereabouts", "", denied)
}
