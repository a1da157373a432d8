package base_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/valuesets"
)

// TestChartMakesWhatTheServerTakes has a real API server validate all objects of each set, including
// those of helm's hooks, field by field.
func TestChartMakesWhatTheServerTakes(t *testing.T) {
	c := newCluster(t, valuesets.PrometheusOperator(t)...)
	t.Run("and notes", func(t *testing.T) { testNotes(t, c.plane.AdminKubeconfig()) })
	var defaults int
	for _, set := range valuesets.All {
		t.Run(set.Name, func(t *testing.T) {
			all := objects(t, set.Values...)
			if set.Values == nil {
				defaults = len(all)
			}
			if len(all) != defaults+set.Adds || defaults < 30 {
				t.Errorf("%d objects, not %d", len(all), defaults+set.Adds)
			}
			for name, o := range all {
				object, err := yaml.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				path := c.path(object) + "?dryRun=All&fieldValidation=Strict"
				// The cluster has the base, whose cluster-wide objects have the
				// same names.
				code, answer, err := c.plane.Admin().Do(t.Context(), "POST", path, controlplane.YAML, object)
				if err != nil || code != 201 && !(code == 409 && bytes.Contains(answer, []byte("AlreadyExists"))) {
					t.Errorf("%s: %d, %v: %s", name, code, err, answer)
				}
			}
		})
	}
}

// Links would make helm warn of each.
func TestFilesOfTheChartAreThoseOfOtherDirectories(t *testing.T) {
	for dir, pattern := range map[string]string{"crds": "../../crds/*.yaml", "monitoring": "../../monitoring/*"} {
		sources, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, source := range sources {
			name := filepath.Base(source)
			if name == "kustomization.yaml" || filepath.Ext(name) == ".go" {
				continue
			}
			names = append(names, name)
			want, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			wantFile(t, filepath.Join(chart, dir, name), want)
		}
		have, err := os.ReadDir(filepath.Join(chart, dir))
		if err != nil || len(have) != len(names) || len(names) < 4 {
			t.Errorf("%s has %d files, not %d: %v", dir, len(have), len(names), err)
		}
	}
}

// wantFile fails the test unless the file has the text. With -update it writes the text.
func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		t.Errorf("%s is no file (%v): go test ./deployments/kustomize/base -update", path, err)
		return
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, want) {
		t.Errorf("%s is stale (%v): go test ./deployments/kustomize/base -update", path, err)
	}
}

func TestHelmWarnsOfNothingInTheChartsDirectory(t *testing.T) {
	cmd := command(t, "template", "rail-cni", chart)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v: %s", err, &stderr)
	}
}

// Pods have no label that changes with the version of the chart: an upgrade would restart agents for
// nothing. No label of a selector ever changes.
func TestLabelsOfTheChart(t *testing.T) {
	const recommended = "app.kubernetes.io/"
	for name, o := range objects(t, "commonLabels.team=network", "podLabels.sidecar=none", "podAnnotations.note=a", "fullnameOverride=nics") {
		labels := field(o, "metadata", "labels")
		for label, want := range map[string]string{
			recommended + "name": "rail-cni", recommended + "instance": "rail-cni", recommended + "part-of": "rail-cni", "team": "network",
		} {
			if field(labels, label) != want {
				t.Errorf("%s: the label %s is %v", name, label, field(labels, label))
			}
		}
		if kind, _, _ := strings.Cut(name, " "); kind == "Pod" {
			continue // it has a pod's labels
		}
		for label, want := range map[string]string{recommended + "version": "devel", recommended + "managed-by": "Helm", "helm.sh/chart": "rail-cni-0.1.0"} {
			if field(labels, label) != want {
				t.Errorf("%s: the label %s is %v", name, label, field(labels, label))
			}
		}
		template := field(o, "spec", "template")
		if template == nil {
			continue
		}
		of := field(template, "metadata", "labels")
		component := field(of, recommended+"component")
		if field(of, "sidecar") != "none" || field(of, "team") != "network" || component == nil || field(of, recommended+"version") != nil || field(of, "helm.sh/chart") != nil {
			t.Errorf("%s: its pods have the labels %v", name, of)
		}
		selector := field(o, "spec", "selector", "matchLabels")
		if selector == nil {
			continue // a Job
		}
		if field(template, "metadata", "annotations", "note") != "a" {
			t.Errorf("%s: its pods lack the annotation", name)
		}
		if have, want := fmt.Sprint(selector), fmt.Sprint(map[string]any{recommended + "name": "rail-cni", recommended + "instance": "rail-cni", recommended + "component": component}); have != want {
			t.Errorf("%s: the selector is %s, not %s", name, have, want)
		}
	}
}

