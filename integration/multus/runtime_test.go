package multus

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// sandbox is the container runtime's view of a pod.
type sandbox struct {
	*node
	t     testing.TB
	pod   string
	id    string
	netns *testnet.Netns
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
	conf  *libcni.RuntimeConf
}

// sandbox makes the pod's network namespace on the node. The pod must exist in
// the API.
func (n *node) sandbox(t testing.TB, pod string) *sandbox {
	t.Helper()
	var p podObject
	get(t, pods+"/"+pod, &p)
	s := &sandbox{node: n, t: t, pod: pod, netns: testnet.NewNetns(t, "pod")}
	s.id = strings.Repeat(strings.ReplaceAll(p.Metadata.UID, "-", ""), 2) // 64 digits, as a runtime's
	s.conf = &libcni.RuntimeConf{
		ContainerID: s.id, NetNS: "/run/netns/" + s.netns.Name, IfName: "eth0",
		Args: [][2]string{ // in containerd's order
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", "default"},
			{"K8S_POD_NAME", pod},
			{"K8S_POD_INFRA_CONTAINER_ID", s.id},
			{"K8S_POD_UID", p.Metadata.UID},
		},
	}
	s.list = n.runtimeConfig()
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: n.log}}
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{n.runtimeBin}, filepath.Join(n.runtimeBin, "cache"), exec)
	t.Cleanup(func() { _ = s.del() }) // so that a failed test does not affect others
	return s
}

// runtimeConfig reads the runtime's network configuration: a file in the older
// form, for one plugin, as Multus' daemon and installer write it.
func (n *node) runtimeConfig() *libcni.NetworkConfigList {
	n.t.Helper()
	var conf struct{ CNIVersion, Name string }
	var raw []byte
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if raw, err = os.ReadFile(n.file(multusConf)); err == nil {
			err = json.Unmarshal(raw, &conf)
		}
		if err == nil {
			break
		} else if time.Now().After(deadline) {
			n.t.Fatal("the daemon wrote no configuration for the runtime: ", err)
		}
	}
	text, err := json.Marshal(map[string]any{"cniVersion": conf.CNIVersion, "name": conf.Name, "plugins": []json.RawMessage{raw}})
	if err != nil {
		n.t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

// patience is a kubelet's time limit for a sandbox.
const patience = 4 * time.Minute

func (s *sandbox) add() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := s.cni.AddNetworkList(ctx, s.list, s.conf)
	return err
}

func (s *sandbox) del() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.cni.DelNetworkList(ctx, s.list, s.conf)
}

func (s *sandbox) mustAdd() {
	s.t.Helper()
	began := time.Now()
	if err := s.add(); err != nil {
		s.t.Fatalf("ADD of %s: %v", s.pod, err)
	}
	s.t.Logf("ADD of %s took %v", s.pod, time.Since(began).Round(time.Millisecond))
}

func (s *sandbox) mustDel() {
	s.t.Helper()
	if err := s.del(); err != nil {
		s.t.Errorf("DEL of %s: %v", s.pod, err)
	}
}

// ended ends the pod's network namespace, and waits until the kernel has
// destroyed it. Since ADD Multus' daemon has a handle on each, which only Go's
// garbage collector closes; until then the namespace and a loan in it stay.
// Without GOGC that takes up to two minutes, the longest pause of the
// collector. Requests make it run sooner.
func (s *sandbox) ended() {
	s.t.Helper()
	s.netns.Kill()
	began := time.Now()
	for netns.Exists(s.netns.ID, "") {
		if time.Since(began) > 30*time.Second {
			s.t.Fatalf("netns %s is still there", s.netns.Name)
		}
		s.mustDel()
	}
	s.t.Logf("the end of %s's netns took %v", s.pod, time.Since(began).Round(time.Millisecond))
}
