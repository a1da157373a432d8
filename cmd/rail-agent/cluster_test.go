package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/scratch"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// whereabouts runs the plugin whereabouts for an interface of default/pod1 and returns the plugin's
// output.
func (l *lab) whereabouts(verb, nodeFile string, ipam map[string]any) string {
	l.t.Helper()
	ipam["type"] = "whereabouts"
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "stateDir": l.state, "ipam": ipam})
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(testnet.Bin(l.t), "whereabouts"))
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=net1", "CNI_NETNS=/nonexistent/netns", "CNI_PATH=/nonexistent",
		"CNI_ARGS=IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod1", nodefile.PathEnv + "=" + nodeFile,
	}
	cmd.Stdin = bytes.NewReader(conf)
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s: %v\n%s", verb, err, out)
	}
	return string(out)
}

// holdsAddress reports whether default/pod1 has an address.
func holdsAddress(t *testing.T, plane *controlplane.Plane) bool {
	t.Helper()
	_, answer, err := plane.Admin().Get(t.Context(), "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(answer), `"default/pod1"`)
}

// The node file allows the flat file that the network names, and the
// administrator's flat file may name any kubeconfig. The agent does not know
// the network's config.
func TestAgentFreesWithKubeconfigNamedOnlyByNetworksFlatFile(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	dir := scratch.Dir(t)
	l := &lab{t: t, state: filepath.Join(dir, "state")}
	flat, kubeconfig, nodeFile := filepath.Join(dir, "flat"), plane.AdminKubeconfig(), filepath.Join(dir, "node.yaml")
	write := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(flat, `{"kubernetes":{"kubeconfig":"`+kubeconfig+`"}}`)
	write(nodeFile, "paths: ["+l.state+", "+flat+"]")
	ipam := map[string]any{"range": "10.0.0.0/24", "configuration_path": flat}
	l.whereabouts("ADD", nodeFile, ipam)
	if err := os.Rename(kubeconfig, kubeconfig+".away"); err != nil {
		t.Fatal(err)
	}
	l.whereabouts("DEL", nodeFile, ipam)
	if err := os.Rename(kubeconfig+".away", kubeconfig); err != nil {
		t.Fatal(err)
	}
	if !holdsAddress(t, plane) {
		t.Fatal("the DEL did not wait")
	}

	closed := filepath.Join(dir, "closed.yaml")
	write(closed, "paths: ["+l.state+"]")
	t.Setenv(nodefile.PathEnv, closed)
	a := l.start()
	await(t, "the agent to say why", time.Minute, func() bool { return len(a.said("add the path to")) > 0 })
	if a.end(syscall.SIGTERM); !holdsAddress(t, plane) {
		t.Error("a flat file that the node file does not open was used")
	}
	t.Setenv(nodefile.PathEnv, nodeFile)
	l.start()
	await(t, "the address to be freed", time.Minute, func() bool { return !holdsAddress(t, plane) })
}

// TestAgentFreesWhatTheJournalHasAndTellsTheNodesEvents runs against a real API
// server: it frees an address whose DEL could not reach the server with the
// kubeconfig of the journal's entry, and reports the node's problem as an
// Event.
func TestAgentFreesWhatTheJournalHasAndTellsTheNodesEvents(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	kubeconfig := plane.AdminKubeconfig()
	l := &lab{t: t, state: filepath.Join(scratch.Dir(t), "state")}

	run := func(verb, nodeFile string) string {
		t.Helper()
		return l.whereabouts(verb, nodeFile, map[string]any{"range": "10.0.0.0/24", "kubernetes": map[string]any{"kubeconfig": kubeconfig}})
	}
	run("ADD", testnet.OpenNodeFile)
	held := func() bool { return holdsAddress(t, plane) }
	if !held() {
		t.Fatal("the pod has no address")
	}
	// The node file allowed the kubeconfig when the pod began, but forbids it when the pod ends.
	// This can happen after an upgrade. A DEL must not fail forever, and must not forget the
	// address.
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

	// Here the agent has no kubeconfig except the one that the journal's entry names. It must not
	// open this kubeconfig while the node file forbids it.
	t.Setenv(nodefile.PathEnv, closed)
	a := l.start()
	await(t, "the agent to say why", 20*time.Second, func() bool { return len(a.said("add the path to")) > 0 })
	if a.end(syscall.SIGTERM); !held() {
		t.Error("a kubeconfig that is closed was used")
	}
	t.Setenv(nodefile.PathEnv, testnet.OpenNodeFile)
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
