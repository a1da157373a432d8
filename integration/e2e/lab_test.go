package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/cluster"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// lab is a cluster whose nodes' network state was recorded.
type lab struct {
	*cluster.Cluster
	nodes  []*testnet.Netns
	before []string
}

// patience bounds a kubelet's work of some seconds, also on a busy machine.
const patience = "--timeout=3m"

// begin starts a cluster with the examples' NADs.
func begin(t *testing.T, o cluster.Options) *lab {
	t.Helper()
	need.Cluster(t)
	began := time.Now()
	o.Plugins = cluster.OurPlugins(testnet.Bin(t))
	l := &lab{Cluster: cluster.Start(t, o)}
	t.Logf("the cluster is up after %v", time.Since(began).Round(time.Millisecond))
	for _, file := range []string{"roce-nads.yaml", "macvlan-nad.yaml"} {
		text, err := examples.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		l.apply(t, text)
	}
	// The first pod changes settings of the bridge, so it comes before the
	// record.
	l.run(t, pod{name: "first-1", node: 0}, pod{name: "first-2", node: 1})
	l.delete(t, "first-1", "first-2")
	for _, n := range l.Nodes() {
		netns := testnet.OfProcess(t, n.Pid())
		l.nodes, l.before = append(l.nodes, netns), append(l.before, netns.State())
	}
	return l
}

// asBefore fails the test if anything is left of any pod on the nodes or in the
// pools.
func (l *lab) asBefore(t *testing.T) {
	t.Helper()
	for _, left := range l.left(t) {
		t.Error(left)
	}
}

// left lists what is left of pods.
func (l *lab) left(t *testing.T) (left []string) {
	t.Helper()
	for i, n := range l.Nodes() {
		if d := l.nodes[i].Settled(l.before[i]); d != "" {
			left = append(left, fmt.Sprintf("%s is not as it was:\n%s", n.Name, d))
		}
		for _, r := range l.records(t, n) {
			left = append(left, fmt.Sprintf("a record on %s: %s, phase %s", n.Name, r.Holder(), r.Phase))
		}
	}
	for _, address := range l.held(t) {
		left = append(left, "an address: "+address)
	}
	return left
}

func (l *lab) records(t *testing.T, n *cluster.Node) []*ledger.Record {
	t.Helper()
	book, err := ledger.Open(n.Path("/run/rail-cni"))
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	records, errs := book.List()
	if len(errs) > 0 {
		t.Fatal(errors.Join(errs...))
	}
	return records
}

// held lists all entries of IPPools and all reservations.
func (l *lab) held(t *testing.T) (held []string) {
	t.Helper()
	for _, kind := range []string{"ippools", "overlappingrangeipreservations"} {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Spec     struct {
					Range       string
					PodRef      string
					Allocations map[string]struct{ PodRef, IfName string }
				}
			}
		}
		l.get(t, "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/"+kind, &list)
		for _, o := range list.Items {
			for _, e := range o.Spec.Allocations {
				held = append(held, fmt.Sprintf("%s %s %s", o.Spec.Range, e.PodRef, e.IfName))
			}
			if kind != "ippools" {
				held = append(held, "reservation "+o.Metadata.Name+" "+o.Spec.PodRef)
			}
		}
	}
	return held
}

func (l *lab) get(t *testing.T, path string, into any) {
	t.Helper()
	code, answer, err := l.Admin().Get(t.Context(), path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d: %s", code, answer)
	}
	if err == nil {
		err = json.Unmarshal(answer, into)
	}
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
}

func (l *lab) apply(t *testing.T, objects []byte) {
	t.Helper()
	if err := l.Apply(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// exec runs a command in a pod.
func (l *lab) exec(t *testing.T, pod string, args ...string) string {
	t.Helper()
	out, err := l.Exec(t.Context(), pod, args...)
	if err != nil {
		t.Fatalf("in %s: %v\n%s", pod, err, out)
	}
	return out
}

// nad makes a NetworkAttachmentDefinition for the time of the test.
func (l *lab) nad(t *testing.T, name, config string) {
	t.Helper()
	object, err := json.Marshal(map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"config": config},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.apply(t, object)
	t.Cleanup(func() {
		if _, err := l.Kubectl(context.Background(), "delete", "net-attach-def", name); err != nil {
			t.Error(err)
		}
	})
}

// pod is one that sleeps.
type pod struct {
	name     string
	node     int
	networks string // the annotation; "" = none
}

// object returns the pod as a user writes it.
func (p pod) object() map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": p.name, "annotations": map[string]any{nadv1.NetworkAttachmentAnnot: p.networks}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c"}}},
	}
}

