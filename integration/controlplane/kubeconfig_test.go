package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// Real whereabouts, with the client of Kubernetes, checks the kubeconfig, on a
// node of its own.
func TestWhereaboutsTakesEachFormOfKubeconfig(t *testing.T) {
	ctx := t.Context()
	plugin := filepath.Join(testnet.Peers(t), "kubernetes", "whereabouts")
	node, pod := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "pod")
	stop, err := shared.Reach("/run/netns/" + node.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	flat := filepath.Join(t.TempDir(), "whereabouts.conf") // required, even if empty
	if err := os.WriteFile(flat, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}

	certificate, err := shared.CertificateFor("node-admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	token, err := shared.ServiceAccount(ctx, "kube-system", "whereabouts")
	if err != nil {
		t.Fatal(err)
	}
	want(t, 201)(shared.Admin().Create(ctx, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", map[string]any{
		"metadata": map[string]any{"name": "whereabouts"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": "kube-system", "name": "whereabouts"}},
	}))
	const account = "system:serviceaccount:kube-system:whereabouts"

	for i, test := range []struct {
		name string
		c    Credential
		form Form
		user string
	}{
		{"as the installer writes it", token, Form{Namespace: "kube-system"}, account},
		{"token in a file", token, Form{Namespace: "default", CredentialFile: true}, account},
		{"token, server not verified", token, Form{SkipVerify: true}, account},
		{"certificate", certificate, Form{Namespace: "default"}, "node-admin"},
		{"certificate, key and CA in files", certificate, Form{CAFile: true, CredentialFile: true}, "node-admin"},
		{"paths relative to the kubeconfig", certificate, Form{CAFile: true, CredentialFile: true, Relative: true}, "node-admin"},
		{"the administrator's", Credential{}, Form{Path: shared.AdminKubeconfig()}, "admin"},
	} {
		t.Run(test.name, func(t *testing.T) {
			since := time.Now()
			path := test.form.Path
			if path == "" {
				if path, err = shared.Kubeconfig(test.c, test.form); err != nil {
					t.Fatal(err)
				}
			}
			call := testnet.Call{
				Plugin: plugin, Verb: "ADD", ContainerID: "form", IfName: "net1", Netns: "/run/netns/" + pod.Name,
				Path: filepath.Dir(plugin), Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=form",
				Config: fmt.Sprintf(`{"cniVersion":"1.0.0","name":"forms","type":"whereabouts","ipam":{"type":"whereabouts",
					"range":"10.9.%d.0/24","configuration_path":%q,"kubernetes":{"kubeconfig":%q}}}`, i, flat, path),
			}
			node.MustRun(call)
			namespace := test.form.Namespace
			if namespace == "" {
				namespace = "kube-system"
			}
			want(t, 200)(shared.Admin().Get(ctx, fmt.Sprintf(
				"/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/%s/ippools/10.9.%d.0-24", namespace, i)))
			node.MustRun(call.With("DEL"))

			requests, err := shared.Requests(ctx, since)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(requests, func(r Request) bool { return r.User == test.user && r.Verb == "patch" && r.Resource == "ippools" }) {
				t.Errorf("no patch of a pool by %s: %v", test.user, requests)
			}
		})
	}
}
