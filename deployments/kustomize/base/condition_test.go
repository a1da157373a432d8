package base_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
)

// An agent may patch the status of Nodes where the condition is wanted, and nowhere else.
func TestAgentsMayPatchNodesForTheConditionOnly(t *testing.T) {
	for _, c := range []struct {
		set       []string
		condition bool
		argument  string // "" for none
	}{
		{nil, false, ""},
		{[]string{"--set", "doctor.nodeCondition=true"}, true, "--node-condition"},
		{[]string{"--set", "doctor.nodeCondition=true", "--set", "doctor.enabled=false"}, false, "--doctor=off"},
	} {
		objects := rendered(t, c.set...)
		for _, word := range []string{"name: rail-cni-agent-condition", "resources: [nodes/status]"} {
			if strings.Contains(objects["agent.yaml"], word) != c.condition {
				t.Errorf("%q: the right to patch Nodes is %v", c.set, !c.condition)
			}
		}
		for _, argument := range []string{"--node-condition", "--doctor=off"} {
			if strings.Contains(objects["daemonset.yaml"], argument) != (argument == c.argument) {
				t.Errorf("%q: the argument %s is %v", c.set, argument, argument != c.argument)
			}
		}
	}
}

// The component makes of the base what the chart makes with the condition.
func TestKustomizeAddsTheCondition(t *testing.T) {
	wantsComponent(t, "node-condition", "doctor.nodeCondition=true")
	kubectl := testnet.Tool(t, "controlplane/kubectl", "cluster-binaries")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	overlay := t.TempDir()
	up, err := filepath.Rel(overlay, filepath.Dir(here)) // kustomize takes no absolute path
	if err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + filepath.Join(up, "base") + "]\ncomponents: [" + filepath.Join(up, "node-condition") + "]\n"
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	have := decoded(t, bytes.Split(run(t, kubectl, "kustomize", overlay), []byte("\n---\n")))
	var objects [][]byte
	for _, text := range rendered(t, "--set", "doctor.nodeCondition=true", "--set", "apiPriority.enabled=false") {
		objects = append(objects, bytes.Split([]byte(text), []byte("\n---\n"))...)
	}
	wantEqual(t, have, decoded(t, objects))
}
