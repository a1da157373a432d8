package collect_test

import (
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/pkg/doctor/collect"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

const nad = `{"cniVersion": "1.1.0", "name": "roce-net1", "type": "host-device"}`

// furnish makes the objects of a node with a pod and a network.
func furnish(t *testing.T, plane *controlplane.Plane) {
	t.Helper()
	for _, o := range []struct {
		method, path, kind string
		body               any
	}{
		{http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", "", map[string]any{"metadata": map[string]any{"name": "default"}}},
		{http.MethodPost, "/api/v1/nodes", "", map[string]any{
			"metadata": map[string]any{"name": "node-a", "labels": map[string]any{"feature.node.kubernetes.io/pci-15b3.present": "true", "zone": "a"}},
			"spec":     map[string]any{"podCIDR": "10.244.0.0/24", "podCIDRs": []string{"10.244.0.0/24"}},
		}},
		{http.MethodPatch, "/api/v1/nodes/node-a/status", controlplane.MergePatch, map[string]any{"status": map[string]any{
			"capacity":    map[string]any{"cpu": "64", "rdma/hca_gpu": "8", "nvidia.com/gpu": "8"},
			"allocatable": map[string]any{"cpu": "63", "rdma/hca_gpu": "7", "nvidia.com/gpu": "8"},
			"addresses":   []map[string]any{{"type": "InternalIP", "address": "192.168.7.1"}, {"type": "Hostname", "address": "node-a"}},
		}}},
		{http.MethodPost, "/api/v1/namespaces/default/pods", "", map[string]any{
			"metadata": map[string]any{"name": "web-0", "annotations": map[string]any{
				"k8s.v1.cni.cncf.io/network-status": `[{"name": "x"}]`, "k8s.v1.cni.cncf.io/network": "roce-net1", "k8s.v1.cni.cncf.io/policy": "x", "example.com/networks": "x",
			}},
			"spec": map[string]any{"nodeName": "node-a", "automountServiceAccountToken": false, "containers": []map[string]any{{"name": "c", "image": "i"}}},
		}},
		{http.MethodPost, "/api/v1/namespaces/default/pods", "", map[string]any{ // a pod that has ended
			"metadata": map[string]any{"name": "job-0", "annotations": map[string]any{"k8s.v1.cni.cncf.io/network": "roce-net1"}},
			"spec":     map[string]any{"nodeName": "node-a", "automountServiceAccountToken": false, "containers": []map[string]any{{"name": "c", "image": "i"}}},
		}},
		{http.MethodPatch, "/api/v1/namespaces/default/pods/job-0/status", controlplane.MergePatch, map[string]any{"status": map[string]any{"phase": "Succeeded"}}},
		{http.MethodPost, "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions", "", map[string]any{
			"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": map[string]any{"name": "roce-net1", "annotations": map[string]any{"k8s.v1.cni.cncf.io/resourceName": "rdma/hca_gpu"}},
			"spec":     map[string]any{"config": nad},
		}},
	} {
		code, answer, err := plane.Admin().Do(t.Context(), o.method, o.path, o.kind, o.body)
		if err != nil || code/100 != 2 {
			t.Fatalf("%s %s: %d %s, %v", o.method, o.path, code, answer, err)
		}
	}
}

func TestFactsOfTheCluster(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	furnish(t, plane)
	l := newLab(t)
	stop, err := plane.Reach("/run/netns/" + l.node.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "var/lib/kubelet"), 0o700); err != nil {
		t.Fatal(err)
	}
	facts := func(kubeconfig string) *fact.Facts {
		client, err := kube.Open(kube.Config{Kubeconfig: kubeconfig})
		if err != nil {
			t.Fatal(err)
		}
		return l.facts(collect.Options{Node: "node-a", Client: client, Sample: -1, Root: root})
	}
	// At first the server fills its caches, which can take longer than the time limit of a source.
	var f *fact.Facts
	for end := time.Now().Add(time.Minute); ; {
		if f = facts(plane.AdminKubeconfig()); f.Configs.Networks.OK() && f.Configs.NADs.OK() && f.Kubelet.Labels.OK() || time.Now().After(end) {
			break
		}
	}
	k := f.Kubelet
	if !maps.Equal(k.Allocatable.Value, map[string]int64{"rdma/hca_gpu": 7}) || !maps.Equal(k.Capacity.Value, map[string]int64{"rdma/hca_gpu": 8}) ||
		!maps.Equal(k.Labels.Value, map[string]string{"feature.node.kubernetes.io/pci-15b3.present": "true"}) {
		t.Errorf("of the node: %+v %+v %+v", k.Allocatable, k.Capacity, k.Labels)
	}
	if s := f.Pods[0].Status; !s.OK() || s.Value != `[{"name": "x"}]` {
		t.Errorf("the pod's networks: %+v", s)
	}
	want := fact.Config{Kind: fact.NADConfig, Name: "default/roce-net1", Text: nad, Resource: "rdma/hca_gpu"}
	if nads := f.Configs.NADs; !nads.OK() || !slices.Contains(nads.Value, want) {
		t.Errorf("networks: %+v", nads)
	}
	networks := f.Configs.Networks
	if n := networks.Value; !networks.OK() || !slices.Equal(n["pods"], []string{"10.244.0.0/24"}) || !slices.Equal(n["nodes"], []string{"192.168.7.1/32"}) || len(n["services"]) == 0 {
		t.Errorf("networks of the cluster: %+v", networks)
	}

	if r := f.Configs.Requests; !r.OK() || len(r.Value) != 1 || !slices.Equal(r.Value["default/web-0"], []string{"k8s.v1.cni.cncf.io/network"}) {
		t.Errorf("requests for networks: %+v", r)
	}

	nobody, err := plane.ServiceAccount(t.Context(), "default", "nobody")
	var kubeconfig string
	if err == nil {
		kubeconfig, err = plane.Kubeconfig(nobody, controlplane.Form{})
	}
	if err != nil {
		t.Fatal(err)
	}
	f = facts(kubeconfig)
	for name, err := range map[string]error{
		"allocatable": factError(f.Kubelet.Allocatable), "labels": factError(f.Kubelet.Labels), "status": factError(f.Pods[0].Status),
		"NADs": factError(f.Configs.NADs), "networks": factError(f.Configs.Networks), "requests": factError(f.Configs.Requests),
	} {
		// The error must have this text and must not advise to grant the right.
		if err == nil || !strings.Contains(err.Error(), "the account of the kubeconfig has no right to read it") || strings.Contains(err.Error(), "ClusterRole") {
			t.Errorf("%s of a user without rights: %v", name, err)
		}
	}
}

// factError returns the error of a fact that failed. It returns nil if the fact did not fail.
func factError[T any](f fact.Fact[T]) error {
	if f.Error == "" {
		return nil
	}
	return errors.New(f.Error)
}