// With another prefix no object has the old one, except for the Lease, whose name is that of the
// programs.
func TestNamesOfTheChart(t *testing.T) {
	all := objects(t, "fullnameOverride=nics", "annotatePods=true", "doctor.nodeCondition=true", "metrics.secure=true", "monitoring.alerts=true", "monitoring.dashboards=true", "openshift=true", "admissionPolicy=true")
	for name, o := range all {
		if name == "Lease kube-system/rail-cni-reconciler" {
			continue
		}
		if _, object, _ := strings.Cut(name, "/"); object != "nics" && !strings.HasPrefix(object, "nics-") {
			t.Errorf("there is %s", name)
		}
		text, err := yaml.Marshal([]any{field(o, "subjects"), field(o, "roleRef"), field(o, "spec", "policyName"), field(o, "spec", "matchConditions")})
		if err != nil || bytes.Contains(text, []byte("rail-cni-")) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
	if args := fmt.Sprint(all["DaemonSet default/nics-agent"]); !strings.Contains(args, "--plugin-account=nics-whereabouts ") {
		t.Errorf("the agent does not know the plugin's account: %s", args)
	}
	if job := fmt.Sprint(all["Job default/nics-uninstall"]); !strings.Contains(job, "--daemonset=nics-agent]") {
		t.Errorf("the agents are not uninstalled: %s", job)
	}
}

func TestLogsOfTheChart(t *testing.T) {
	for set, want := range map[string]bool{"log.level=info": false, "log.level=warn,log.format=json": true} {
		all := objects(t, set)
		for _, name := range []string{"DaemonSet default/rail-agent", "Deployment default/rail-cni-reconciler"} {
			if text := fmt.Sprint(all[name]); strings.Contains(text, "--log-level=warn --log-format=json") != want {
				t.Errorf("%s: %s: %s", set, name, text)
			}
		}
	}
}

// Prometheus Operator finds the pods' ports by the PodMonitor.
func TestPodMonitorSelectsThePortsOfAgentsAndReconciler(t *testing.T) {
	values := []string{
		"monitoring.podMonitor.enabled=true", "metrics.address=0.0.0.0", "metrics.secure=true", "monitoring.podMonitor.labels.release=prom",
		"monitoring.podMonitor.authorization.credentials.name=token", "monitoring.podMonitor.authorization.credentials.key=token",
	}
	all := objects(t, values...)
	monitor := all["PodMonitor default/rail-cni"]
	endpoints, _ := field(monitor, "spec", "podMetricsEndpoints").([]any)
	if len(endpoints) != 1 || field(monitor, "metadata", "labels", "release") != "prom" {
		t.Fatalf("%v", monitor)
	}
	if have := fmt.Sprint(endpoints[0]); have != "map[authorization:map[credentials:map[key:token name:token]] interval:30s port:metrics scheme:https tlsConfig:map[insecureSkipVerify:true]]" {
		t.Errorf("the endpoint is %s", have)
	}
	// Helm merges a mapping of the user's with that of values.yaml.
	checked := objects(t, append(values, "monitoring.podMonitor.tlsConfig.serverName=rail-agent")...)["PodMonitor default/rail-cni"]
	if have := fmt.Sprint(field(checked, "spec", "podMetricsEndpoints")); !strings.Contains(have, "tlsConfig:map[serverName:rail-agent]]") {
		t.Errorf("with a tlsConfig of the user's the endpoint is %s", have)
	}
	selector, _ := field(monitor, "spec", "selector", "matchLabels").(map[string]any)
	for _, name := range []string{"DaemonSet default/rail-agent", "Deployment default/rail-cni-reconciler"} {
		for label, value := range selector {
			if field(all[name], "spec", "template", "metadata", "labels", label) != value {
				t.Errorf("%s: its pods are not selected by %s", name, label)
			}
		}
		ports := ""
		containers(all[name], "", func(_ string, c, _ map[string]any) { ports += fmt.Sprint(c["ports"]) })
		if !strings.Contains(ports, "map[containerPort:9400 name:metrics]") {
			t.Errorf("%s has the ports %s", name, ports)
		}
	}
	for set, want := range map[string]string{
		"monitoring.podMonitor.enabled=true":                                             "needs a metrics.address",
		"monitoring.podMonitor.enabled=true,metrics.address=0.0.0.0,metrics.secure=true": "needs monitoring.podMonitor.authorization",
		"railctl.hostDir=/opt/cni/bin":                                                   "railctl.hostDir must differ",
	} {
		if out, err := command(t, "template", "rail-cni", chart, "--set", set).CombinedOutput(); err == nil || !bytes.Contains(out, []byte(want)) {
			t.Errorf("%s: %v\n%s", set, err, out)
		}
	}
}

func TestRailctlOnTheNodes(t *testing.T) {
	for set, want := range map[string][2]bool{ // whether the directory is mounted, and whether railctl is installed there
		"railctl.install=true":                                 {false, false},
		"railctl.hostDir=/usr/local/bin":                       {true, true},
		"railctl.hostDir=/usr/local/bin,railctl.install=false": {true, false},
	} {
		text := fmt.Sprint(objects(t, set)["DaemonSet default/rail-agent"])
		if have := [2]bool{strings.Contains(text, "mountPath:/usr/local/bin"), strings.Contains(text, "--railctl-dir=/usr/local/bin")}; have != want {
			t.Errorf("%s: %v", set, have)
		}
	}
}

// What Artifact Hub shows of the chart is true.
func TestAnnotationsForArtifactHub(t *testing.T) {
	var c struct {
		AppVersion  string `yaml:"appVersion"`
		Icon        string
		Annotations map[string]string
	}
	var values struct{ Image struct{ Repository string } }
	for file, to := range map[string]any{"Chart.yaml": &c, "values.yaml": &values} {
		text, err := os.ReadFile(filepath.Join(chart, file))
		if err == nil {
			err = yaml.Unmarshal(text, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func(name string) (all []map[string]string) {
		t.Helper()
		if err := yaml.Unmarshal([]byte(c.Annotations["artifacthub.io/"+name]), &all); err != nil || len(all) == 0 {
			t.Errorf("%s: %v, %v", name, all, err)
		}
		return all
	}
	for _, image := range list("images") {
		if want := values.Image.Repository + ":" + c.AppVersion; image["image"] != want || image["name"] == "" {
			t.Errorf("the image is %v, not %s", image, want)
		}
	}
	kinds := []string{"added", "changed", "deprecated", "removed", "fixed", "security"}
	for _, change := range list("changes") {
		if !slices.Contains(kinds, change["kind"]) || change["description"] == "" {
			t.Errorf("the change %v", change)
		}
	}
	var have, want []string
	for _, crd := range list("crds") {
		if crd["displayName"] == "" || crd["description"] == "" {
			t.Errorf("%v lacks a name or a description", crd)
		}
		have = append(have, crd["kind"]+" "+crd["version"]+" "+crd["name"])
	}
	files, err := filepath.Glob(filepath.Join(chart, "crds", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var o struct {
			Metadata struct{ Name string }
			Spec     struct {
				Names    struct{ Kind string }
				Versions []struct{ Name string }
			}
		}
		if err := yaml.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		want = append(want, o.Spec.Names.Kind+" "+o.Spec.Versions[0].Name+" "+o.Metadata.Name)
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("the definitions are %v, and not %v", want, have)
	}
	const main = "https://github.com/rail-cni/rail-cni/blob/main/"
	for _, link := range list("links") {
		if path, ours := strings.CutPrefix(link["url"], main); ours {
			if _, err := os.Stat(filepath.Join("../../..", path)); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join("../../..", regexp.MustCompile(`.*/main/`).ReplaceAllString(c.Icon, ""))); err != nil {
		t.Error(err)
	}
}
