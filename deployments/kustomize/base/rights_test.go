package base_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
)

// rights returns an account's rights in a namespace as the server reports them,
// sorted, without those of every account.
func rights(t *testing.T, plane *controlplane.Plane, account, namespace string) (rules []string) {
	t.Helper()
	credential, err := plane.ServiceAccount(t.Context(), "kube-system", account)
	if err != nil {
		t.Fatal(err)
	}
	client, err := plane.Client(credential)
	if err != nil {
		t.Fatal(err)
	}
	code, answer, err := client.Create(t.Context(), "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": map[string]any{"namespace": namespace},
	})
	if err != nil || code != 201 {
		t.Fatal(code, string(answer), err)
	}
	var review struct {
		Status struct {
			Incomplete    bool
			ResourceRules []struct{ Verbs, APIGroups, Resources, ResourceNames []string }
		}
	}
	if err := json.Unmarshal(answer, &review); err != nil || review.Status.Incomplete {
		t.Fatalf("%v: %s", err, answer)
	}
	for _, r := range review.Status.ResourceRules {
		if strings.HasPrefix(r.Resources[0], "selfsubject") { // system:basic-user
			continue
		}
		rule := strings.Join(r.Verbs, ",") + " " + strings.Join(r.Resources, ",")
		if len(r.ResourceNames) > 0 {
			rule += " " + strings.Join(r.ResourceNames, ",")
		}
		rules = append(rules, rule)
	}
	slices.Sort(rules)
	return rules
}

const (
	mayReadPods  = "get,list,watch pods"
	mayListNodes = "list nodes"
	mayMakeToken = "create serviceaccounts/token rail-cni-whereabouts"
)

// atMost are the rights that the accounts may have, by account and namespace.
var atMost = map[string]map[string][]string{
	"rail-cni-agent": {"default": {"create events"}, "kube-system": {mayMakeToken}, "other": nil},
	"rail-cni-reconciler": {
		"default": {mayReadPods, mayListNodes},
		"kube-system": {
			"list,create,delete overlappingrangeipreservations", "get,list,patch ippools", mayReadPods, mayListNodes, "get,patch leases rail-cni-reconciler",
		},
		"other": {mayReadPods, mayListNodes},
	},
	"rail-cni-whereabouts": {
		"default":     nil,
		"kube-system": {"get nodeslicepools", "get,list,create,patch ippools", "get,list,create,delete overlappingrangeipreservations"},
		"other":       nil,
	},
}

func wantRights(t *testing.T, plane *controlplane.Plane, account string) {
	t.Helper()
	for namespace, want := range atMost[account] {
		slices.Sort(want)
		if have := rights(t, plane, account, namespace); !slices.Equal(have, want) {
			t.Errorf("%s in %s may %q, and not %q", account, namespace, have, want)
		}
	}
}

func TestAccountsMayDoNothingElse(t *testing.T) {
	c := newCluster(t)
	for account := range atMost {
		wantRights(t, c.plane, account)
	}
}

// TestUpgradeTakesTheAgentsOldRights upgrades a cluster in which each node's
// agent may read all pods and change all pools.
func TestUpgradeTakesTheAgentsOldRights(t *testing.T) {
	earlier, err := os.ReadFile("testdata/earlier.yaml")
	if err != nil {
		t.Fatal(err)
	}
	helm := testnet.Tool(t, "helm", "tools")
	kubectl := testnet.Tool(t, "controlplane/kubectl", "cluster-binaries")
	// A chart with that release's account, for helm to upgrade.
	old := t.TempDir()
	if err := os.Mkdir(filepath.Join(old, "templates"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"Chart.yaml": "apiVersion: v2\nname: rail-cni\nversion: 0.0.1\n", "templates/agent.yaml": string(earlier)} {
		if err := os.WriteFile(filepath.Join(old, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, upgrade := range map[string]func(kubeconfig string){
		"kubectl": func(kubeconfig string) {
			run(t, kubectl, "--kubeconfig", kubeconfig, "apply", "--filename", "testdata/earlier.yaml")
			run(t, kubectl, "--kubeconfig", kubeconfig, "apply", "--kustomize", ".")
		},
		"helm": func(kubeconfig string) {
			run(t, helm, "--kubeconfig", kubeconfig, "--namespace", "kube-system", "install", "rail-cni", old)
			run(t, helm, "--kubeconfig", kubeconfig, "--namespace", "kube-system", "upgrade", "rail-cni", chart)
		},
	} {
		t.Run(name, func(t *testing.T) {
			plane := controlplane.Start(t, controlplane.Options{})
			// The objects that the agents of that release made themselves.
			code, answer, err := plane.Admin().Create(t.Context(), "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", map[string]any{
				"metadata": map[string]any{"name": "rail-cni-ipam"}, "spec": map[string]any{"holderIdentity": "node1", "leaseDurationSeconds": 60},
			})
			if err != nil || code != 201 {
				t.Fatal(code, string(answer), err)
			}
			upgrade(plane.AdminKubeconfig())
			for account := range atMost {
				wantRights(t, plane, account)
			}
			if _, answer, err := plane.Admin().Get(t.Context(), "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/rail-cni-reconciler"); err != nil ||
				!strings.Contains(string(answer), `"app.kubernetes.io/name":"rail-cni"`) {
				t.Errorf("%v: %s", err, answer)
			}
		})
	}
}
