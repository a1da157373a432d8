package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// condition returns the status and the message of a condition of the Node.
func condition(t *testing.T, plane *controlplane.Plane, kind string) (status, message string) {
	t.Helper()
	_, answer, err := plane.Admin().Get(t.Context(), "/api/v1/nodes/node1")
	var node struct {
		Status struct {
			Conditions []struct {
				Type, Status, Message string
				LastTransitionTime    time.Time
			}
		}
	}
	if err == nil {
		err = json.Unmarshal(answer, &node)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			if kind == "RailNetworkReady" && c.LastTransitionTime.IsZero() {
				t.Errorf("no lastTransitionTime: %+v", c)
			}
			return c.Status, c.Message
		}
	}
	return "", ""
}

// TestAgentTellsOfALostCarrier runs against a real API server. The agent must report the lost
// carrier in a metric, in Events and in the condition of the Node.
func TestAgentTellsOfALostCarrier(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	for _, o := range []struct {
		method, path, kind string
		body               any
	}{
		{http.MethodPost, "/api/v1/nodes", "", map[string]any{"metadata": map[string]any{"name": "node1"}}},
		{http.MethodPatch, "/api/v1/nodes/node1/status", controlplane.MergePatch, map[string]any{"status": map[string]any{"conditions": []map[string]any{{"type": "Ready", "status": "True"}}}}},
	} {
		if code, answer, err := plane.Admin().Do(t.Context(), o.method, o.path, o.kind, o.body); err != nil || code/100 != 2 {
			t.Fatal(code, string(answer), err)
		}
	}
	l := newLab(t)
	l.node.NIC("ens1", l.wire)
	stop, err := plane.Reach("/run/netns/" + l.node.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	pod := testnet.NewNetns(t, "pod")
	l.node.MustRun(l.call("host-device", "ADD", "ens1", pod, "net1")) // for no pod: its carrier is a matter of the node
	a := l.start("--kubeconfig", plane.AdminKubeconfig(), "--node", "node1", "--doctor-interval", "1s", "--node-condition")
	carrier := func(status string) func() bool {
		return func() bool {
			_, n := a.metric("rail_doctor_rule", `id="NIC-CARRIER"`, `status="`+status+`"`)
			return n == 1
		}
	}
	says := func(want bool) func() bool {
		return func() bool {
			status, message := condition(t, plane, "RailNetworkReady")
			return status != "" && strings.Contains(message, "NIC-CARRIER: NIC ens1") == want && (!want || status == "False")
		}
	}
	await(t, "the metric of a sound NIC", busy, carrier("ok"))
	await(t, "the condition", busy, says(false))

	l.wire.IP("link", "set", "ens1-sw", "down")
	await(t, "the metric of a lost carrier", busy, carrier("fail"))
	await(t, "the condition of a lost carrier", busy, says(true))
	if ready, _ := condition(t, plane, "Ready"); ready != "True" {
		t.Errorf("the kubelet's condition is %q", ready)
	}
	problems := func() int { return len(a.said("reason=RailProblem message=\"NIC-CARRIER: NIC ens1")) }
	time.Sleep(3 * time.Second) // more runs, which tell nothing
	if n := problems(); n != 1 {
		t.Errorf("told %d times", n)
	}
	l.wire.IP("link", "set", "ens1-sw", "up")
	await(t, "the condition of the carrier", busy, says(false))
	await(t, "the end of the problem", busy, func() bool { return len(a.said("reason=RailProblemSolved message=\"NIC-CARRIER: ")) == 1 })
	_, events, err := plane.Admin().Get(t.Context(), "/api/v1/namespaces/default/events")
	if err != nil || !strings.Contains(string(events), `"RailProblem"`) {
		t.Errorf("Events: %v, %s", err, events)
	}

	var out, errOut bytes.Buffer
	cmd := exec.Command(filepath.Join(testnet.Bin(t), "rail-agent"), "facts", "--state-dir", l.state)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatal(err, errOut.String())
	}
	f, err := fact.Decode(&out)
	if err != nil || f.Node != "node1" || !f.Agent.Running.Value || f.Agent.Running.Error != "" {
		t.Fatalf("facts: %v, %+v", err, f)
	}
	for _, n := range f.NICs.List.Value {
		// Exactly one loss counts: the NIC was up at that time, and no record changed.
		if n.Name == "ens1" && (!n.Flaps.OK() || n.Flaps.Value.Count != 1) {
			t.Errorf("flaps: %+v", n.Flaps)
		}
	}
	if memory, _ := a.metric("process_resident_memory_bytes"); memory > 40<<20 {
		t.Errorf("%.1f MiB are resident", memory/(1<<20))
	}
	for _, id := range []string{"DP-COUNT", "K8S-NFD", "K8S-DEVINFO"} { // these need rights that the agent has not
		if _, n := a.metric("rail_doctor_rule", `id="`+id+`"`); n != 0 {
			t.Errorf("%s has a metric", id)
		}
	}
	a.end(syscall.SIGTERM)
	if status, _ := condition(t, plane, "RailNetworkReady"); status != "" {
		t.Errorf("without an agent the condition is %s", status)
	}
	if ready, _ := condition(t, plane, "Ready"); ready != "True" {
		t.Errorf("the kubelet's condition is %q", ready)
	}
}

func TestDoctorThatIsOff(t *testing.T) {
	a := newLab(t).start("--doctor", "off", "--doctor-interval", "1s")
	time.Sleep(2 * time.Second) // one that is on has judged now
	if _, n := a.metric("rail_doctor_rule"); n != 0 {
		t.Error("it has metrics")
	}
	if code, body := a.get("/facts"); code != http.StatusOK || !strings.Contains(body, fact.Schema) {
		t.Errorf("/facts: %d %.200s", code, body)
	}
}

func TestDoctorFlagsThatAreNoneAreRefused(t *testing.T) {
	for _, args := range [][]string{{"--doctor", "yes"}, {"--doctor-interval", "1ms"}, {"--doctor-interval", "1h"}, {"--node-condition"}} {
		a := hostLab(t).launch(args...)
		<-a.ended
		if a.cmd.ProcessState.ExitCode() != 1 || len(a.said(args[0])) == 0 {
			t.Error(a.cmd.ProcessState, a.said(""))
		}
	}
}
