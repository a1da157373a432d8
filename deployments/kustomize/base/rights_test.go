package base_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/controlplane"
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
