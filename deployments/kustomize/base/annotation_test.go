package base_test

import (
	"os"
	"strings"
	"testing"
)

// An agent may patch pods where a node file asks for the annotation, and nowhere else.
func TestAgentsMayPatchPodsForTheAnnotationOnly(t *testing.T) {
	const role = "rail-cni-agent-annotation"
	for _, c := range []struct {
		set  []string
		want bool
	}{
		{nil, false},
		{[]string{"--set", "nodeFile.publish.annotation=false"}, false},
		{[]string{"--set-json", `nodeFile={"publish": {"mount": true}}`}, false},
		{[]string{"--set", "annotatePods=true"}, true},
		{[]string{"--set", "nodeFile.publish.annotation=true"}, true},
		{[]string{"--set-json", `nodePools=[{"name": "a", "nodeSelector": {"x": "y"}}, {"name": "b", "nodeSelector": {"x": "z"}, "nodeFile": {"publish": {"annotation": true}}}]`}, true},
	} {
		text := rendered(t, c.set...)["agent.yaml"]
		if strings.Contains(text, role) != c.want || strings.Contains(text, "[pods]") != c.want {
			t.Errorf("%q: the right to patch pods is %v", c.set, !c.want)
		}
	}
}

// The component has what the chart adds.
func TestComponentOfTheAnnotationIsWhatTheChartMakes(t *testing.T) {
	wantsComponent(t, "annotation", "annotatePods=true")
}

// wantsComponent fails the test unless the role.yaml of a component has what a value of the
// chart adds to the agent's objects.
func wantsComponent(t *testing.T, component, value string) {
	t.Helper()
	added := map[string]bool{}
	for object := range strings.SplitSeq(rendered(t, "--set", value)["agent.yaml"], "---\n") {
		added[strings.TrimSpace(object)] = true
	}
	for object := range strings.SplitSeq(rendered(t)["agent.yaml"], "---\n") {
		delete(added, strings.TrimSpace(object))
	}
	text, err := os.ReadFile("../" + component + "/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects := strings.Split(string(text), "---\n")
	for _, object := range objects {
		if !added[strings.TrimSpace(object)] {
			t.Errorf("the chart does not make\n%s", object)
		}
	}
	if len(objects) != len(added) {
		t.Errorf("the chart adds %d objects, the component %d", len(added), len(objects))
	}
}