// here adapts the pod to this cluster: an image of the node, a node, a short
// grace period, and no devices, because no device plugin offers any.
func (l *lab) here(t *testing.T, object map[string]any, node int) map[string]any {
	t.Helper()
	spec := field[map[string]any](t, object, "spec")
	for _, c := range field[[]any](t, spec, "containers") {
		container, ok := c.(map[string]any)
		if !ok {
			t.Fatalf("a container is %v", c)
		}
		container["image"] = cluster.ToolsImage
		delete(container, "command") // the image's own command ends on SIGTERM
		delete(container, "resources")
	}
	spec["nodeSelector"] = map[string]any{"kubernetes.io/hostname": l.Node(node).Name, cluster.NodeLabel: "true"}
	spec["terminationGracePeriodSeconds"] = 5
	return object
}

// field returns a field of an object.
func field[T any](t *testing.T, object map[string]any, name string) T {
	t.Helper()
	value, ok := object[name].(T)
	if !ok {
		t.Fatalf("%s of %v is no %T", name, object, value)
	}
	return value
}

// create makes pods concurrently.
func (l *lab) create(t *testing.T, pods ...pod) {
	t.Helper()
	objects := make([]map[string]any, 0, len(pods))
	for _, p := range pods {
		objects = append(objects, l.here(t, p.object(), p.node))
	}
	l.createObjects(t, objects)
}

func (l *lab) createObjects(t *testing.T, pods []map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": pods})
	if err != nil {
		t.Fatal(err)
	}
	l.apply(t, text)
	t.Cleanup(func() { // so that a failed test does not affect others
		for _, p := range pods {
			name := field[string](t, field[map[string]any](t, p, "metadata"), "name")
			_, _ = l.Kubectl(context.Background(), "delete", "pod", name, "--ignore-not-found", "--wait", patience)
		}
	})
}

// run makes pods and waits until they are ready.
func (l *lab) run(t *testing.T, pods ...pod) {
	t.Helper()
	l.create(t, pods...)
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.name)
	}
	l.ready(t, names...)
}

func (l *lab) ready(t *testing.T, pods ...string) {
	t.Helper()
	began := time.Now()
	l.kubectl(t, append([]string{"wait", "--for=condition=Ready", patience, "pod"}, pods...)...)
	t.Logf("ready after %v: %s", time.Since(began).Round(time.Millisecond), strings.Join(pods, ", "))
}

// delete deletes pods as users do, and waits until they are gone.
func (l *lab) delete(t *testing.T, pods ...string) {
	t.Helper()
	began := time.Now()
	l.kubectl(t, append([]string{"delete", "--wait", patience, "pod"}, pods...)...)
	t.Logf("gone after %v: %s", time.Since(began).Round(time.Millisecond), strings.Join(pods, ", "))
}

// examplePods returns the pods of an example file, one for each node.
func (l *lab) examplePods(t *testing.T, file string) (pods []map[string]any) {
	t.Helper()
	objects, err := examples.Objects(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, object := range objects {
		pods = append(pods, l.here(t, object, i))
	}
	return pods
}

func (l *lab) status(t *testing.T, pod string) (entries []nadv1.NetworkStatus) {
	t.Helper()
	text := l.kubectl(t, "get", "pod", pod, "-o", `jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}`)
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		t.Fatalf("network-status of %s is %q: %v", pod, text, err)
	}
	return entries
}

// iface is the output of ip -j addr for an interface.
type iface struct {
	IfName, Address, OperState string
	MTU                        int
	Flags, AltNames            []string
	AddrInfo                   []struct {
		Family, Local, Broadcast string
		PrefixLen                int
	} `json:"addr_info"`
}

// interfaces returns the interfaces that a pod sees.
func (l *lab) interfaces(t *testing.T, pod string) map[string]iface {
	t.Helper()
	text := l.exec(t, pod, "ip", "-j", "addr")
	var list []iface
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	found := map[string]iface{}
	for _, i := range list {
		found[i.IfName] = i
	}
	return found
}

// ipv4 returns the interface's address with its prefix length and broadcast
// address, or "" if it has not exactly one.
func (i iface) ipv4() string {
	var found []string
	for _, a := range i.AddrInfo {
		if a.Family == "inet" {
			found = append(found, fmt.Sprintf("%s/%d brd %s", a.Local, a.PrefixLen, a.Broadcast))
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

func (i iface) up() bool { return slices.Contains(i.Flags, "UP") && i.OperState == "UP" }

// sandboxEvents waits for the kubelet's event that it could not make the pod's
// sandbox, and returns the messages of all such events.
func (l *lab) sandboxEvents(t *testing.T, pod string) string {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		out := l.kubectl(t, "get", "events", "-o", "jsonpath={range .items[*]}{.message}{'\\n'}{end}",
			"--field-selector", "involvedObject.name="+pod+",reason=FailedCreatePodSandBox")
		if out != "" {
			return out
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has no event: %s", pod, l.kubectl(t, "describe", "pod", pod))
		}
	}
}
