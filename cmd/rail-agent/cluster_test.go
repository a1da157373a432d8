package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// TestAgentFreesWhatTheJournalHasAndTellsTheNodesEvents runs against a real API
// server: an address whose DEL could not reach it is freed by the kubeconfig
// that the entry names, and what is wrong with the node is an Event of it.
func TestAgentFreesWhatTheJournalHasAndTellsTheNodesEvents(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	kubeconfig := plane.AdminKubeconfig()
	l := &lab{t: t, state: filepath.Join(t.TempDir(), "state")}

	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "stateDir": l.state,
		"ipam": map[string]any{"type": "whereabouts", "range": "10.0.0.0/24", "kubernetes": map[string]any{"kubeconfig": kubeconfig}},
	})
	if err != nil {
		t.Fatal(err)
	}
	run := func(verb, nodeFile string) string {
		cmd := exec.Command(filepath.Join(testnet.Bin(t), "whereabouts"))
		cmd.Env = []string{
			"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=net1", "CNI_NETNS=/nonexistent/netns", "CNI_PATH=/nonexistent",
			"CNI_ARGS=IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod1", netconf.NodeFileEnv + "=" + nodeFile,
		}
		cmd.Stdin = strings.NewReader(string(conf))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", verb, err, out)
		}
		return string(out)
	}
	run("ADD", testnet.OpenNodeFile)
	held := func() bool {
		_, answer, err := plane.Admin().Get(t.Context(), "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(answer), `"default/pod1"`)
	}
	if !held() {
		t.Fatal("the pod has no address")
	}
	// The kubeconfig was open when the pod began, and is not when it ends, as
	// after an upgrade: a DEL does not fail for ever, and forgets nothing.
	journal := netconf.JournalDir(l.state)
	closed := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(closed, []byte("paths: ["+l.state+"]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := run("DEL", closed); !strings.Contains(said, kubeconfig) || !strings.Contains(said, "add the path to") || !held() {
		t.Errorf("address held: %v; DEL said %s", held(), said)
	}
	run("DEL", closed) // again
	if left, err := os.ReadDir(journal); err != nil || len(left) != 1 {
		t.Fatalf("in the journal: %v, %v", left, err)
	}

	// The agent has no kubeconfig of its own here, but that of the entry, which
	// it does not open while it is closed.
	t.Setenv(netconf.NodeFileEnv, closed)
	a := l.start()
	await(t, "the agent to say why", 20*time.Second, func() bool { return len(a.said("add the path to")) > 0 })
	if a.end(syscall.SIGTERM); !held() {
		t.Error("a kubeconfig that is closed was used")
	}
	t.Setenv(netconf.NodeFileEnv, testnet.OpenNodeFile)
	a = l.start()
	await(t, "the address to be freed", 20*time.Second, func() bool { return !held() })
	await(t, "the journal to be empty", 5*time.Second, func() bool {
		left, err := os.ReadDir(journal)
		return err == nil && len(left) == 0
	})
	if n, lines := a.metric("rail_cni_journal_addresses"); n != 0 || lines != 1 {
		t.Errorf("%v addresses wait, in %d lines", n, lines)
	}
	memory, _ := a.metric("process_resident_memory_bytes")
	t.Logf("after requests to the server: %.1f MiB resident", memory/(1<<20))
	if memory > 40<<20 {
		t.Errorf("%.1f MiB are resident", memory/(1<<20))
	}
	if a.end(syscall.SIGTERM); len(a.said("level=ERROR"))+len(a.said("level=WARN")) > 0 {
		t.Error(a.said("level="))
	}

	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "macvlan"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.start("--kubeconfig", kubeconfig, "--node", "node1", "--cni-bin", bin)
	type event struct {
		Reason, Type, Message string
		InvolvedObject        struct{ Kind, Name, UID string }
		Source                struct{ Component string }
	}
	var found []event
	await(t, "the Events", 20*time.Second, func() bool {
		_, answer, err := plane.Admin().Get(t.Context(), "/api/v1/namespaces/default/events")
		var list struct{ Items []event }
		if err == nil {
			err = json.Unmarshal(answer, &list)
		}
		if err != nil {
			t.Fatal(err)
		}
		found = list.Items
		return len(found) == 4 // one for each plugin
	})
	for _, e := range found {
		if e.Reason != "PluginReplaced" || e.Type != "Warning" || e.InvolvedObject.Kind != "Node" || e.InvolvedObject.Name != "node1" ||
			e.InvolvedObject.UID != "node1" || e.Source.Component != "rail-agent" || !strings.Contains(e.Message, bin) {
			t.Errorf("%+v", e)
		}
	}
}
