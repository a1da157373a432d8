package base_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/integration/valuesets"
)

// objects returns the objects of the chart with these values, each of the form
// "key=value", or a file of values: its path, or its name in the chart.
func objects(t *testing.T, values ...string) map[string]any {
	t.Helper()
	args := append([]string{"template", "rail-cni", chart, "--namespace", "default"}, valuesets.Args(chart, values...)...)
	text := run(t, testnet.Tool(t, "helm", "tools"), args...)
	return decoded(t, bytes.Split(bytes.TrimPrefix(bytes.TrimSpace(text), []byte("---\n")), []byte("\n---\n")))
}

// containers calls f with each container of an object and its path in the object.
func containers(v any, path string, f func(path string, container, podSpec map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if list, ok := e.([]any); ok && (k == "containers" || k == "initContainers") {
				for i, c := range list {
					container, _ := c.(map[string]any)
					f(fmt.Sprintf("%s/%s[%d]", path, k, i), container, v)
				}
			}
			containers(e, path+"/"+k, f)
		}
	case []any:
		for _, e := range v {
			containers(e, path, f)
		}
	}
}

// field returns what a path of keys leads to, or nil.
func field(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

func TestContainersAreAsBoundAsTheirWorkAllows(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	found := 0
	for name, o := range objects(t, "image.digest="+digest, "privileged=false") {
		containers(o, name, func(path string, c, pod map[string]any) {
			found++
			security := field(c, "securityContext")
			if image, _ := c["image"].(string); !strings.HasSuffix(image, "@"+digest) {
				t.Errorf("%s: the image is %s", path, image)
			}
			if field(security, "readOnlyRootFilesystem") != true {
				t.Errorf("%s: its root file system is writable", path)
			}
			if drop := fmt.Sprint(field(security, "capabilities", "drop")); drop != "[ALL]" {
				t.Errorf("%s drops %s", path, drop)
			}
			if strings.HasPrefix(name, "DaemonSet ") {
				return // root, on the node
			}
			if field(security, "runAsNonRoot") != true && field(pod, "securityContext", "runAsNonRoot") != true {
				t.Errorf("%s may run as root", path)
			}
			if field(security, "allowPrivilegeEscalation") != false || field(security, "capabilities", "add") != nil {
				t.Errorf("%s may get rights: %v", path, security)
			}
		})
	}
	if found < 3 { // agent, reconciler, uninstall
		t.Errorf("%d containers", found)
	}
}

func TestNoPodMountsTheTokenOfThePlugin(t *testing.T) {
	if mounts := field(objects(t)["ServiceAccount default/rail-cni-whereabouts"], "automountServiceAccountToken"); mounts != false {
		t.Errorf("automountServiceAccountToken is %v", mounts)
	}
}

// The accounts that have the reconciler's rights, with each value of reconcile.
func TestOnlyTheAccountThatReconcilesHasTheRights(t *testing.T) {
	for value, want := range map[string]string{"deployment": "rail-cni-reconciler", "daemonset": "rail-cni-agent", "off": ""} {
		all := objects(t, "reconcile="+value)
		for _, binding := range []string{"ClusterRoleBinding /rail-cni-agent-pods", "RoleBinding kube-system/rail-cni-agent"} {
			var got []string
			subjects, _ := field(all[binding], "subjects").([]any)
			for _, s := range subjects {
				got = append(got, fmt.Sprint(field(s, "name")))
			}
			if strings.Join(got, " ") != want {
				t.Errorf("reconcile=%s: %s is for %q, want %q", value, binding, got, want)
			}
		}
	}
}

func TestOpenShiftHasItsDirectoriesAndItsConstraint(t *testing.T) {
	all := objects(t, "values-openshift.yaml")
	agent, _ := field(all["DaemonSet default/rail-agent"], "spec", "template", "spec", "containers").([]any)
	if len(agent) != 1 {
		t.Fatalf("the agent has %d containers", len(agent))
	}
	args := fmt.Sprint(field(agent[0], "args"))
	for _, want := range []string{"--cni-bin=/var/lib/cni/bin", "--cni-conf=/etc/kubernetes/cni/net.d"} {
		if !strings.Contains(args, want) {
			t.Errorf("no %s in %s", want, args)
		}
	}
	if binding := fmt.Sprint(all["RoleBinding default/rail-cni-privileged"]); !strings.Contains(binding, "system:openshift:scc:privileged") {
		t.Errorf("nothing refers to the security context constraint privileged: %s", binding)
	}
	// Each other pod, those of the hooks too, runs as a user of its own.
	var want []string
	for name, o := range all {
		containers(o, name, func(path string, _, pod map[string]any) {
			if account, _ := pod["serviceAccountName"].(string); account != "rail-cni-agent" && strings.Contains(path, "/containers[") {
				want = append(want, account)
			}
		})
	}
	var have []string
	subjects, _ := field(all["RoleBinding default/rail-cni-nonroot"], "subjects").([]any)
	for _, s := range subjects {
		have = append(have, fmt.Sprint(field(s, "name")))
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) || len(want) != 3 {
		t.Errorf("the constraint nonroot-v2 is for %v, not for %v", have, want)
	}
}

// A pod of a hook that tolerated all taints might be put on a node whose kubelet is dead. Before an
// uninstallation all nodes may be cordoned.
func TestPodsOfHooksTolerateCordonedNodesAndNoDeadOne(t *testing.T) {
	all := objects(t, "reconciler.tolerations[0].key=a", "reconciler.tolerations[0].operator=Exists", "reconciler.tolerations[0].effect=NoSchedule")
	job := field(all["Job default/rail-cni-uninstall"], "spec", "template", "spec")
	for name, pod := range map[string]any{"uninstall": job, "test": field(all["Pod default/rail-cni-test"], "spec")} {
		if have := fmt.Sprint(field(pod, "tolerations")); have != "[map[effect:NoSchedule key:node.kubernetes.io/unschedulable operator:Exists] map[effect:NoSchedule key:a operator:Exists]]" {
			t.Errorf("%s tolerates %s", name, have)
		}
	}
}

// Two reconcilers on one node are gone at once.
func TestReconcilersAreSpreadOverNodes(t *testing.T) {
	for replicas, want := range map[string]string{
		"1": "<nil>",
		"2": "[map[labelSelector:map[matchLabels:map[app.kubernetes.io/component:reconciler app.kubernetes.io/instance:rail-cni app.kubernetes.io/name:rail-cni]]" +
			" maxSkew:1 topologyKey:kubernetes.io/hostname whenUnsatisfiable:ScheduleAnyway]]",
	} {
		all := objects(t, "reconciler.replicas="+replicas)
		have := fmt.Sprint(field(all["Deployment default/rail-cni-reconciler"], "spec", "template", "spec", "topologySpreadConstraints"))
		if have != want {
			t.Errorf("%s replicas: %s", replicas, have)
		}
	}
}

// The reconciler's token may read all pods and change all pools, and root of its node has it.
func TestReconcilerPrefersNodesWithoutTenants(t *testing.T) {
	preferred, _ := field(objects(t)["Deployment default/rail-cni-reconciler"], "spec", "template", "spec", "affinity", "nodeAffinity",
		"preferredDuringSchedulingIgnoredDuringExecution").([]any)
	if len(preferred) != 1 || !strings.Contains(fmt.Sprint(preferred[0]), "node-role.kubernetes.io/control-plane operator:Exists") {
		t.Errorf("it prefers %v", preferred)
	}
}
