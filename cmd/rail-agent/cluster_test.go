package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/kubernetes"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// TestAgentFreesWhatTheJournalHasAndTellsTheNodesEvents runs against a real API
// server: an address whose DEL could not reach it is freed by the kubeconfig
// that the entry names, and what is wrong with the node is an Event of it.
func TestAgentFreesWhatTheJournalHasAndTellsTheNodesEvents(t *testing.T) {
	plane := controlplane.Start(t, controlplane.Options{})
	kubeconfig := plane.AdminKubeconfig()
	l := &lab{t: t, state: filepath.Join(t.TempDir(), "state")}

	add := exec.Command(filepath.Join(testnet.Bin(t), "whereabouts"))
	add.Env = []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=net1", "CNI_NETNS=/nonexistent/netns", "CNI_PATH=/nonexistent",
		"CNI_ARGS=IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod1",
	}
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "stateDir": l.state,
		"ipam": map[string]any{"type": "whereabouts", "range": "10.0.0.0/24", "kubernetes": map[string]any{"kubeconfig": kubeconfig}},
	})
	if err != nil {
		t.Fatal(err)
	}
	add.Stdin = strings.NewReader(string(conf))
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
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
	journal := netconf.JournalDir(l.state)
	owner := ipam.Owner{ContainerID: "c1", IfName: "net1", PodRef: "default/pod1"}
	if err := kubernetes.Defer(journal, kubeconfig, owner, []ipam.Pool{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}); err != nil {
		t.Fatal(err)
	}

	// The agent has no kubeconfig of its own here, but that of the entry.
	a := l.start()
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
