package base_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

func TestNoDashboardsAndAlertsAreMadeByDefault(t *testing.T) {
	if text, ok := rendered(t)["monitoring.yaml"]; ok {
		t.Errorf("there are some:\n%s", text)
	}
	for set, want := range map[string]string{"monitoring.dashboards=true": "kind: ConfigMap", "monitoring.alerts=true": "kind: PrometheusRule"} {
		text := rendered(t, "--set", set)["monitoring.yaml"]
		for _, kind := range []string{"kind: ConfigMap", "kind: PrometheusRule"} {
			if strings.Contains(text, kind) != (kind == want) {
				t.Errorf("%s: %s is there: %v", set, kind, kind != want)
			}
		}
	}
	text := rendered(t, "--set", "monitoring.alerts=true", "--set", "monitoring.alertLabels.release=prom")["monitoring.yaml"]
	if !strings.Contains(text, "    release: prom\n") {
		t.Errorf("the label is not there:\n%s", text)
	}
	labels := field(objects(t, "monitoring.dashboards=true", "monitoring.dashboardLabels=null")["ConfigMap default/rail-cni-dashboard-rails"], "metadata", "labels")
	if field(labels, "grafana_dashboard") != nil || field(labels, "app.kubernetes.io/name") != "rail-cni" {
		t.Errorf("without labels of dashboards they are %v", labels)
	}
}

// An overlay of the base with the component is what the chart makes with both.
func TestKustomizeHasTheDashboardsAndAlertsAsAComponent(t *testing.T) {
	kubectl := testnet.Tool(t, "controlplane/kubectl", "cluster-binaries")
	dir, err := os.MkdirTemp("..", "test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: [../base]\ncomponents: [../../monitoring]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay := decoded(t, bytes.Split(run(t, kubectl, "kustomize", dir), []byte("\n---\n")))
	var objects [][]byte
	for _, text := range rendered(t, "--set", "monitoring.dashboards=true,monitoring.alerts=true", "--set", "apiPriority.enabled=false") {
		objects = append(objects, bytes.Split([]byte(text), []byte("\n---\n"))...)
	}
	wantEqual(t, overlay, decoded(t, objects))
}

// The reconciler has the metrics of pools. On the loopback of its pod nobody could read them.
func TestReconcilerServesItsMetricsWhenPrometheusCanReachThem(t *testing.T) {
	const deployment, binding = "Deployment default/rail-cni-reconciler", "ClusterRoleBinding /rail-cni-agent-metrics"
	for values, want := range map[string]struct {
		args     string
		subjects int
	}{
		"metrics.address=127.0.0.1":                                     {"", 0},
		"metrics.address=0.0.0.0":                                       {"--metrics=0.0.0.0:9400", 0},
		"metrics.address=::,metrics.secure=true":                        {"--metrics=[::]:9400 --metrics-secure", 2},
		"metrics.address=::,metrics.secure=true,metrics.certSecret=tls": {"--metrics=[::]:9400 --metrics-secure --metrics-cert=/metrics-cert", 2},
	} {
		all := objects(t, values)
		var args []string
		containers(all[deployment], "", func(_ string, container, pod map[string]any) {
			list, _ := container["args"].([]any)
			for _, a := range list {
				if text, _ := a.(string); strings.HasPrefix(text, "--metrics") {
					args = append(args, text)
				}
			}
			mounts, _ := container["volumeMounts"].([]any)
			volumes, _ := pod["volumes"].([]any)
			if certificate := strings.Contains(values, "certSecret"); (len(mounts) == 1) != certificate || (len(volumes) == 1) != certificate {
				t.Errorf("%s: mounts %v, volumes %v", values, mounts, volumes)
			}
		})
		subjects, _ := field(all[binding], "subjects").([]any)
		if got := strings.Join(args, " "); got != want.args || len(subjects) != want.subjects {
			t.Errorf("%s: %q, want %q; the right to review tokens is for %v", values, got, want.args, subjects)
		}
	}
}

// Both ports of the reconciler's pod are of one network namespace.
func TestProbesOfTheReconcilerHaveAPortOfTheirOwn(t *testing.T) {
	for values, want := range map[string]string{
		"metrics.port=8081":                         "--health=:8081 [map[containerPort:8081 name:health]]", // its pod has no metrics
		"metrics.port=8081,metrics.address=0.0.0.0": "--health=:8082 [map[containerPort:8082 name:health] map[containerPort:8081 name:metrics]]",
		"metrics.port=8082,metrics.address=0.0.0.0": "--health=:8081 [map[containerPort:8081 name:health] map[containerPort:8082 name:metrics]]",
	} {
		containers(objects(t, values)["Deployment default/rail-cni-reconciler"], "", func(_ string, container, _ map[string]any) {
			args, _ := container["args"].([]any)
			for _, a := range args {
				if text := fmt.Sprint(a); strings.HasPrefix(text, "--health=") {
					if have := text + " " + fmt.Sprint(container["ports"]); have != want {
						t.Errorf("%s: %s, not %s", values, have, want)
					}
				}
			}
		})
	}
}
