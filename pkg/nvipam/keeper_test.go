package nvipam_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/controlplane"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodeprefix"
	"github.com/rail-cni/rail-cni/pkg/nvipam"
)

// definition is that of nv-ipam's CIDRPools, with the fields that count here.
const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"cidrpools.nv-ipam.nvidia.com"},
"spec":{"group":"nv-ipam.nvidia.com","scope":"Namespaced","names":{"kind":"CIDRPool","listKind":"CIDRPoolList","plural":"cidrpools","singular":"cidrpool"},
"versions":[{"name":"v1alpha1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","required":["spec"],"properties":{
"spec":{"type":"object","required":["cidr","perNodeNetworkPrefix"],"properties":{
"cidr":{"type":"string"},"perNodeNetworkPrefix":{"type":"integer"},"gatewayIndex":{"type":"integer"},"defaultGateway":{"type":"boolean"},
"exclusions":{"type":"array","items":{"type":"object","properties":{"startIP":{"type":"string"},"endIP":{"type":"string"}}}},
"perNodeExclusions":{"type":"array","items":{"type":"object","properties":{"startIndex":{"type":"integer"},"endIndex":{"type":"integer"}}}},
"routes":{"type":"array","items":{"type":"object","properties":{"dst":{"type":"string"}}}}}},
"status":{"type":"object","properties":{"allocations":{"type":"array","items":{"type":"object","required":["nodeName","prefix"],"properties":{
"nodeName":{"type":"string"},"prefix":{"type":"string"},"gateway":{"type":"string"}}}}}}}}}}]}}`

const objects = "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/default/cidrpools"

// lab is a node with a state directory, a keeper, and a cluster.
type lab struct {
	*testing.T
	plane  *controlplane.Plane
	state  string
	wanted atomic.Bool

	mu   sync.Mutex
	told []component.Notice
}

// start starts a keeper. The function that it returns ends it.
func (l *lab) start() (stop func()) {
	l.Helper()
	client, err := kube.Open(kube.Config{Kubeconfig: l.plane.AdminKubeconfig(), UserAgent: "keeper"})
	if err != nil {
		l.Fatal(err)
	}
	k := nvipam.NewKeeper(nvipam.Options{
		StateDirs: []string{l.state}, Node: "node2", Client: client, Log: slog.New(slog.DiscardHandler),
		Wanted: func() (bool, error) { return l.wanted.Load(), nil },
		Tell: func(n component.Notice) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.told = append(l.told, n)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	l.Cleanup(stop)
	return stop
}

// said returns the messages of a reason.
func (l *lab) said(reason string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var text []string
	for _, n := range l.told {
		if n.Reason == reason {
			text = append(text, n.Message)
		}
	}
	return strings.Join(text, "\n")
}

func (l *lab) await(what string, done func() bool) {
	l.Helper()
	for began := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			l.Fatalf("still waiting for %s", what)
		}
	}
}

// pool makes a pool without an allocation.
func (l *lab) pool(name, spec string) {
	l.Helper()
	object := json.RawMessage(`{"apiVersion":"nv-ipam.nvidia.com/v1alpha1","kind":"CIDRPool","metadata":{"name":"` + name + `"},"spec":{"cidr":"10.0.0.0/20","perNodeNetworkPrefix":30` + spec + `}}`)
	if code, answer, err := l.plane.Admin().Create(l.Context(), objects, object); err != nil || code != 201 {
		l.Fatalf("%d %s %v", code, answer, err)
	}
}

// allocate allocates a prefix of the pool to node2, as nv-ipam's controller does.
func (l *lab) allocate(name, prefix, gateway string) {
	l.Helper()
	status := json.RawMessage(fmt.Sprintf(`{"status":{"allocations":[{"nodeName":"node1","prefix":"10.0.0.0/30"},{"nodeName":"node2","prefix":%q,"gateway":%q}]}}`, prefix, gateway))
	if code, answer, err := l.plane.Admin().Patch(l.Context(), objects+"/"+name+"/status", "application/merge-patch+json", status); err != nil || code != 200 {
		l.Fatalf("%d %s %v", code, answer, err)
	}
}

// has reports whether the plugins are told that the pool has this prefix, or this problem.
func (l *lab) has(pool, want string) bool {
	file := &netconf.NodeFile{PrefixesFrom: []string{netconf.NVIPAM}}
	p, err := nodeprefix.Of(l.state, file, pool)
	return err == nil && p.Prefix == want || err != nil && strings.Contains(err.Error(), want)
}

func TestAddressesOfAPoolNeedNoRequest(t *testing.T) {
	l := &lab{T: t, plane: controlplane.Start(t, controlplane.Options{Audit: true, CRDs: [][]byte{[]byte(definition)}}), state: filepath.Join(t.TempDir(), "state")}
	nodeFile := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(nodeFile, []byte("paths: [\"/**\"]\nprefixesFrom: [nv-ipam]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(netconf.NodeFileEnv, nodeFile)
	node, wire := testnet.NewNetns(t, "node"), testnet.NewNetns(t, "wire")
	pods := map[string]*testnet.Netns{}
	call := func(verb, nic string) testnet.Call {
		if pods[nic] == nil {
			node.NIC(nic, wire)
			pods[nic] = testnet.NewNetns(t, "pod")
		}
		return testnet.Call{
			Plugin: "host-device", Verb: verb, ContainerID: pods[nic].Name, IfName: "net1", Netns: "/run/netns/" + pods[nic].Name,
			Config: fmt.Sprintf(`{"cniVersion":"1.1.0","name":"rail","type":"host-device","device":%q,"stateDir":%q,"ipam":{"type":"whereabouts","prefix":"nv-ipam/rail-0","kubernetes":{"kubeconfig":%q}}}`,
				nic, l.state, l.plane.AdminKubeconfig()),
		}
	}
	refused := func(nic, text string) {
		t.Helper()
		if _, err := node.Run(call("ADD", nic)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("ADD: %v, want %q", err, text)
		}
	}
	given := func(nic, address, gateway string) {
		t.Helper()
		out := strings.ReplaceAll(string(node.MustRun(call("ADD", nic))), " ", "")
		for _, want := range []string{`"address":"` + address + `"`, `"gateway":"` + gateway + `"`, `"dst":"10.0.0.0/8"`} {
			if !strings.Contains(out, want) {
				t.Errorf("no %s in %s", want, out)
			}
		}
	}
	refused("ens1", "rail-agent has not written the node's prefixes yet")

	stop := l.start()
	time.Sleep(100 * time.Millisecond)
	refused("ens1", "rail-agent has not written the node's prefixes yet") // nobody has asked the keeper
	stop()
	l.wanted.Store(true)
	stop = l.start()
	l.await("the empty list", func() bool { return l.has("rail-0", "nv-ipam has no CIDRPool") })
	refused("ens1", `nv-ipam has no CIDRPool "rail-0"`)
	l.pool("rail-0", `,"gatewayIndex":1,"perNodeExclusions":[{"startIndex":3,"endIndex":3}],"routes":[{"dst":"10.0.0.0/8"}]`)
	l.await("the pool", func() bool { return l.has("rail-0", "no allocation") })
	refused("ens1", "the node node2 has no prefix of the CIDRPool default/rail-0: its status has no allocation for the node")
	l.allocate("rail-0", "10.0.4.8/30", "10.0.4.9")
	l.await("the allocation", func() bool { return l.has("rail-0", "10.0.4.8/30") })

	began := time.Now()
	given("ens1", "10.0.4.10/30", "10.0.4.9")
	refused("ens2", "Could not allocate IP in range") // the gateway, and what is excluded, are the rest
	requests, err := l.plane.Requests(t.Context(), began)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if strings.HasPrefix(r.UserAgent, "rail-cni") {
			t.Errorf("an ADD made the request %s %s", r.Verb, r.URI)
		}
	}

	// The allocation moves while the keeper is away, and a pod has an address of the former one.
	stop()
	l.allocate("rail-0", "10.0.5.8/30", "10.0.5.9")
	l.start()
	l.await("the move", func() bool { return l.has("rail-0", "10.0.5.8/30") })
	l.await("the report", func() bool { return l.said("PrefixMoved") != "" }) // it follows the write
	moved := l.said("PrefixMoved")
	for _, want := range []string{"CIDRPool default/rail-0 gives this node 10.0.5.8/30 and no longer 10.0.4.8/30", "10.0.4.10 of container " + pods["ens1"].Name, "delete these pods"} {
		if !strings.Contains(moved, want) {
			t.Errorf("%q is not in %q", want, moved)
		}
	}
	given("ens2", "10.0.5.10/30", "10.0.5.9")
	held := func() (files []string) {
		for _, pattern := range []string{"*/10.0.?.10.json", "*/*/10.0.?.10.json"} {
			found, err := filepath.Glob(filepath.Join(l.state, "ipam", pattern))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, found...)
		}
		return files
	}
	if files := held(); len(files) < 2 {
		t.Errorf("the store has %v", files)
	}
	for nic := range pods {
		node.MustRun(call("DEL", nic))
	}
	if files := held(); len(files) > 0 {
		t.Errorf("addresses are left: %v", files)
	}

	// The file stays while the server does not answer.
	l.plane.KillAPIServer()
	time.Sleep(200 * time.Millisecond)
	given("ens1", "10.0.5.10/30", "10.0.5.9")
	node.MustRun(call("DEL", "ens1"))

	// The record and the file are lost, and DEL frees the address all the same.
	given("ens2", "10.0.5.10/30", "10.0.5.9")
	if err := errors.Join(os.RemoveAll(filepath.Join(l.state, "attachments")), nodeprefix.Remove(l.state)); err != nil {
		t.Fatal(err)
	}
	if len(held()) == 0 {
		t.Error("the store has no address")
	}
	node.MustRun(call("DEL", "ens2"))
	if files := held(); len(files) > 0 {
		t.Errorf("addresses are left: %v", files)
	}
}

func TestPrefixesThatNobodyWantsAreRemoved(t *testing.T) {
	l := &lab{T: t, plane: controlplane.Start(t, controlplane.Options{}), state: filepath.Join(t.TempDir(), "state")}
	if err := (&nodeprefix.Pools{Node: "node2"}).Write(l.state); err != nil {
		t.Fatal(err)
	}
	// The server does not know the kind, as one that has just started: the file stays.
	l.wanted.Store(true)
	stop := l.start()
	l.await("a notice", func() bool { return l.said("PrefixesNotRead") != "" })
	stop()
	if said := l.said("PrefixesNotRead"); !strings.Contains(said, "apply its CRD") || strings.Contains(said, "\n") {
		t.Errorf("it says %q", said)
	}
	if _, err := nodeprefix.Read(l.state); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
	l.wanted.Store(false)
	l.start()
	l.await("the removal", func() bool {
		_, err := nodeprefix.Read(l.state)
		return errors.Is(err, fs.ErrNotExist)
	})
}
