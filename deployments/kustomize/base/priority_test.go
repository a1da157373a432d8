package base_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// metric returns the value of a metric of the API server, "" if there is none. want has
// the labels that it must have.
func (c *cluster) metric(name string, want ...string) string {
	c.t.Helper()
	code, answer, err := c.plane.Admin().Get(c.t.Context(), "/metrics")
	if err != nil || code != http.StatusOK {
		c.t.Fatal(code, err)
	}
lines:
	for line := range strings.Lines(string(answer)) {
		if !strings.HasPrefix(line, name+"{") {
			continue
		}
		for _, label := range want {
			if !strings.Contains(line, label) {
				continue lines
			}
		}
		return line[strings.LastIndexByte(line, ' ')+1 : len(line)-1]
	}
	return ""
}

const (
	ourSchema = `flow_schema="rail-cni-pools"`
	ourLevel  = `priority_level="rail-cni-pools"`
)

// ours returns the number of requests that our level has let through.
func (c *cluster) ours() string {
	c.t.Helper()
	return c.metric("apiserver_flowcontrol_dispatched_requests_total", ourSchema, ourLevel)
}

// Thousands of patches of one pool at once would fill the level of the controllers in
// kube-system, and each other's time.
func TestPatchesOfPoolsHaveALevelOfTheirOwn(t *testing.T) {
	c := newCluster(t)
	text := run(t, testnet.Tool(t, "helm", "tools"), "template", "rail-cni", chart, "--namespace", "kube-system", "--show-only", "templates/priority.yaml")
	for _, object := range bytes.Split(bytes.TrimPrefix(bytes.TrimSpace(text), []byte("---\n")), []byte("\n---\n")) {
		c.apply(object, map[string]map[string]bool{})
	}
	const seats = "apiserver_flowcontrol_nominal_limit_seats"
	for began := time.Now(); c.metric(seats, ourLevel) == ""; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("the server does not know the level after a minute")
		}
	}
	if n := c.metric(seats, ourLevel); n != "3" {
		t.Errorf("%s patches at once, want 3", n)
	}

	c.createCR("ippools", "IPPool", "10.0.0.0-24", map[string]any{"spec": map[string]any{"range": "10.0.0.0/24", "allocations": map[string]any{}}})
	const path = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools/10.0.0.0-24"
	patch := func(account string, key int) {
		t.Helper()
		client, err := c.plane.Client(c.credential(account))
		if err != nil {
			t.Fatal(err)
		}
		if code, answer, err := client.Get(t.Context(), path); err != nil || code != http.StatusOK {
			t.Fatal(code, string(answer), err)
		}
		add := []map[string]any{{"op": "add", "path": fmt.Sprint("/spec/allocations/", key), "value": map[string]any{"id": "c", "podref": "default/p", "ifname": "net1"}}}
		if code, answer, err := client.Patch(t.Context(), path, controlplane.JSONPatch, add); err != nil || code != http.StatusOK {
			t.Fatal(code, string(answer), err)
		}
	}
	// The server learns of the FlowSchema after the level. Its first patch there counts.
	key := 1
	for began := time.Now(); c.ours() == ""; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("no patch is in the level after a minute")
		}
		patch("rail-cni-whereabouts", key)
		key++
	}
	if n := c.ours(); n != "1" {
		t.Errorf("%s requests are in the level after one patch, and a read", n)
	}
	patch("rail-cni-reconciler", key)
	if n := c.ours(); n != "2" {
		t.Errorf("%s requests are in the level after the reconciler's patch as well, want 2", n)
	}
	// The plugin itself: of its requests only the patch.
	if out := c.plugin("ADD", "pod-0", c.kubeconfig("rail-cni-whereabouts"), `"range":"10.0.0.0/24"`, ""); !strings.Contains(out, "10.0.0.") {
		t.Errorf("ADD: %s", out)
	}
	if n := c.ours(); n != "3" {
		t.Errorf("%s requests are in the level after an ADD, want 3", n)
	}
}

func TestNoLevelIsMadeWhereItIsSwitchedOff(t *testing.T) {
	if _, ok := rendered(t, "--set", "apiPriority.enabled=false")["priority.yaml"]; ok {
		t.Error("there is one")
	}
}

// An overlay of the base with the component is all that the chart makes.
func TestKustomizeHasTheLevelAsAComponent(t *testing.T) {
	kubectl := testnet.Tool(t, "controlplane/kubectl", "cluster-binaries")
	dir, err := os.MkdirTemp("..", "test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: [../base]\ncomponents: [../api-priority]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay := decoded(t, bytes.Split(run(t, kubectl, "kustomize", dir), []byte("\n---\n")))
	var objects [][]byte
	for _, text := range rendered(t) {
		objects = append(objects, bytes.Split([]byte(text), []byte("\n---\n"))...)
	}
	wantEqual(t, overlay, decoded(t, objects))
}
