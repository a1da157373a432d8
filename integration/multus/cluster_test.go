package multus

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/scratch"
)

// The control plane that all tests share, and its clients.
var (
	plane         *controlplane.Plane
	multusAccount controlplane.Credential
	adminAccount  controlplane.Credential
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := scratch.MkdirTemp("multus")
		if err == nil {
			defer scratch.Remove(dir)
			plane, err = controlplane.New(context.Background(), dir, controlplane.Options{})
		}
		if err == nil {
			defer plane.Close()
			err = accounts(context.Background())
		}
		if err != nil {
			return need.Main(err)
		}
		return m.Run()
	}())
}

// accounts makes Multus' service account with the rights of its manifests
// (deployments/ there: the thin one, and list and watch for the thick).
func accounts(ctx context.Context) (err error) {
	if multusAccount, err = plane.ServiceAccount(ctx, "kube-system", "multus"); err != nil {
		return err
	}
	if adminAccount, err = plane.CertificateFor("admin", "system:masters"); err != nil {
		return err
	}
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	rule := func(groups, resources, verbs string) map[string]any {
		return map[string]any{"apiGroups": strings.Split(groups, " "), "resources": strings.Split(resources, " "), "verbs": strings.Split(verbs, " ")}
	}
	if err := create(ctx, rbac+"clusterroles", map[string]any{
		"metadata": map[string]any{"name": "multus"},
		"rules": []any{
			rule("k8s.cni.cncf.io", "*", "*"),
			rule("", "pods pods/status", "get list update watch"),
			rule(" events.k8s.io", "events", "create patch update"),
		},
	}); err != nil {
		return err
	}
	return create(ctx, rbac+"clusterrolebindings", map[string]any{
		"metadata": map[string]any{"name": "multus"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "multus"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "multus", "namespace": "kube-system"}},
	})
}

// create posts an object: YAML as it is, or a value that is encoded as JSON.
func create(ctx context.Context, path string, object any) error {
	contentType := controlplane.JSON
	if _, ok := object.([]byte); ok {
		contentType = controlplane.YAML
	}
	code, answer, err := plane.Admin().Do(ctx, http.MethodPost, path, contentType, object)
	if err == nil && code != http.StatusCreated {
		err = fmt.Errorf("POST %s: %d: %s", path, code, answer)
	}
	return err
}

func get(t testing.TB, path string, into any) {
	t.Helper()
	code, answer, err := plane.Admin().Get(t.Context(), path)
	if err != nil || code != http.StatusOK {
		t.Fatalf("GET %s: %d, %v: %s", path, code, err, answer)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		t.Fatal(err)
	}
}

const (
	pods     = "/api/v1/namespaces/default/pods"
	networks = "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions"
	crs      = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/"
)

// object makes an object, and deletes it after the test. It is no error if it
// is gone by then.
func object(t testing.TB, collection, name string, o any) {
	t.Helper()
	if err := create(t.Context(), collection, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteObject(t, collection+"/"+name) })
}

func deleteObject(t testing.TB, path string) {
	t.Helper()
	// No kubelet confirms the end of a pod, so it is deleted without a grace
	// period.
	code, answer, err := plane.Admin().Delete(context.Background(), path+"?gracePeriodSeconds=0")
	if err != nil || code != http.StatusOK && code != http.StatusNotFound {
		t.Errorf("DELETE %s: %d, %v: %s", path, code, err, answer)
	}
}

// nad makes a NetworkAttachmentDefinition. resource is that of its annotation,
// "" for none.
func nad(t testing.TB, name, resource, config string) {
	t.Helper()
	meta := map[string]any{"name": name}
	if resource != "" {
		meta["annotations"] = map[string]any{"k8s.v1.cni.cncf.io/resourceName": resource}
	}
	object(t, networks, name, map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": meta, "spec": map[string]any{"config": config},
	})
}

// simplePod makes a pod with these networks, as its annotation lists them.
func simplePod(t testing.TB, name, annotation string) {
	t.Helper()
	object(t, pods, name, map[string]any{
		"metadata": map[string]any{"name": name, "annotations": map[string]any{nadv1.NetworkAttachmentAnnot: annotation}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "c"}}},
	})
}

type podObject struct {
	Metadata struct {
		Name, UID   string
		Annotations map[string]string
	}
}

// statusOf returns a pod's network-status.
func statusOf(t testing.TB, pod string) []nadv1.NetworkStatus {
	t.Helper()
	var p podObject
	get(t, pods+"/"+pod, &p)
	var s []nadv1.NetworkStatus
	text := p.Metadata.Annotations[nadv1.NetworkStatusAnnot]
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("network-status of %s is %q: %v", pod, text, err)
	}
	return s
}

// held returns the holders of addresses in all IPPools, as "range pod interface",
// each with the number of its entries, and the number of reservations.
func held(t testing.TB) (holders map[string]int, reservations int) {
	t.Helper()
	var list struct {
		Items []struct {
			Spec struct {
				Range       string
				Allocations map[string]struct{ PodRef, IfName string }
			}
		}
	}
	get(t, crs+"ippools", &list)
	holders = map[string]int{}
	for _, pool := range list.Items {
		for _, e := range pool.Spec.Allocations {
			holders[pool.Spec.Range+" "+e.PodRef+" "+e.IfName]++
		}
	}
	get(t, crs+"overlappingrangeipreservations", &list)
	return holders, len(list.Items)
}

// wantHeld fails the test unless the pools contain exactly these holders, each
// with one address and its reservation.
func wantHeld(t testing.TB, want ...string) {
	t.Helper()
	holders, reservations := held(t)
	for _, w := range want {
		if holders[w] != 1 {
			t.Errorf("%q has %d entries in its IPPool, not 1", w, holders[w])
		}
	}
	if len(holders) != len(want) || reservations != len(want) {
		t.Errorf("%d holders and %d reservations, not %d each: %v", len(holders), reservations, len(want), holders)
	}
}
